"""Captures a keyspace at a point in time, in steps while commands run.

A snapshot needs neither a fork nor a pause: it walks the keys in slices. A key that will change
before its turn is captured first (`before_change`, called by storage/keyspace/keyspace). Small
streams are captured in batches, in the form that they have in the file.
"""

from __future__ import annotations

from millstream.storage.capture.captured_keys import (
    Captured,
    CapturedKeys,
    captured_stream,
    with_expiry,
)
from millstream.storage.capture.present_captures import (
    add_capture,
    present_capture,
    remove_capture,
)
from millstream.storage.capture.small_streams import SmallStreams
from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.key_slots import SLOTS
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

# A batch of small streams is full at this size, which is soon written.
BATCH_BYTES = 64 << 10
# What other keys cost in comparison with a small stream.
_OTHER_KEY_COST = 8


class Capture:
    """A capture of all keys in progress; a keyspace has at most one. `looked_at` counts the keys
    and slots that `step` has read, for tests."""

    def __init__(self, keyspace: Keyspace) -> None:
        """Begin a capture of the current keyspace."""
        if present_capture(keyspace) is not None:
            raise RuntimeError("a capture is already being taken")
        self.looked_at = 0
        self._keyspace = keyspace
        for db in keyspace.databases:
            db.settle_all()
        self._databases = [
            CapturedKeys(number, db.slots, db.table, db.expiries)
            for number, db in enumerate(keyspace.databases)
        ]
        # SWAPDB moves tables; the capture has the database of each table at its beginning.
        self._places = {id(database.table): database.db for database in self._databases}
        self._early: list[Captured | SmallStreams] = []
        self._batch = SmallStreams(BATCH_BYTES)
        self._done: list[set[bytes]] = [set() for _ in keyspace.databases]
        self._db = -1
        self._slot = SLOTS
        self._others: list[bytes] = []  # keys of slots that were read, not captured yet
        self._number = add_capture(keyspace, self)

    def before_change(self, database: Database, key: bytes, value: bytes | Stream | None) -> None:
        """Capture a key that will change (value None: it does not exist), unless it was captured
        before or its table is newer than the capture. Later values of the key do not belong to the
        capture."""
        db = self._places.get(id(database.table))
        if db is None:
            return
        if isinstance(value, Stream):
            if value.capture_mark < self._number:
                self._take_stream(db, key, value, self._early)
            # A string may take the place of this stream.
            self._done[db].add(key)
        elif key not in self._done[db]:
            self._done[db].add(key)
            if value is not None:
                self._early.append(self._take_string(db, key, value))

    def _take_string(self, db: int, key: bytes, value: bytes) -> Captured:
        self._done[db].add(key)
        meta = with_expiry({"value": value}, self._databases[db].expiries.get(key))
        return Captured(db, key, "string", meta, [])

    def _take_stream(
        self, db: int, key: bytes, stream: Stream, found: list[Captured | SmallStreams]
    ) -> int:
        """Capture a stream; returns the cost. `found` gets what is complete."""
        expiry_ms = self._databases[db].expiries.get(key)
        if self._batch.add(db, key, stream, expiry_ms):
            stream.capture_mark = self._number
            if self._batch.is_full:
                self._end_batch(found)
            return 1
        found.append(captured_stream(db, key, stream, expiry_ms))
        stream.capture_mark = self._number  # last: after a failure the stream is captured later
        return _OTHER_KEY_COST

    def _end_batch(self, found: list[Captured | SmallStreams]) -> None:
        if self._batch.keys:
            found.append(self._batch)
            self._batch = SmallStreams(BATCH_BYTES)

    def step(self, max_cost: int) -> list[Captured | SmallStreams] | None:
        """The next keys; None at the end. Reads at most about max_cost small streams, or an eighth
        of other keys. An empty list: what was read had been captured before, or a batch is not
        complete."""
        most = max(1, max_cost // _OTHER_KEY_COST)
        found = self._early[-most:]
        del self._early[-most:]
        left = max_cost - len(found) * _OTHER_KEY_COST
        while left > 0:
            if self._others:
                left -= self._take(self._others.pop(), found)
            elif self._slot < SLOTS:
                left -= self._read_slots(left)
                if self._batch.is_full:
                    self._end_batch(found)
            elif self._db + 1 < len(self._databases):
                self._db += 1
                self._slot = 0
            else:
                self._end_batch(found)
                return found or None
        return found

    def _read_slots(self, most: int) -> int:
        """Capture the small streams of the next slots, and note the other keys."""
        self._slot, looked_at = self._batch.add_slots(
            self._databases[self._db], self._slot, self._number, most, self._others
        )
        self.looked_at += looked_at
        return looked_at

    def _take(self, key: bytes, found: list[Captured | SmallStreams]) -> int:
        """Capture a key, unless it was captured since its slot was read; returns the cost."""
        value = self._databases[self._db].table.get(key)
        if isinstance(value, Stream):
            if value.capture_mark < self._number:
                return self._take_stream(self._db, key, value, found)
        elif value is not None and key not in self._done[self._db]:
            found.append(self._take_string(self._db, key, value))
            return _OTHER_KEY_COST
        return 1

    def close(self) -> None:
        """End a complete or cancelled capture."""
        remove_capture(self._keyspace, self)
