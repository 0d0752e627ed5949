"""The state of a stream in a backup, which completes its entries: for TRESTORE."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import msgpack  # type: ignore[import-untyped]

from millstream.storage.capture.ordering_snapshot import restore_ordering
from millstream.storage.groups.group import Group
from millstream.storage.groups.group_snapshot import load_group_in_steps
from millstream.storage.streams.schedule import Schedule
from millstream.storage.streams.schedule_snapshot import load_in_steps
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import load_stream

_MALFORMED = (AttributeError, IndexError, KeyError, OverflowError, TypeError)
# Steps of loading groups in one turn: each is about a third of a millisecond's work.
TURN_STEPS = 4


def completed(
    entries: object, state: bytes, incarnation: int, steady_ms: int
) -> tuple[Stream, dict[str, Any]]:
    """The stream with its whole state, and that state as a map. ValueError when the two do not fit
    together."""
    job = StateJob(state, steady_ms)
    while not job.run():
        pass
    return job.complete(entries, incarnation), job.meta


class StateJob:
    """Makes a stream from its entries and its state. The groups, which may have millions of pending
    entries, and the scheduled entries come first, over several turns if necessary; the entries may
    change until the end. ValueError when the state is malformed or does not fit the entries."""

    def __init__(self, state: bytes, steady_ms: int) -> None:
        self.state = state
        self.meta: dict[str, Any] = {}
        self._steady_ms = steady_ms
        self._groups: list[Group] = []
        self._schedule: Schedule | None = None
        self._steps = self._load_parts()

    def _load_parts(self) -> Iterator[None]:
        self.meta = msgpack.unpackb(self.state, strict_map_key=False)
        for row in self.meta["groups"]:
            self._groups.append((yield from load_group_in_steps(row, self._steady_ms)))
            yield
        if "schedule" in self.meta:
            self._schedule = yield from load_in_steps(self.meta["schedule"])

    def run(self) -> bool:
        """Load parts for a turn; True when all are loaded."""
        with _malformed():
            return sum(1 for _ in islice(self._steps, TURN_STEPS)) < TURN_STEPS

    def complete(self, entries: object, incarnation: int) -> Stream:
        """The stream with its whole state."""
        if entries is not None and not isinstance(entries, Stream):
            raise ValueError("the entries are not in a stream")
        with _malformed():
            blocks = () if entries is None else entries.blocks()
            own = {"incarnation": incarnation, "open": bool(blocks)}
            made = load_stream({**self.meta, **own}, blocks, self._steady_ms, self._groups)
            restore_ordering(made, self.meta, self._steady_ms, self._schedule)
        for group in self._groups:
            group.restart_ttl(self._steady_ms)
        if made.held is not None:
            made.held.restart_leases(self._steady_ms)
        return made


@contextmanager
def _malformed() -> Iterator[None]:
    try:
        yield
    except (*_MALFORMED, msgpack.UnpackException) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
