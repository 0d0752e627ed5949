"""A group's pending entries in the dump format of Redis.

The group lists the entries in ID order, without their owners; each consumer then lists its own IDs.
There may be millions, so reading and writing pause after STEP_ENTRIES entries.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Generator, Iterator

from millstream.clock_offset import shifted_ms
from millstream.errors import PayloadError
from millstream.storage.dump.primitives import length_bytes
from millstream.storage.dump.reader import CutOffError, Reader
from millstream.storage.groups.group_snapshot import PENDING_SIZE

STEP_ENTRIES = 256
# A pending entry of a group has an ID, a time and at least one byte for the number of deliveries.
ENTRY_MIN_BYTES = 25
ID_BYTES = 16

# The record of a pending entry (docs/formats.md): ms, seq, first and last delivery in six bytes
# each, the latter with the bit of waiting, deliveries and consumer in three bytes each, retry pair.
_RECORD = struct.Struct("<QQIHIHHBHBH")
_CONSUMER_AT = 31
_CONSUMER = struct.Struct("<HB")
TIME_MAX_MS = (1 << 47) - 1
# Of the high half of the last delivery: the entry waits. Redis shows it as released.
_WAITING = 1 << 15
DELIVERIES_MAX = CONSUMERS_MAX = (1 << 24) - 1
INT64_MAX = (1 << 63) - 1

LargeCounts = list[list[int]]
_NO_OWNER, _OWNED, _RELEASED = range(3)


class PendingReader:
    """Reads the pending entries of one group from a payload in steps.

    `read` reads the group's own list, `give` the IDs of a consumer, `release` the IDs without an
    owner. `records` then returns the argument of Group.load, with `large_counts`. Delivery times
    after `now_ms` become `now_ms`; `adjusted` counts them.
    """

    def __init__(self, reader: Reader, now_ms: int) -> None:
        self.large_counts: LargeCounts = []
        self.adjusted = 0
        self._reader = reader
        self._now_ms = now_ms
        self._ids = bytearray()  # as in the payload, where bytes sort in ID order
        self._records = bytearray()
        self._states = array("B")
        self._named = 0

    def read(self, count: int) -> Iterator[None]:
        if count > self._reader.left // ENTRY_MIN_BYTES:
            raise CutOffError("a group has more pending entries than there are")
        before = b""
        for i in range(count):
            if i % STEP_ENTRIES == STEP_ENTRIES - 1:
                yield
            entry_id = self._reader.take(ID_BYTES)
            if entry_id <= before:
                raise PayloadError("the pending entries of a group do not increase")
            before = entry_id
            self._ids += entry_id
            self._records += self._record(*struct.unpack(">QQ", entry_id))
        self._states = array("B", bytes(count))

    def _record(self, ms: int, seq: int) -> bytes:
        wall_ms, deliveries = self._reader.signed64(), self._reader.length()
        if wall_ms < 0 or deliveries > INT64_MAX:
            raise PayloadError("a pending entry has a malformed time or count")
        delivered_ms = shifted_ms(min(wall_ms, TIME_MAX_MS), -self._reader.wall_ahead_ms)
        if delivered_ms > self._now_ms:
            delivered_ms = self._now_ms
            self.adjusted += 1
        low, high = _halves(delivered_ms, 32)
        if deliveries >= DELIVERIES_MAX:
            self.large_counts.append([ms, seq, deliveries])
        counts = _halves(min(deliveries, DELIVERIES_MAX), 16)
        return _RECORD.pack(ms, seq, low, high, low, high, *counts, 0, 0, 0)

    def give(self, count: int, consumer: int) -> Iterator[None]:
        """Assign the next `count` IDs of the payload, which are ascending, to this consumer (0: to
        none)."""
        if consumer > CONSUMERS_MAX:
            raise PayloadError("a group has too many consumers")
        place = 0
        for i, entry_id in enumerate(self._take_ids(count)):
            if i % STEP_ENTRIES == STEP_ENTRIES - 1:
                yield
            place = self._find(entry_id, place)
            self._name(place, _OWNED, "two consumers own a pending entry")
            at = PENDING_SIZE * place + _CONSUMER_AT
            _CONSUMER.pack_into(self._records, at, *_halves(consumer, 16))
            place += 1

    def release(self, count: int) -> Iterator[None]:
        """Record that the next `count` IDs of the payload, in any order, have no owner."""
        for i, entry_id in enumerate(self._take_ids(count)):
            if i % STEP_ENTRIES == STEP_ENTRIES - 1:
                yield
            place = self._find(entry_id, 0)
            self._name(place, _RELEASED, "a released entry is owned, or named twice")

    def records(self) -> bytes:
        """All records; each must be assigned to a consumer or released."""
        if self._named != len(self._states):
            raise PayloadError("a pending entry has no owner")
        return bytes(self._records)

    def _take_ids(self, count: int) -> Iterator[bytes]:
        if count > self._reader.left // ID_BYTES:
            raise CutOffError("a consumer has more pending entries than there are")
        return (self._reader.take(ID_BYTES) for _ in range(count))

    def _find(self, entry_id: bytes, low: int) -> int:
        """The index of an ID, which is at `low` or after it. Often it is at `low`; a binary search
        alone would take ten times as long."""
        if self._id_at(low) == entry_id:
            return low
        high = len(self._states)
        while low < high:
            middle = (low + high) // 2
            if self._id_at(middle) < entry_id:
                low = middle + 1
            else:
                high = middle
        if self._id_at(low) != entry_id:
            raise PayloadError("a consumer owns an entry that is not pending in its group")
        return low

    def _id_at(self, place: int) -> bytearray:
        return self._ids[ID_BYTES * place : ID_BYTES * (place + 1)]

    def _name(self, place: int, state: int, refusal: str) -> None:
        if self._states[place] != _NO_OWNER:
            raise PayloadError(refusal)
        self._states[place] = state
        self._named += 1


def _halves(number: int, bits: int) -> tuple[int, int]:
    """The lowest bits of a number, and the rest."""
    return number & (1 << bits) - 1, number >> bits


def write_pending(records: bytes, large_counts: LargeCounts, wall_ahead_ms: int) -> Iterator[bytes]:
    """A group's pending entries, without their number, in pieces. Times are wall clock times; the
    wall clock is ahead of the steady clock by `wall_ahead_ms`."""
    large = {(ms, seq): deliveries for ms, seq, deliveries in large_counts}
    for rows in _in_steps(records):
        made = []
        for ms, seq, _, _, low_ms, high_ms, low, high, *_ in rows:
            last_ms = 0 if high_ms & _WAITING else high_ms << 32 | low_ms
            delivered_ms = shifted_ms(last_ms, wall_ahead_ms)
            deliveries = high << 16 | low
            if deliveries == DELIVERIES_MAX:
                deliveries = large.get((ms, seq), DELIVERIES_MAX)
            made.append(struct.pack(">QQ", ms, seq) + struct.pack("<q", delivered_ms))
            made.append(length_bytes(deliveries))
        yield b"".join(made)


def ids_by_consumer(records: bytes, consumers: int) -> Generator[None, None, list[bytearray]]:
    """The IDs of a group's pending entries by the number of the consumer; first the IDs without an
    owner."""
    found = [bytearray() for _ in range(consumers)]
    for rows in _in_steps(records):
        for ms, seq, *_, low, high, _ in rows:
            found[high << 16 | low] += struct.pack(">QQ", ms, seq)
        yield
    return found


def _in_steps(records: bytes) -> Iterator[Iterator[tuple[int, ...]]]:
    size = STEP_ENTRIES * PENDING_SIZE
    for start in range(0, len(records), size):
        yield _RECORD.iter_unpack(records[start : start + size])
