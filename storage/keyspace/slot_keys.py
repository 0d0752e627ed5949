"""The keys of a database that are in certain cluster slots, and all others."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.database import GROWING, Database
from millstream.storage.streams.stream import Stream

_SAMPLE = 1000


def keys_of_slots(db: Database, slots: Iterable[int]) -> list[bytes]:
    """The keys of these cluster slots."""
    return some_keys_of(db, slots, len(db.table))


def some_keys_of(db: Database, slots: Iterable[int], most: int) -> list[bytes]:
    """At most this number of keys of these cluster slots."""
    found: list[bytes] = []
    if db.keyspace.clustered:
        for slot in slots:
            if len(found) >= most:
                break
            found += db.slots.keys_in(slot, most - len(found))
        return found
    wanted = frozenset(slots)
    return list(islice((key for key in db.table if cluster_slot_of(key) in wanted), most))


def visible_count(db: Database) -> int:
    """The number of keys, without those in hidden slots."""
    hidden = db.keyspace.hidden_slots
    return len(db) - (sum(map(db.slots.count_in, hidden)) if hidden else 0)


class Expiring(NamedTuple):
    """The number of keys with an expiry, and the average of their remaining times."""

    keys: int
    average_ttl_ms: int


def visible_expiring(db: Database) -> Expiring:
    """Those that are not in hidden slots; an estimate if many keys are hidden."""
    hidden = db.keyspace.hidden_slots
    if not hidden:
        return Expiring(db.expiring_count, db.average_ttl_ms())
    keys = some_keys_of(db, hidden, _SAMPLE)
    share = sum(key in db.expiries for key in keys) / max(1, len(keys))
    count = db.expiring_count - round(share * sum(map(db.slots.count_in, hidden)))
    some = (
        at for key, at in islice(db.expiries.items(), _SAMPLE) if cluster_slot_of(key) not in hidden
    )
    return Expiring(max(0, count), db.average_ttl_ms(some))


def flush(db: Database) -> int:
    """Remove every key that is not in a hidden slot; return their number."""
    hidden = db.keyspace.hidden_slots
    kept = []
    for key in keys_of_slots(db, hidden) if hidden else ():
        value = db.table[key]
        if value is GROWING:
            value = db.settle(key)
        # A capture reads the old tables, and learns nothing of changes in the new ones.
        db.before_change(key)
        kept.append((key, value, db.expiry_ms(key), db.idle_s(key)))
    count = db.clear() - len(kept)
    for key, value, expiry_ms, idle_s in kept:
        db.put(key, value)
        db.set_idle_s(key, idle_s)
        if expiry_ms:
            db.note_expiry(key, expiry_ms)
        if isinstance(value, Stream):
            db.schedule_groups(key, value)
    return count
