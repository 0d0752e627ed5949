"""Appending many rows at once: in batches, each of which is made while the one before is on its
way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from redis.exceptions import ResponseError

from millstream.client.core.argument_checks import whole
from millstream.client.core.batches import (
    BATCH_BYTES,
    BATCH_MAX,
    BatchSender,
    Refusals,
)
from millstream.client.core.servers import ServerState
from millstream.client.core.steps import Answer, Ask, Clock, Steps, Wait
from millstream.client.core.words import Fields, Key
from millstream.client.errors import InvalidFields
from millstream.client.word_packing import Entry

AT_ONCE = 0.0


class Rows:
    """Some rows, as entries. `error` is that of the row after them; `ended` if there is none."""

    def __init__(self, source: Iterator[Fields], seq: int, most: int) -> None:
        self.entries: list[Entry] = []
        self.error: Exception | None = None
        self.ended = False
        size_bytes = 0
        try:
            while len(self.entries) < most and size_bytes < BATCH_BYTES:
                entry = Entry(next(source))
                entry.seq = seq + len(self.entries)
                self.entries.append(entry)
                size_bytes += len(entry.packed)
        except StopIteration:
            self.ended = True
        except Exception as error:  # of a row, or of the caller's iterator
            self.error = error

    def remove(self, refusals: Refusals) -> None:
        """Rows after a refused one are not appended either: the caller continues with it."""
        first, self.error = refusals[0]
        self.entries = self.entries[: self.entries.index(first)]


class RowSender:
    """The rows of one writer. Rows with the caller's numbers belong to the writer's name, others to
    this object."""

    def __init__(
        self, client: Any, key: Key, name: Key, unique: str, retry_for_s: float, now: Clock
    ) -> None:
        self._server = ServerState(client)
        self._named = BatchSender(key, name, retry_for_s, now)
        self._own = BatchSender(key, unique, retry_for_s, now)
        self._last = 0
        """The last number of this object."""
        self.appended = 0

    @property
    def repeats(self) -> int:
        return self._named.repeats + self._own.repeats

    def append_many(self, rows: Iterable[Fields], seq: int | None, most: int) -> Steps[int]:
        """Append all rows; returns their number."""
        whole("batch", most, BATCH_MAX)
        source = iter(checked(rows))
        sender = self._own if seq is None else self._named
        count = 0
        on_its_way: tuple[Rows, Ask, Sequence[Answer]] | None = None
        while True:
            batch = Rows(source, self._last + 1 if seq is None else seq + count, most)
            size = len(batch.entries)
            if seq is None:
                self._last += size
            count += size
            if on_its_way is not None:
                yield from self._finish(sender, *on_its_way)
            if batch.entries:
                ask = Ask(self._server, [sender.command(batch.entries)])
                on_its_way = batch, ask, (yield Wait([ask], AT_ONCE))
            if batch.ended or batch.error is not None:
                if batch.entries and on_its_way is not None:
                    yield from self._finish(sender, *on_its_way)
                if batch.error is not None:
                    raise batch.error
                return count

    def _finish(
        self, sender: BatchSender, batch: Rows, ask: Ask, answers: Sequence[Answer]
    ) -> Steps[None]:
        before = batch.error
        yield from sender.send(batch, awaited(ask, answers))
        self.appended += len(batch.entries)
        if batch.error is not None and batch.error is not before:
            raise batch.error


def awaited(ask: Ask, answers: Sequence[Answer]) -> Steps[int]:
    """The reply to an ask of one command; some answers may have arrived."""
    while True:
        for answer in answers:
            if answer.ask is ask:
                if answer.error is not None:
                    raise answer.error
                [reply] = answer.replies
                if isinstance(reply, ResponseError):
                    raise reply
                count: int = reply
                return count
        answers = yield Wait([ask], None)


def checked(rows: Any) -> Iterable[Fields]:
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, Iterable):
        raise InvalidFields(f"rows must be an iterable of fields, not {rows!r}")
    return rows
