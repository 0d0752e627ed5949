"""SWAPDB: two databases exchange their keys; clients that wait or watch stay in their database."""

from __future__ import annotations

from millstream.storage.keyspace.database import Database
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream


def swap_databases(keyspace: Keyspace, first: int, second: int) -> None:
    a, b = keyspace.databases[first], keyspace.databases[second]
    if a is b:
        return
    _note_changes(a, b)
    a.exchange(b)
    keyspace.expiry_noted = True
    for db in (a, b):
        _schedule(db)
        for key in db.waiting:
            db.mark_ready(key)


def _note_changes(a: Database, b: Database) -> None:
    for db in (a, b):
        for key in db.watched:
            # An expired key does not exist, and its removal does not change the other database's
            # key.
            a.get(key)
            b.get(key)
    for db in (a, b):
        for key, watch in db.watched.items():
            watch.changes += key in a.table or key in b.table


def _schedule(db: Database) -> None:
    """Schedule the timers of groups, policies and scheduled entries under the new database."""
    for key, value in db.table.items():
        if isinstance(value, Stream) and (
            value.groups
            or value.policy is not None
            or value.held is not None
            or value.schedule is not None
        ):
            db.schedule_groups(key, value)
