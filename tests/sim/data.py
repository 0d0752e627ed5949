"""A server's data in a simple form: dicts and tuples, nothing packed.

The model of the commands and the replay of the effects both use this form, and `seen_in` converts
the real keyspace to it, so that any two of the three can be compared. Unit tests run `Group`
against the real groups with steps of Hypothesis.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.support.history import Found, FoundGroup, FoundStream
from tests.support.storage_access import check_stream, key_entries

from millstream.storage.groups.dead_entries import dead_entries
from millstream.storage.groups.group import Group as RealGroup
from millstream.storage.groups.group import copied_rules
from millstream.storage.groups.group_snapshot import dump_group
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.head_eviction import missed_by
from millstream.storage.streams.stream import Stream as RealStream

EntryId = tuple[int, int]
Retry = tuple[int, int]  # retry_ms, expire_ms
ZERO: EntryId = (0, 0)
COUNT_MAX = 2**63 - 1  # of deliveries
NEVER_MS = 2**64 - 1


def rounded_up(span_ms: int) -> int:
    """Above a second in 50 steps for each first digit of the number's power of ten."""
    if span_ms <= 1000:
        return span_ms
    step = 10 ** (len(str(span_ms)) - 1) // 50
    return -(-span_ms // step) * step


@dataclass(slots=True)
class Pending:
    """An entry delivered and not acknowledged; without a retry it is never redelivered, or after
    the timeout of its group, which had none before."""

    first_ms: int
    last_ms: int
    deliveries: int
    retry: Retry | None
    owner: bytes = b""
    order: int = field(
        default=0, compare=False
    )  # among those last delivered in the same millisecond
    waiting: bool = False  # given back in a managed group
    dead: tuple[bytes, bytes, bytes] | None = None  # ended without a copy: reason, consumer, text

    def due_ms(self, with_zero: bool, timeout_ms: int = 0) -> int | None:
        if self.waiting and self.retry is not None:
            return self.last_ms + self.retry[0]
        retry = self.retry or ((timeout_ms, 0) if timeout_ms else None)
        if retry is None or (retry[0] == 0 and not with_zero):
            return None
        # An entry released by XNACK is due immediately.
        return 0 if self.last_ms == 0 and not self.owner else self.last_ms + retry[0]

    def expires_ms(self) -> int | None:
        if self.retry is None or self.retry[1] == 0:
            return None
        return self.first_ms + self.retry[1]

    def is_due(self, now_ms: int, with_zero: bool, timeout_ms: int = 0) -> bool:
        due_ms = self.due_ms(with_zero, timeout_ms)
        return due_ms is not None and due_ms <= now_ms

    def has_expired(self, now_ms: int) -> bool:
        expires_ms = self.expires_ms()
        return expires_ms is not None and expires_ms <= now_ms

    def copy(self) -> Pending:
        return Pending(self.first_ms, self.last_ms, self.deliveries, self.retry, self.owner,
                       waiting=self.waiting, dead=self.dead)  # fmt: skip

    def give_back(self, now_ms: int, deliveries: int, delay_ms: int) -> None:
        """Wait without an owner; the expiry stays."""
        self.owner, self.last_ms, self.deliveries, self.waiting = b"", now_ms, deliveries, True
        self.retry = delay_ms, 0 if self.retry is None else self.retry[1]

    def die(self, facts: tuple[bytes, bytes, bytes]) -> None:
        """Wait forever, without an expiry."""
        self.owner, self.waiting, self.retry, self.dead = b"", True, (NEVER_MS, 0), facts

    def extend(self, now_ms: int, span_ms: int) -> None:
        self.last_ms = now_ms
        self.retry = span_ms, 0 if self.retry is None else self.retry[1]

    def take(self, owner: bytes, now_ms: int, retry: Retry | None) -> None:
        """Another delivery, or a claim, to this owner."""
        self.owner, self.last_ms, self.retry, self.waiting = owner, now_ms, retry, False
        self.dead = None


@dataclass(slots=True)
class Group:
    offset: EntryId
    gap_floor: EntryId
    ttl_ms: int
    last_used_ms: int
    entries_read: int = -1
    missed: int = 0  # entries that were trimmed before the group read them
    consumers: dict[bytes, None] = field(default_factory=dict)
    pending: dict[EntryId, Pending] = field(default_factory=dict)
    deliveries: int = 0  # since the first one that was not new
    timeout_ms: int = 0  # 0: not managed
    backoff_ms: tuple[int, ...] = ()
    rules: dict[str, Any] = field(default_factory=dict)  # the others that are set, by their names
    dead_letters: dict[bytes, int] = field(default_factory=dict)  # copies by reason
    # In an ordered group: the keys of pending entries, and those of parked ones.
    keys: dict[EntryId, bytes] = field(default_factory=dict)
    parked: dict[EntryId, bytes] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        """The number of entries that readers hold."""
        return sum(not record.waiting for record in self.pending.values())

    def matches(self, words: tuple[bytes, ...]) -> bool:
        """True if the filter of the group matches these fields, of which none is repeated."""
        return matches(self.rules.get("where", []), dict(zip(words[::2], words[1::2], strict=True)))

    def key_of(self, words: tuple[bytes, ...]) -> bytes | None:
        """The key of an entry with these fields; None if it is not ordered."""
        kind, name, _ = self.rules.get("order", (b"NONE", b"", 0))
        if kind == b"FIELD":
            return dict(zip(words[::2], words[1::2], strict=True)).get(name)
        return b"" if kind == b"ALL" else None

    def of_its_key(self, entry_id: EntryId) -> list[EntryId]:
        """The other pending entries of an entry's key."""
        value = self.keys.get(entry_id)
        if value is None:
            return []
        return [other for other, one in self.keys.items() if one == value and other != entry_id]

    def note(self, record: Pending, again: bool = True) -> None:
        """Record a delivery as the latest one."""
        if again or self.deliveries:
            self.deliveries += 1
            record.order = self.deliveries

    def due(self, now_ms: int, with_zero: bool) -> list[EntryId]:
        """The entries due for redelivery: earliest due first, then by ID."""
        due = [
            (record.due_ms(with_zero, self.timeout_ms), entry_id)
            for entry_id, record in self.pending.items()
            if record.is_due(now_ms, with_zero, self.timeout_ms)
        ]
        return [entry_id for _, entry_id in sorted(due)]  # type: ignore[type-var]

    def expired(self, now_ms: int) -> list[EntryId]:
        return [entry_id for entry_id, r in self.pending.items() if r.has_expired(now_ms)]

    def idle(self, now_ms: int, min_idle_ms: int) -> list[EntryId]:
        """The entries idle for at least min_idle_ms: longest idle first, then in the order of
        their deliveries."""
        found = [
            (record.last_ms, record.order, entry_id)
            for entry_id, record in self.pending.items()
            if record.last_ms + min_idle_ms <= now_ms and not record.waiting
        ]
        return [entry_id for _, _, entry_id in sorted(found)]

    def redeliver(self, entry_id: EntryId, now_ms: int, retry: Retry | None) -> None:
        """Count another delivery of a pending entry; a retry replaces its own."""
        record = self.pending[entry_id]
        record.last_ms, record.waiting = now_ms, False
        record.deliveries = min(record.deliveries + 1, COUNT_MAX)
        record.retry = retry or record.retry

    def take(self, entry_id: EntryId, owner: bytes, now_ms: int, retry: Retry) -> None:
        """Deliver a pending entry of a managed group again, to this owner."""
        record = self.pending[entry_id]
        record.take(owner, now_ms, retry)
        record.deliveries = min(record.deliveries + 1, COUNT_MAX)

    def give_back(self, entry_id: EntryId, now_ms: int, mode: bytes, delay_ms: int | None) -> None:
        """SILENT or FAIL, with this delay or that of the group; or FATAL: the entry is dead."""
        record = self.pending[entry_id]
        count = record.deliveries
        if mode == b"SILENT":
            record.give_back(now_ms, max(count - 1, 0), delay_ms or 0)
            return
        if mode == b"FATAL":
            record.die((b"fatal", record.owner, b""))
            return
        delays = self.backoff_ms or (0,)
        if delay_ms is None:
            delay_ms = delays[min(max(count, 1), len(delays)) - 1]
        record.give_back(now_ms, record.deliveries, delay_ms)

    def held_by(self, name: bytes) -> list[EntryId]:
        """The entries that a consumer holds, or (with b"") readers without a name."""
        return sorted(i for i, r in self.pending.items() if r.owner == name and not r.waiting)

    def claimed_retry(self, now_ms: int, delivery_ms: int) -> Retry | None:
        """The retry of an entry that is claimed now, with this last delivery."""
        if self.timeout_ms == 0:
            return None
        if delivery_ms >= now_ms:
            return self.timeout_ms, 0
        return rounded_up(self.timeout_ms + now_ms - delivery_ms), 0

    def owned_by(self, name: bytes) -> list[EntryId]:
        return [entry_id for entry_id, r in self.pending.items() if r.owner == name]

    def holds(self, entry_id: EntryId) -> bool:
        """True if the group has not read this ID yet, or has it pending or parked."""
        is_known = entry_id in self.pending or entry_id in self.parked
        return entry_id > self.offset or is_known

    def forget(self, ids: Iterable[EntryId]) -> None:
        """Remove IDs from the pending and the parked entries."""
        for entry_id in ids:
            for rows in (self.pending, self.parked, self.keys):
                rows.pop(entry_id, None)  # type: ignore[attr-defined]

    def copy(self) -> Group:
        pending = {entry_id: record.copy() for entry_id, record in self.pending.items()}
        return Group(
            self.offset, self.gap_floor, self.ttl_ms, self.last_used_ms, self.entries_read,
            self.missed, dict(self.consumers), pending, 0, self.timeout_ms, self.backoff_ms,
            dict(self.rules), dict(self.dead_letters), dict(self.keys), dict(self.parked),
        )  # fmt: skip


def matches(where: list[bytes], fields: dict[bytes, bytes]) -> bool:
    """True if all conditions hold. `where` has the words of EQ, PREFIX, IN and BETWEEN with whole
    numbers."""
    words = iter(where)
    for name in words:
        operator, value = next(words), fields.get(name)
        if operator == b"IN":
            holds = value in [next(words) for _ in range(int(next(words)))]
        elif operator == b"BETWEEN":
            least, most = int(next(words)), int(next(words))
            holds = value is not None and value.isdigit() and least <= int(value) <= most
        else:
            operand = next(words)
            holds = value == operand if operator == b"EQ" else (value or b"").startswith(operand)
            holds = holds and value is not None
        if not holds:
            return False
    return True


Message = tuple[bytes, bytes]  # producer, iid
# Entries, milliseconds, bytes, exact; with EVICT also its number and the three hard limits.
Policy = tuple[int, ...]


@dataclass(slots=True)
class Once:
    """The messages that a stream keeps, in the order of arrival."""

    duration_s: int = 100
    maxsize: int = 100
    seen: dict[Message, tuple[EntryId, int]] = field(default_factory=dict)

    def find(self, producer: bytes, iid: bytes, now_ms: int) -> EntryId | None:
        entry_id, at_ms = self.seen.get((producer, iid), (None, 0))
        return entry_id if at_ms + self.duration_s * 1000 > now_ms else None

    def add(self, producer: bytes, iid: bytes, entry_id: EntryId, at_ms: int) -> None:
        before = [seen[1] for message, seen in self.seen.items() if message[0] == producer]
        self.seen.pop((producer, iid), None)
        self.seen[producer, iid] = entry_id, max([at_ms, *before[-1:]])
        of_it = [message for message in self.seen if message[0] == producer]
        for message in of_it[: -self.maxsize]:
            del self.seen[message]

    def configure(self, duration_s: int, maxsize: int) -> None:
        if (duration_s, maxsize) != (self.duration_s, self.maxsize):
            self.seen.clear()
        self.duration_s, self.maxsize = duration_s, maxsize

    def copy(self) -> Once:
        return Once(self.duration_s, self.maxsize, dict(self.seen))


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
    once: Once = field(default_factory=Once)
    policy: Policy | None = None
    producers: dict[bytes, int] = field(default_factory=dict)  # the longest silent first
    # Entries deleted after the first entry: they use bytes until their block is evicted.
    ghosts: dict[EntryId, tuple[bytes, ...]] = field(default_factory=dict)
    # Names and fields by their tickets, and the number of the last ticket.
    scheduled: dict[EntryId, tuple[bytes, tuple[bytes, ...]]] = field(default_factory=dict)
    last_number: int = 0

    def put_scheduled(self, ticket: EntryId, name: bytes, words: tuple[bytes, ...]) -> None:
        self.scheduled[ticket] = name, words
        self.last_number = ticket[1]

    def cancel_named(self, name: bytes) -> bool:
        """Cancel the scheduled entry with a name; False when there is none."""
        found = [ticket for ticket, (known, _) in self.scheduled.items() if name and known == name]
        for ticket in found:
            del self.scheduled[ticket]
        return bool(found)

    def append(self, entry_id: EntryId, words: tuple[bytes, ...]) -> None:
        assert entry_id > self.last_id, f"{entry_id} is not above {self.last_id}"
        self.entries[entry_id] = words
        self.last_id = entry_id
        self.entries_added += 1

    def note_producer(self, name: bytes, seq: int) -> None:
        self.producers.pop(name, None)
        self.producers[name] = seq

    def evict(self, gone: list[EntryId]) -> int:
        for entry_id in gone:
            self.ghosts[entry_id] = self.entries.pop(entry_id)
            self.max_evicted = max(self.max_evicted, entry_id)
        for group in self.groups.values():
            group.missed += sum(entry_id > group.offset for entry_id in gone)
        self.entries_evicted += len(gone)
        first = next(iter(self.entries), None)
        for entry_id in [i for i in self.ghosts if first is None or i < first]:
            del self.ghosts[entry_id]
        return len(gone)

    def over_age(self, now_ms: int, grace_ms: int = 0) -> list[EntryId]:
        """The entries that have been too old for the policy for at least grace_ms."""
        max_age_ms = self.policy[1] if self.policy is not None else 0
        oldest_ms = now_ms - max_age_ms - grace_ms
        return [entry_id for entry_id in self.entries if max_age_ms and entry_id[0] <= oldest_ms]

    def delete(self, entry_id: EntryId) -> bool:
        words = self.entries.pop(entry_id, None)
        if words is None:
            return False
        self.ghosts[entry_id] = words
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
            self.once.copy(), self.policy, dict(self.producers), dict(self.ghosts),
            dict(self.scheduled), self.last_number,
        )  # fmt: skip


Value = Stream | bytes


@dataclass(slots=True)
class Data:
    """All databases, and the expiries of their keys; `ever` are the entries that ever existed at a
    key, by (db, key, ID). A stream keeps `producers_max` producers."""

    databases: list[dict[bytes, Value]] = field(default_factory=lambda: [{} for _ in range(16)])
    expiries: list[dict[bytes, int]] = field(default_factory=lambda: [{} for _ in range(16)])
    ever: set[tuple[int, bytes, EntryId]] = field(default_factory=set)
    producers_max: int = 100_000

    def put(self, db: int, key: bytes, value: Value, keep_expiry: bool = False) -> None:
        self.databases[db][key] = value
        if not keep_expiry:
            self.expiries[db].pop(key, None)

    def drop(self, db: int, key: bytes) -> None:
        del self.databases[db][key]
        self.expiries[db].pop(key, None)

    def move(self, db: int, key: bytes, to: int, new_key: bytes) -> None:
        """Move the value and its expiry."""
        value, expiry_ms = self.databases[db][key], self.expiries[db].get(key)
        self.drop(db, key)
        self._place(to, new_key, value, expiry_ms)

    def duplicate(self, db: int, key: bytes, to: int, new_key: bytes, incarnation: int) -> None:
        value = self.databases[db][key]
        if isinstance(value, Stream):
            value = value.copy()
            value.incarnation, value.scheduled, value.last_number = incarnation, {}, 0
        self._place(to, new_key, value, self.expiries[db].get(key))

    def _place(self, db: int, key: bytes, value: Value, expiry_ms: int | None) -> None:
        self.put(db, key, value)
        if expiry_ms is not None:
            self.expiries[db][key] = expiry_ms
        if isinstance(value, Stream):
            self.ever |= {(db, key, entry_id) for entry_id in value.entries}

    def clear(self, db: int) -> None:
        self.databases[db].clear()
        self.expiries[db].clear()

    def swap(self, first: int, second: int) -> None:
        for rows in (self.databases, self.expiries):
            rows[first], rows[second] = rows[second], rows[first]  # type: ignore[index]
        self.ever |= {
            (db, key, entry_id)
            for db in (first, second)
            for key, value in self.databases[db].items()
            if isinstance(value, Stream)
            for entry_id in value.entries
        }

    def copy(self) -> Data:
        databases = [
            {key: value.copy() if isinstance(value, Stream) else value for key, value in db.items()}
            for db in self.databases
        ]
        expiries = [dict(db) for db in self.expiries]
        return Data(databases, expiries, set(self.ever), self.producers_max)


# ------------------------------------------------------------------------------------- comparing


def shown(data: Data) -> dict[str, Any]:
    """The data as nested dicts with names, for `difference`, without times of last use."""
    return {
        f"db {number}": {
            key: _shown_key(_shown_value(value), expiries.get(key, 0)) for key, value in db.items()
        }
        for number, (db, expiries) in enumerate(zip(data.databases, data.expiries, strict=True))
        if db
    }


def _shown_key(value: object, expiry_ms: int) -> dict[str, object]:
    return {"value": value, "expires": expiry_ms}


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
        "once": (value.once.duration_s, value.once.maxsize, _shown_messages(value.once)),
        "policy": value.policy,
        "producers": list(value.producers.items()),
        "scheduled": (value.last_number, dict(value.scheduled)),
    }


def _shown_messages(once: Once) -> list[object]:
    """The messages without expired ones: the server may remove these at any time."""
    newest_ms = max((at_ms for _, at_ms in once.seen.values()), default=0)
    return [
        (*message, *seen)
        for message, seen in sorted(once.seen.items())
        if seen[1] + once.duration_s * 1000 > newest_ms
    ]


def _shown_group(group: Group) -> dict[str, object]:
    return {
        "offset": group.offset,
        "gap floor": group.gap_floor,
        "ttl": group.ttl_ms,
        "rules": (group.timeout_ms, group.backoff_ms, group.rules),
        "dead letters": group.dead_letters,
        "keys": (sorted(group.parked), sorted(group.keys)),
        "entries read": group.entries_read,
        "missed": group.missed,
        "consumers": sorted(group.consumers),
        "pending": {
            entry_id: (record.first_ms, record.last_ms, record.deliveries, record.retry,
                       record.owner, record.waiting, record.dead)
            for entry_id, record in group.pending.items()
        },
    }  # fmt: skip


def seen_in(keyspace: Keyspace, now_ms: int = 0) -> dict[str, Any]:
    """The real keyspace in the form of `shown`; also checks its structures. Keys that expired
    before `now_ms` are left out, and so are due entries of groups while deletions are not allowed.
    Nothing is deleted."""
    due_ms = 0 if keyspace.may_delete else now_ms
    was, keyspace.expiring = keyspace.expiring, False
    try:
        seen = {
            f"db {db.index}": {
                key: _shown_key(_seen_value(db.get(key), due_ms), db.expiry_ms(key))
                for key in db.keys()  # noqa: SIM118
                if db.expiry_ms(key) == 0 or db.expiry_ms(key) > now_ms
            }
            for db in keyspace.databases
        }
    finally:
        keyspace.expiring = was
    return {name: keys for name, keys in seen.items() if keys}


def _seen_value(value: RealStream | bytes | None, due_ms: int) -> object:
    if not isinstance(value, RealStream):
        return value
    check_stream(value)
    return {
        "entries": {(ms, seq): tuple(words) for ms, seq, words in value.range()},
        "last id": value.last_id,
        "max evicted": value.max_evicted_id,
        "max deleted": value.max_deleted_id,
        "counters": (value.entries_added, value.entries_evicted, value.entries_deleted),
        "incarnation": value.incarnation,
        "groups": {
            name: _seen_group(value, group, due_ms)
            for name, group in value.groups.items()
            if not _is_over(group, due_ms)
        },
        "once": _seen_once(value),
        "policy": None if value.policy is None else tuple(value.policy.dump()),
        "producers": [] if value.producers is None else list(value.producers.dump().items()),
        "scheduled": _seen_scheduled(value),
    }


def _seen_scheduled(stream: RealStream) -> tuple[object, ...]:
    schedule = stream.schedule
    if schedule is None:
        return 0, {}
    entries = {
        (entry.due_ms, entry.number): (entry.name or b"", tuple(entry.fields))
        for page in schedule.share()
        for entry in page
    }
    return schedule.last_number, entries


def _seen_once(stream: RealStream) -> tuple[object, ...]:
    once = Once()
    if stream.idempotence is not None:
        meta = stream.idempotence.dump()
        once.duration_s, once.maxsize = meta["duration_s"], meta["maxsize"]
        for producer, rows in meta["producers"]:
            for iid, ms, seq, at_ms in rows:
                once.seen[producer, iid] = (ms, seq), at_ms
    return once.duration_s, once.maxsize, _shown_messages(once)


def _is_over(group: RealGroup, due_ms: int) -> bool:
    return group.is_over(due_ms)


def _seen_group(stream: RealStream, group: RealGroup, due_ms: int) -> dict[str, object]:
    meta = dump_group(group)
    dead = dead_entries(group.pending)
    place = group.recorded_place
    return {
        "offset": tuple(place["offset"]),
        "gap floor": tuple(meta["gap_floor"]),
        "ttl": group.ttl_ms,
        "rules": (group.timeout_ms, group.backoff_ms, _other_rules(group)),
        "dead letters": dict(group.dead_letters),
        "keys": key_entries(group),
        "entries read": place["entries_read"],
        "missed": missed_by(stream, group),
        "consumers": sorted(group.pending.consumers),
        "pending": {
            (ms, seq): (first_ms, last_ms, deliveries,
                        None if retry_ms is None else (retry_ms, expire_ms), owner,
                        group.pending.is_waiting(ms, seq), dead.get((ms, seq)))
            for ms, seq, owner, last_ms, deliveries, first_ms, retry_ms, expire_ms
            in group.pending.rows()
            if not expire_ms or first_ms + expire_ms > due_ms
        },
    }  # fmt: skip


def _other_rules(group: RealGroup) -> dict[str, Any]:
    rules = copied_rules(group)
    return {name: rules[name] for name in rules if name not in ("timeout_ms", "backoff_ms")}


def without(tree: Any, *names: str) -> Any:
    """The tree without these entries, which only one of the two sides has."""
    if not isinstance(tree, dict):
        return tree
    return {name: without(value, *names) for name, value in tree.items() if name not in names}


def difference(left: Any, right: Any, where: str = "") -> str | None:
    """A description of the first difference of two trees; None when they are equal."""
    if left == right:
        return None
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
    return f"{where}: {left!r} is not {right!r}"


def found_in(data: Data) -> Found:
    """The data that a client would find, for the history."""
    found: dict[tuple[int, bytes], FoundStream | bytes] = {}
    for db, values in enumerate(data.databases):
        for key, value in values.items():
            found[db, key] = _found_stream(value) if isinstance(value, Stream) else value
    return found


def _found_stream(stream: Stream) -> FoundStream:
    groups = {
        name: FoundGroup(group.offset, set(group.pending)) for name, group in stream.groups.items()
    }
    return FoundStream(list(stream.entries.items()), groups)
