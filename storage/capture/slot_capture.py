"""Captures one cluster slot at a point in time, in steps while commands run, while a snapshot
and other slots may be captured, too.

The parts of the capture are effects that make the keys again: small streams in batches, as in a
snapshot; a string, or a larger stream, in as many parts as necessary (`key_parts`). A key of the
slot that will change before its turn is captured first (`before_change`). The keys of the slot are
listed by a quarter at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from millstream.storage.blocks.block import seal_forms
from millstream.storage.capture.captured_keys import Captured, captured_stream
from millstream.storage.capture.key_parts import (
    PART_BYTES,
    Part,
    stream_parts,
    string_parts,
    weight_of,
)
from millstream.storage.capture.present_captures import add_slot_capture, remove_capture
from millstream.storage.capture.small_rows import section_head
from millstream.storage.capture.small_streams import SmallStreams
from millstream.storage.keyspace.database import GROWING, Database, Value
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

_BATCH_BYTES = 64 << 10
# The keys of a slot are in four slots of the database.
_QUARTERS = 4
_FREED_BLOCKS = 512

Taken = Captured | SmallStreams | tuple[bytes, bytes, int | None]
"""What is captured and has no parts yet; for a string its key, the value and the expiry."""


class SlotCapture:
    """A capture of one slot of database 0 of a cluster node."""

    def __init__(self, keyspace: Keyspace, slot: int) -> None:
        """Begin a capture of the current keys of the slot."""
        self._keyspace = keyspace
        self._slot = slot
        db: Database = keyspace.databases[0]
        # FLUSHALL gives a database other tables and does not change these.
        self._table, self._slots, self._expiries = db.table, db.slots, db.expiries
        self._buffers = db.append_buffers
        self._quarter = -1
        self._keys: list[bytes] = []  # of the quarter, not captured yet
        # Keys of each quarter that are captured, or did not exist when the capture began.
        self._done: list[set[bytes]] = [set() for _ in range(_QUARTERS)]
        self._batch = SmallStreams(_BATCH_BYTES)
        self._taken: deque[Taken] = deque()
        self._parts: Iterator[Part] = self._first_parts()
        add_slot_capture(keyspace, self, slot)

    def _first_parts(self) -> Iterator[Part]:
        yield b"FLUSHSLOTS", b"%d" % self._slot, self._keyspace.incarnation
        if self._keyspace.recorded_promise_ms:
            yield b"CLOCK", self._keyspace.recorded_promise_ms

    def before_change(self, database: Database, key: bytes, value: Value | None) -> None:
        """Capture a key of the slot that will change (value None: it does not exist), unless it was
        captured before."""
        if database.table is not self._table:
            return
        quarter = self._slots.slot_of(key) % _QUARTERS
        if quarter >= self._quarter and key not in self._done[quarter]:
            self._done[quarter].add(key)
            if value is not None:
                self._take(key, value)

    def _take(self, key: bytes, value: Value) -> None:
        expiry_ms = self._expiries.get(key)
        if not isinstance(value, Stream):
            if value is GROWING:
                value = bytes(self._buffers[key])
            self._taken.append((key, value, expiry_ms))
        elif self._batch.add(0, key, value, expiry_ms):
            if self._batch.is_full:
                self._end_batch()
        else:
            self._taken.append(captured_stream(0, key, value, expiry_ms))

    def _end_batch(self) -> None:
        if self._batch.keys:
            self._taken.append(self._batch)
            self._batch = SmallStreams(_BATCH_BYTES)

    def step(self, most: int = 256) -> list[Part] | None:
        """The next parts: about `most` of them, or fewer if they are large. None at the end. Each
        part is at most about PART_BYTES long."""
        found: list[Part] = []
        left, left_bytes = most, PART_BYTES
        while left > 0 and left_bytes > 0:
            part = next(self._parts, None)
            if part is not None:
                found.append(part)
                left -= weight_of(part)
                left_bytes -= sum(len(word) for word in part if isinstance(word, bytes))
            elif self._taken:
                self._parts = _parts_of(self._taken.popleft())
            elif self._keys:
                self._take_next()
                left -= 1
            elif self._quarter + 1 < _QUARTERS:
                self._begin_quarter()
            elif self._batch.keys:
                self._end_batch()
            else:
                return found or None
        return found

    def _begin_quarter(self) -> None:
        if self._quarter >= 0:
            self._done[self._quarter] = set()
        self._quarter += 1
        self._keys = self._slots.keys_of(self._slot * _QUARTERS + self._quarter)

    def _take_next(self) -> None:
        key = self._keys.pop()
        done = self._done[self._quarter]
        if key not in done:
            done.add(key)
            self._take(key, self._table[key])

    def close(self) -> None:
        """End a complete or cancelled capture."""
        remove_capture(self._keyspace, self, self._slot)
        self._taken.clear()
        self._keys = []
        self._parts = iter(())


def _parts_of(taken: Taken) -> Iterator[Part]:
    if isinstance(taken, SmallStreams):
        rows, forms = taken.take()
        seal_forms(forms)
        yield b"STREAMS", section_head(0 if forms else None) + rows, forms
    elif isinstance(taken, Captured):
        yield from stream_parts(taken)
        while taken.free_step(_FREED_BLOCKS):
            yield ()
    else:
        yield from string_parts(*taken)
