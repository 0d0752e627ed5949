"""Dead letters of all groups: the number of copies, and the groups with dead entries, which wait
for theirs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from millstream.storage.groups.dead_entries import dead_count
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

Place = tuple[int, bytes, bytes]
"""A database, a key and a group."""
LOG_EVERY_MS = 1000


class DeadLetterTotals:
    """`copied` counts copies since the start. `places` has the groups that have dead entries, and
    perhaps some that have none any longer."""

    def __init__(self) -> None:
        self.copied = 0
        self.places: set[Place] = set()
        self._log_ms = 0
        self._unlogged = 0

    def note_dead(self, db_index: int, key: bytes, name: bytes) -> None:
        """Note that a group has dead entries."""
        self.places.add((db_index, key, name))

    def count_dead(self, databases: Sequence[Any]) -> int:
        """The number of dead entries of all groups."""
        found = 0
        for place in list(self.places):
            db_index, key, name = place
            hidden = databases[db_index].keyspace.hidden_slots
            if hidden and cluster_slot_of(key) in hidden:
                continue
            groups = getattr(databases[db_index].table.get(key), "groups", {})
            dead = dead_count(groups[name].pending) if name in groups else 0
            found += dead
            if not dead:
                self.places.discard(place)
        return found

    def unlogged_count(self, now_ms: int) -> int:
        """The number of dead entries that the log does not have yet, with a new one; 0 if the last
        line is less than a second old."""
        self._unlogged += 1
        if now_ms < self._log_ms:
            return 0
        self._log_ms = now_ms + LOG_EVERY_MS
        unlogged, self._unlogged = self._unlogged, 0
        return unlogged
