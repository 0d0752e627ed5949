"""Batches of entries for TAPPENDMANY: their bytes, and sending one until the server has it.

The server keeps the greatest number of each producer. A batch is appended as a whole or not at all,
and the numbers of its entries are above those of the batch before, which was answered. So a batch
whose reply was lost is sent again as it was: what had arrived is not appended twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from redis.exceptions import RedisError

from millstream.client.core import requests
from millstream.client.core.repeating import (
    FIRST_S,
    MOST_S,
    is_temporary,
    is_too_long,
    known_limits,
    lost,
)
from millstream.client.core.steps import Call, Clock, Command, Sleep, Steps
from millstream.client.core.words import Key, text
from millstream.client.errors import Sealed
from millstream.client.log import log
from millstream.client.word_packing import Entry, packed_batch, packed_words

BATCH_MAX = 10_000
"""The limit of TAPPENDMANY."""
BATCH_BYTES = 2**18
"""A batch of this size is sent: larger ones take more memory, and no less time for an entry."""
SEQ_MAX = 2**64 - 1
HEAD_WORDS = 5


Refusals = Sequence[tuple[Entry, Exception]]
"""Entries that the server does not take because of their size."""


class Entries(Protocol):
    """A batch: entries with rising numbers."""

    entries: list[Entry]

    def remove(self, refusals: Refusals) -> None:
        """Some entries are refused: the others may be sent without them."""


class BatchSender:
    """Sends the batches of one producer, one after another."""

    def __init__(self, key: Key, producer: Key, retry_for_s: float, now: Clock) -> None:
        self.key = key
        self.producer = producer
        self.repeats = 0
        self.warns = False
        """True if numbers that the stream has already are unexpected."""
        self._retry_for_s = retry_for_s
        self._now = now
        self._head = packed_words(("TAPPENDMANY", 1, key, "PRODUCER", producer))

    def command(self, entries: list[Entry]) -> Command[int]:
        """TAPPENDMANY for all entries. The reply is the number of new ones."""
        return requests.packed(
            "TAPPENDMANY", self.key, packed_batch(self._head, HEAD_WORDS, entries)
        )

    def send(self, batch: Entries, attempt: Steps[int] | None = None) -> Steps[None]:
        """Send a batch until it is answered. The first `attempt` may have begun.

        Raises the last error after the time for repeats, and at once one that does not end."""
        until_s = self._now() + self._retry_for_s
        pause_s = FIRST_S
        repeats = False
        while batch.entries:
            try:
                new = yield from attempt or self._attempt(batch)
                if self.warns and not repeats and new < len(batch.entries):
                    self._warn(len(batch.entries) - new)
                break
            except Exception as error:
                attempt = None
                repeats = True
                if is_too_long(error, long_ones(batch)):
                    refusals = yield from self._too_long(batch)
                    if refusals:
                        batch.remove(refusals)
                        continue
                if not (lost(error) or is_temporary(error)) or self._now() >= until_s:
                    yield from name_children(self.key, error)
                    raise
            self.repeats += 1
            yield Sleep(min(pause_s, max(0.0, until_s - self._now())))
            pause_s = min(pause_s * 2, MOST_S)

    def _warn(self, count: int) -> None:
        log.warning(
            "%d entries of the producer %r have numbers that %r has already, and were not "
            "appended: if another producer with this name is running, give each its own name",
            count,
            text(self.producer),
            text(self.key),
        )

    def _attempt(self, batch: Entries) -> Steps[int]:
        count: int = yield Call(self.command(batch.entries))
        return count

    def _too_long(self, batch: Entries) -> Steps[Refusals]:
        """The entries that are above the server's limit, as far as it is known."""
        limits = (yield from known_limits()) or {}
        limit = next((int(value) for value in limits.values()), SEQ_MAX)
        errors = [(entry, entry.length_error(limit)) for entry in batch.entries]
        return [(entry, error) for entry, error in errors if error is not None]


def long_ones(batch: Entries) -> list[bytes]:
    return [entry.packed for entry in batch.entries if entry.is_long]


def name_children(key: Key, error: Exception) -> Steps[None]:
    """The error Sealed gets the names of the children from the server, because its text has line
    breaks as blanks."""
    if isinstance(error, Sealed):
        try:
            info: Any = yield Call(requests.tinfo(key))
        except RedisError:
            return
        error.children = list(map(text, info["children"])) if info else []


def check_seq(seq: Any) -> int | None:
    """The number of an entry, if the caller gives one."""
    if seq is not None and (type(seq) is not int or not 0 <= seq <= SEQ_MAX):
        raise ValueError(f"seq must be a number from 0 to {SEQ_MAX}, not {seq!r}")
    number: int | None = seq
    return number
