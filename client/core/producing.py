"""A producer: entries are collected into batches, which are sent one after another.

The program adds entries at any time. A thread or task of the producer sends them: while one batch
is on its way, the next one fills. So each wait for the disk is shared by all entries that arrived
during the wait before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from millstream.client.core import argument_checks, requests
from millstream.client.core.argument_checks import number, whole
from millstream.client.core.batches import BATCH_BYTES, BATCH_MAX, BatchSender, Refusals
from millstream.client.core.repeating import Repeater
from millstream.client.core.steps import Clock, Steps, Wait
from millstream.client.core.words import Key
from millstream.client.errors import MillstreamError
from millstream.client.log import log
from millstream.client.word_packing import Entry

IDLE_S = 60.0
"""A producer with nothing to do looks this often."""


class Guard(Protocol):
    lock: Any

    def check(self) -> None: ...


class Event(Protocol):
    def set(self) -> None: ...

    def is_set(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The options of a producer, in the units of the caller."""

    linger_s: float
    max_batch: int
    buffer_bytes: int
    retry_for_s: float


def producer_options(
    linger: float, max_batch: int, buffer: int, retry_for: float
) -> ProducerOptions:
    if not 0 <= number("linger", linger) <= 3600:
        raise ValueError(f"linger must be from 0 to 3600 seconds, not {linger!r}")
    if not number("retry_for", retry_for) > 0:
        raise ValueError(f"retry_for must be above 0 seconds, not {retry_for!r}")
    return ProducerOptions(
        linger, whole("max_batch", max_batch, BATCH_MAX), whole("buffer", buffer), retry_for
    )


class Batch:
    """Entries that are sent together, and what became of them. `done` is set when the server has
    them, or when it is known that it will not get them."""

    def __init__(self, done: Event, above: int) -> None:
        """Its numbers are above this one."""
        self.done = done
        self.entries: list[Entry] = []
        self.size_bytes = 0
        self.opened_s = 0.0
        self.urgent = False
        """True if it does not wait for more entries."""
        self.error: Exception | None = None
        """The reason why none of the entries was appended, or why that is not known."""
        self.refused: dict[int, Exception] = {}
        """Single entries that the server does not take."""
        self.callbacks: list[Callable[[], None]] = []
        self._above = above

    @property
    def last_seq(self) -> int:
        return self.entries[-1].seq if self.entries else self._above

    def remove(self, refusals: Refusals) -> None:
        """Some entries are refused: the others are sent without them."""
        self.refused |= {entry.seq: error for entry, error in refusals}
        self.entries = [entry for entry in self.entries if entry.seq not in self.refused]

    def error_of(self, seq: int) -> Exception | None:
        return self.refused.get(seq, self.error)

    def settle(self) -> None:
        self.entries = []
        self.done.set()
        self.call_back()

    def call_back(self) -> None:
        """Call what waits for the end; each function once, whichever thread is first."""
        while self.callbacks:
            try:
                function = self.callbacks.pop(0)
            except IndexError:
                return
            try:
                function()
            except Exception:
                log.exception("a function that waited for an entry raised an exception")


class Producing:
    """The state of a producer, and its decisions."""

    def __init__(
        self,
        key: Key,
        name: Key | None,
        unique: str,
        options: ProducerOptions,
        now: Clock,
        make_event: Callable[[], Event],
        guard: Guard,
    ) -> None:
        """`unique` is text that no other object has. The lock of `guard` lets one thread at a time
        change the batches."""
        self._key = argument_checks.key("key", key)
        self._name = None if name is None else argument_checks.writer_name(name)
        self._options = options
        self._now = now
        self._make_event = make_event
        self._guard = guard
        self._lock = guard.lock
        self._sender = BatchSender(
            self._key, f"producer:{unique}" if self._name is None else self._name,
            options.retry_for_s, now,
        )  # fmt: skip
        self._sender.warns = True
        self._repeater = Repeater(options.retry_for_s, now)
        self.last_seq: int | None = None
        """The number that the server knew when the producer began."""
        self._before = Batch(make_event(), -1)
        """Entries that an earlier process has appended."""
        self._before.settle()
        self._batches: deque[Batch] = deque()
        """Not sent yet, the oldest first. The last one is open."""
        self._on_its_way: Batch | None = None
        self._end = -1
        """The last number of the batches before those in `_batches`; -1 if there is none."""
        self._idles = False
        """True while the sender waits for an entry."""
        self._lingers = False
        """True while the sender waits for more entries."""
        self._closing = False
        self.error: Exception | None = None
        """The error that has ended the producer."""
        self._unreported: Exception | None = None
        """The first error since the last flush."""
        self.buffered_bytes = 0
        self._counts = dict.fromkeys(("appended", "refused", "batches"), 0)

    # ------------------------------------------------------------ any thread

    @property
    def has_room(self) -> bool:
        """True if an entry may be added; also if adding one raises an error."""
        ends = self._closing or self.error is not None
        return ends or self.buffered_bytes < self._options.buffer_bytes

    def add(self, entry: Entry, seq: int | None) -> tuple[Batch, int, bool]:
        """Add an entry. Returns its batch and number, and if the sender has to be woken."""
        self._guard.check()
        with self._lock:
            self.check()
            last = self._batches[-1].last_seq if self._batches else self._end
            if seq is None:
                seq = max(last + 1, 1)
            elif self.last_seq is not None and seq <= self.last_seq:
                return self._before, seq, False
            elif seq <= last:
                raise ValueError(f"seq must be above {last}, the one before, not {seq!r}")
            entry.seq = seq
            batch = self._open_batch(last)
            batch.size_bytes += len(entry.packed)
            self.buffered_bytes += len(entry.packed)
            batch.entries.append(entry)  # last, and at once: a signal handler may raise anywhere
            return batch, seq, self._idles or (self._lingers and self._is_full(batch))

    def check(self) -> None:
        """Raises an error if nothing can be added any more."""
        if self.error is not None:
            raise self.error
        if self._closing:
            raise MillstreamError("the producer is closed")

    def _open_batch(self, last: int) -> Batch:
        if self._batches and not self._is_full(self._batches[-1]):
            return self._batches[-1]
        batch = Batch(self._make_event(), last)
        batch.opened_s = self._now()
        self._batches.append(batch)
        return batch

    def _is_full(self, batch: Batch) -> bool:
        return len(batch.entries) >= self._options.max_batch or batch.size_bytes >= BATCH_BYTES

    def push(self) -> Batch | None:
        """Send everything now. Returns the batch that is the last one to be settled."""
        with self._lock:
            for batch in self._batches:
                batch.urgent = True
            return self._batches[-1] if self._batches else self._on_its_way

    def close(self) -> None:
        """The sender ends when everything is sent; nothing can be added."""
        self._closing = True

    def take_error(self) -> Exception | None:
        """The first error that `flush` has not raised yet."""
        error, self._unreported = self._unreported, None
        return error or self.error

    @property
    def pending(self) -> int:
        """The number of entries that are not settled."""
        with self._lock:
            return sum(len(batch.entries) for batch in self._unsettled())

    def _unsettled(self) -> list[Batch]:
        on_its_way = [] if self._on_its_way is None else [self._on_its_way]
        return [*on_its_way, *self._batches]

    def metrics(self) -> dict[str, float]:
        return {**self._counts, "repeats": self._sender.repeats, "pending": self.pending}

    # ------------------------------------------------------------ the sender

    def begin(self) -> Steps[None]:
        """Ask for the number of the last entry that an earlier process has appended."""
        if self._name is not None:
            command = requests.tinfo_producer(self._key, self._name)
            self.last_seq = yield from self._repeater.call(command)
            self._end = -1 if self.last_seq is None else self.last_seq

    def run(self, freed: Callable[[], None]) -> Steps[None]:
        """Send batches until the producer is closed or has failed. `freed` is called when there is
        more room."""
        while True:
            batch, pause_s = self._next()
            if batch is None and pause_s is None:
                return
            if batch is None:
                yield Wait((), pause_s)
                self._idles = self._lingers = False
                continue
            try:
                yield from self._sender.send(batch)
            except Exception as error:
                self.fail(error)
                freed()
                return
            self._settle(batch)
            freed()

    def _next(self) -> tuple[Batch | None, float | None]:
        """The next batch, or how long to wait for it; None for both at the end."""
        with self._lock:
            if not self._batches:
                if self._closing:
                    return None, None
                self._idles = True
                return None, IDLE_S
            batch = self._batches[0]
            wait_s = batch.opened_s + self._options.linger_s - self._now()
            waits = len(self._batches) == 1 and not (batch.urgent or self._closing)
            if waits and wait_s > 0 and not self._is_full(batch):
                self._lingers = True
                return None, wait_s
            self._end = batch.last_seq
            self._on_its_way = batch
            self._batches.popleft()
            return batch, None

    def _settle(self, batch: Batch) -> None:
        self._counts["batches"] += 1
        self._counts["appended"] += len(batch.entries)
        self._counts["refused"] += len(batch.refused)
        for error in batch.refused.values():
            log.error("an entry for %r was refused: %s", self._key, error)
            self._unreported = self._unreported or error
        with self._lock:
            self._on_its_way = None
            self.buffered_bytes -= batch.size_bytes
        batch.settle()

    def fail(self, error: Exception) -> None:
        """End the producer. If a batch may have been appended, those after it must not be: its
        entries could not be repeated any more."""
        with self._lock:
            self.error = error
            batches = self._unsettled()
            count = sum(len(batch.entries) for batch in batches)
            self._on_its_way = None
            self._batches.clear()
        if count:
            log.error("the producer of %r has ended, with %d entries: %s", self._key, count, error)
        for batch in batches:
            batch.error = error
            batch.settle()
