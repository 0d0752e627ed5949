"""What a server holds, in the plainest form: dicts and tuples, nothing packed, nothing clever.

The model of the commands and the replay of the effects both keep this, and `seen_in` reads the real
keyspace into the same form, so that any two of the three can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from millstream.storage.group import Group as RealGroup
from millstream.storage.keyspace import Keyspace
from millstream.storage.stream import Stream as RealStream

EntryId = tuple[int, int]
Retry = tuple[int, int]  # retry_ms, expire_ms
ZERO: EntryId = (0, 0)


@dataclass(slots=True)
class Pending:
    """An entry given out and not acknowledged; without a retry it is never given out again."""

    first_ms: int
    last_ms: int
    deliveries: int
    retry: Retry | None
    owner: bytes = b""

    def due_ms(self, with_zero: bool) -> int | None:
        if self.retry is None or (self.retry[0] == 0 and not with_zero):
            return None
        return self.last_ms + self.retry[0]

    def expires_ms(self) -> int | None:
        if self.retry is None or self.retry[1] == 0:
            return None
        return self.first_ms + self.retry[1]

    def is_due(self, now_ms: int, with_zero: bool) -> bool:
        due_ms = self.due_ms(with_zero)
        return due_ms is not None and due_ms <= now_ms

    def has_expired(self, now_ms: int) -> bool:
        expires_ms = self.expires_ms()
        return expires_ms is not None and expires_ms <= now_ms

    def copy(self) -> Pending:
        return Pending(self.first_ms, self.last_ms, self.deliveries, self.retry, self.owner)


@dataclass(slots=True)
class Group:
    offset: EntryId
    gap_floor: EntryId
    ttl_ms: int
    last_used_ms: int
    entries_read: int = -1
    consumers: dict[bytes, None] = field(default_factory=dict)
    pending: dict[EntryId, Pending] = field(default_factory=dict)

    def copy(self) -> Group:
        pending = {entry_id: record.copy() for entry_id, record in self.pending.items()}
        return Group(
            self.offset, self.gap_floor, self.ttl_ms, self.last_used_ms, self.entries_read,
            dict(self.consumers), pending,
        )  # fmt: skip


@dataclass(slots=True)
class Stream:
    incarnation: int
    entries: dict[EntryId, tuple[bytes, ...]] = field(default_factory=dict)
    last_id: EntryId = ZERO
    max_evicted: EntryId = ZERO
    max_deleted: EntryId = ZERO
    entries_added: int = 0
    entries_evicted: int = 0
    entries_deleted: int = 0
    groups: dict[bytes, Group] = field(default_factory=dict)

    def append(self, entry_id: EntryId, words: tuple[bytes, ...]) -> None:
        assert entry_id > self.last_id, f"{entry_id} is not above {self.last_id}"
        self.entries[entry_id] = words
        self.last_id = entry_id
        self.entries_added += 1

    def evict(self, gone: list[EntryId]) -> int:
        for entry_id in gone:
            del self.entries[entry_id]
            self.max_evicted = max(self.max_evicted, entry_id)
        self.entries_evicted += len(gone)
        return len(gone)

    def delete(self, entry_id: EntryId) -> bool:
        if self.entries.pop(entry_id, None) is None:
            return False
        self.entries_deleted += 1
        self.max_deleted = max(self.max_deleted, entry_id)
        return True

    def make_group(self, name: bytes, offset: EntryId, ttl_ms: int, now_ms: int) -> Group:
        floor = self.max_evicted if offset == ZERO else ZERO
        group = self.groups[name] = Group(offset, floor, ttl_ms, now_ms)
        return group

    def newer(self, after: EntryId) -> list[EntryId]:
        return [entry_id for entry_id in self.entries if entry_id > after]

    def copy(self) -> Stream:
        groups = {name: group.copy() for name, group in self.groups.items()}
        return Stream(
            self.incarnation, dict(self.entries), self.last_id, self.max_evicted, self.max_deleted,
            self.entries_added, self.entries_evicted, self.entries_deleted, groups,
        )  # fmt: skip


Value = Stream | bytes


@dataclass(slots=True)
class Data:
    """All databases; `ever` are the entries that were ever appended, by (db, key, id)."""

    databases: list[dict[bytes, Value]] = field(default_factory=lambda: [{} for _ in range(16)])
    ever: set[tuple[int, bytes, EntryId]] = field(default_factory=set)

    def copy(self) -> Data:
        databases = [
            {key: value.copy() if isinstance(value, Stream) else value for key, value in db.items()}
            for db in self.databases
        ]
        return Data(databases, set(self.ever))


# ------------------------------------------------------------------------------------- comparing


def shown(data: Data) -> dict[str, Any]:
    """As nested dicts with names, for `difference`; times of last use are left out."""
    return {
        f"db {number}": {key: _shown_value(value) for key, value in db.items()}
        for number, db in enumerate(data.databases)
        if db
    }


def _shown_value(value: Value) -> object:
    if isinstance(value, bytes):
        return value
    return {
        "entries": dict(value.entries),
        "last id": value.last_id,
        "max evicted": value.max_evicted,
        "max deleted": value.max_deleted,
        "counters": (value.entries_added, value.entries_evicted, value.entries_deleted),
        "incarnation": value.incarnation,
        "groups": {name: _shown_group(group) for name, group in value.groups.items()},
    }


def _shown_group(group: Group) -> dict[str, object]:
    return {
        "offset": group.offset,
        "gap floor": group.gap_floor,
        "ttl": group.ttl_ms,
        "entries read": group.entries_read,
        "consumers": sorted(group.consumers),
        "pending": {
            entry_id: (record.first_ms, record.last_ms, record.deliveries, record.retry,
                       record.owner)
            for entry_id, record in group.pending.items()
        },
    }  # fmt: skip


def seen_in(keyspace: Keyspace) -> dict[str, Any]:
    """The real keyspace in the form of `shown`; checks its structures on the way."""
    return {
        f"db {db.index}": {key: _seen_value(db.get(key)) for key in db.keys()}  # noqa: SIM118
        for db in keyspace.databases
        if len(db)
    }


def _seen_value(value: RealStream | bytes | None) -> object:
    if not isinstance(value, RealStream):
        return value
    value.check()
    return {
        "entries": {(ms, seq): tuple(words) for ms, seq, words in value.range()},
        "last id": value.last_id,
        "max evicted": value.max_evicted_id,
        "max deleted": value.max_deleted_id,
        "counters": (value.entries_added, value.entries_evicted, value.entries_deleted),
        "incarnation": value.incarnation,
        "groups": {name: _seen_group(group) for name, group in value.groups.items()},
    }


def _seen_group(group: RealGroup) -> dict[str, object]:
    meta = group.dump()
    return {
        "offset": (group.offset_ms, group.offset_seq),
        "gap floor": tuple(meta["gap_floor"]),
        "ttl": group.ttl_ms,
        "entries read": group.entries_read,
        "consumers": sorted(group.consumers),
        "pending": {
            (ms, seq): (first_ms, last_ms, deliveries,
                        None if retry_ms is None else (retry_ms, expire_ms), owner)
            for ms, seq, owner, last_ms, deliveries, first_ms, retry_ms, expire_ms
            in group.pending()
        },
    }  # fmt: skip


def without(tree: Any, *names: str) -> Any:
    """The same without these entries, for what one of the two sides does not know."""
    if not isinstance(tree, dict):
        return tree
    return {name: without(value, *names) for name, value in tree.items() if name not in names}


def difference(left: Any, right: Any, where: str = "") -> str | None:
    """The first difference of two trees in words, None when they are equal."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in [*left, *(name for name in right if name not in left)]:
            here = f"{where}/{name!r}"
            if name not in left or name not in right:
                only, side = (left, "first") if name in left else (right, "second")
                return f"{here} is only in the {side}: {only[name]!r}"
            found = difference(left[name], right[name], here)
            if found is not None:
                return found
        return None
    return None if left == right else f"{where}: {left!r} is not {right!r}"
