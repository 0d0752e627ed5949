"""WATCH: detects changes of a key since a client began to watch it.

A database counts how often each watched key was set or removed or got an expiry. Streams also
change in place, which their counters show.
"""

from __future__ import annotations

from millstream.storage.keyspace.database import Database
from millstream.storage.streams.stream import Stream


class Watch:
    """The changes of a watched key, and how many clients watch it."""

    __slots__ = ("changes", "holders")

    def __init__(self) -> None:
        self.changes = 0
        self.holders = 0


# A key's Watch, its number of changes, whether it was missing, and the result of `_marks_of`.
State = tuple[Watch, int, bool, object]


def begin_watch(db: Database, key: bytes) -> State:
    """Begin to watch a key: its state now, for `is_changed`. End it with `end_watch`."""
    value = db.get(key)
    watch = db.watched.get(key)
    if watch is None:
        watch = db.watched[key] = Watch()
    watch.holders += 1
    return watch, watch.changes, value is None, _marks_of(value)


def is_changed(db: Database, key: bytes, state: State) -> bool:
    """True if a watched key was changed since `begin_watch` gave this state."""
    watch, changes, absent, marks = state
    value = db.get(key)
    # An expired key that must not be deleted yet does not exist, without a counted change.
    return watch.changes != changes or (value is None) != absent or _marks_of(value) != marks


def end_watch(db: Database, key: bytes, state: State) -> None:
    watch = state[0]
    watch.holders -= 1
    if not watch.holders:
        del db.watched[key]


def _marks_of(value: bytes | Stream | None) -> object:
    """Values that differ after a stream was changed in place; other types of values are
    replaced."""
    if not isinstance(value, Stream):
        return None
    return (
        value.incarnation,
        value.entries_added,
        value.length,
        value.entries_deleted,
        value.entries_evicted,
        value.last_id,
        value.max_deleted_id,
        0 if value.schedule is None else (value.schedule.last_number, len(value.schedule)),
    )
