"""Captures a keyspace at a point in time, in steps while commands run.

A snapshot needs neither a fork nor a pause: it walks the keys in slices. A key that will change
before its turn is captured first (`before_change`, called by storage/streams/keyspace).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from millstream.storage.blocks.skiplist import Blocks
from millstream.storage.streams.ordering import ordering_meta
from millstream.storage.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.storage.blocks.block import Block
    from millstream.storage.streams.keyspace import Database, Keyspace


class Captured:
    """One key at the beginning of the capture."""

    __slots__ = ("blocks", "db", "key", "kind", "meta")

    def __init__(
        self, db: int, key: bytes, kind: str, meta: dict[str, Any], blocks: Sequence[Block]
    ) -> None:
        self.db = db
        self.key = key
        self.kind = kind
        self.meta = meta
        self.blocks = blocks

    def free_step(self, most: int) -> bool:
        """Free about `most` of the blocks after use; False when none is left. Blocks that the
        stream has removed meanwhile have no other reference."""
        if isinstance(self.blocks, Blocks):
            return self.blocks.free_step(most)
        self.blocks = []
        return False


class Capture:
    """A capture in progress. `looked_at` counts the keys and slots that `step` has read, for
    tests."""

    def __init__(self, keyspace: Keyspace, number: int) -> None:
        self.looked_at = 0
        self._keyspace = keyspace
        self._number = number
        for db in keyspace.databases:
            db.settle_all()
        # References to the tables: FLUSHALL gives a database a new table and does not change these.
        self._tables = [db.table for db in keyspace.databases]
        # Slots that are added later contain only new keys.
        self._slots = [db.slots for db in keyspace.databases]
        self._expiries = [db.expiries for db in keyspace.databases]
        # SWAPDB moves tables; the capture has the database of each table at its beginning.
        self._places = {id(table): db for db, table in enumerate(self._tables)}
        self._early: list[Captured] = []
        self._done: list[set[bytes]] = [set() for _ in keyspace.databases]
        self._db = -1
        self._slot_numbers: Iterator[int] = iter(())
        self._keys: Iterator[bytes] = iter(())

    def before_change(self, database: Database, key: bytes, value: bytes | Stream | None) -> None:
        """Capture a key that will change (value None: it does not exist), unless it was captured
        before or its table is newer than the capture. Later values of the key do not belong to the
        capture."""
        db = self._places.get(id(database.table))
        if db is None:
            return
        if isinstance(value, Stream):
            if value.capture_mark != self._number:
                self._early.append(self._take_stream(db, key, value))
        elif key not in self._done[db]:
            self._done[db].add(key)
            if value is not None:
                self._early.append(self._take_string(db, key, value))

    def _take_string(self, db: int, key: bytes, value: bytes) -> Captured:
        self._done[db].add(key)
        return Captured(db, key, "string", self._with_expiry(db, key, {"value": value}), [])

    def _take_stream(self, db: int, key: bytes, stream: Stream) -> Captured:
        meta, blocks = stream.dump(True)
        meta |= ordering_meta(stream)
        taken = Captured(db, key, "stream", self._with_expiry(db, key, meta), blocks)
        self._done[db].add(key)
        stream.capture_mark = self._number  # last: after a failure the stream is captured later
        return taken

    def _with_expiry(self, db: int, key: bytes, meta: dict[str, Any]) -> dict[str, Any]:
        expiry_ms = self._expiries[db].get(key)
        if expiry_ms is not None:
            meta["expires_ms"] = expiry_ms
        return meta

    def step(self, max_keys: int) -> list[Captured] | None:
        """The next keys, at most max_keys; None at the end. A step also reads at most about
        max_keys keys: an empty list means that all of them had been captured before."""
        found = self._early[-max_keys:]
        del self._early[-max_keys:]
        for _ in range(max_keys - len(found)):
            self.looked_at += 1
            key = next(self._keys, None)
            if key is None:
                if not self._next_slot():
                    return found or None
                continue
            value = self._tables[self._db].get(key)
            if isinstance(value, Stream):
                if value.capture_mark != self._number:
                    found.append(self._take_stream(self._db, key, value))
            elif value is not None and key not in self._done[self._db]:
                found.append(self._take_string(self._db, key, value))
        return found

    def _next_slot(self) -> bool:
        """Continue with the keys of the next slot. A slot has few keys, so they are listed in one
        step."""
        number = next(self._slot_numbers, None)
        while number is None:
            if self._db + 1 >= len(self._tables):
                return False
            self._db += 1
            self._slot_numbers = iter(list(self._slots[self._db]))
            number = next(self._slot_numbers, None)
        self._keys = iter(list(self._slots[self._db].get(number, ())))
        return True

    def close(self) -> None:
        """End a complete or cancelled capture."""
        self._keyspace.end_capture(self)
