"""Lists the keys of a database at one moment, in steps while keys are added and removed."""

from __future__ import annotations

from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.key_slots import SLOTS
from millstream.storage.keyspace.keyspace_core import DatabaseCore, KeyspaceCore


class KeyIterator:
    """Walks the keys that are not in hidden slots. It records the keys that are added meanwhile to
    slots not walked yet, to leave them out, and the keys that are removed, to list them at the end.
    Flushed tables are kept until the walk ends."""

    def __init__(self, keyspace: KeyspaceCore, database: DatabaseCore) -> None:
        self._keyspace = keyspace
        self._slots = database.slots
        self._expiries = database.expiries
        self._now_ms = keyspace.now_ms
        self._hidden = keyspace.hidden_slots
        self._slot = 0
        self._come: set[bytes] = set()
        self._gone: list[bytes] = []
        keyspace.walks.append(self)

    def note_come(self, slots: object, slot: int, key: bytes) -> None:
        """Note a new key in a table's slots: it is not part of the walk."""
        if slots is self._slots and slot >= self._slot:
            self._come.add(key)

    def note_gone(self, slots: object, slot: int, key: bytes) -> None:
        """Note a removed key: it is part of the walk, unless it was added or expired before."""
        if slots is self._slots and slot >= self._slot:
            if self._was_there(key):
                self._gone.append(key)
            self._come.discard(key)

    def _was_there(self, key: bytes) -> bool:
        """True if a key that exists, or is being removed, existed when the walk began."""
        if key in self._come:
            return False
        expiry_ms = self._expiries.get(key)
        return expiry_ms is None or not self._keyspace.expiring or expiry_ms > self._now_ms

    def step(self, most: int) -> list[bytes] | None:
        """The next keys; None at the end. Reads about `most` slots and keys."""
        found: list[bytes] = []
        while most > 0 and self._slot < SLOTS:
            slot = self._slots.used_from(self._slot)
            self._slot = slot + 1
            most -= 1
            keys = self._slots.keys_of(slot)
            most -= len(keys)
            if self._come or self._expiries:
                keys = [key for key in keys if self._was_there(key)]
            found += keys
        if most > 0:
            if not self._gone and not found:
                return None
            found += self._gone[-most:]
            del self._gone[-most:]
        if self._hidden:
            return [key for key in found if cluster_slot_of(key) not in self._hidden]
        return found

    def close(self) -> None:
        """End a complete or cancelled walk."""
        if self in self._keyspace.walks:
            self._keyspace.walks.remove(self)
