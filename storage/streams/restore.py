"""Restores a captured keyspace: key by key, then the times of its groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.storage.streams.ordering_snapshot import restore_ordering
from millstream.storage.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.storage.blocks.block import Block
    from millstream.storage.streams.keyspace import Keyspace


def restore_key(
    keyspace: Keyspace, db: int, key: bytes, kind: str, meta: dict[str, Any], blocks: list[Block]
) -> None:
    """Restore a captured key; ValueError when its parts are inconsistent."""
    if not 0 <= db < len(keyspace.databases):
        raise ValueError(f"it belongs to database {db}; there are {len(keyspace.databases)}")
    database = keyspace.databases[db]
    value = _value_of(keyspace, kind, meta, blocks)
    database.put(key, value)
    if "expires_ms" in meta:
        database.note_expiry(key, meta["expires_ms"])
    if isinstance(value, Stream):
        database.schedule_groups(key, value)


def _value_of(
    keyspace: Keyspace, kind: str, meta: dict[str, Any], blocks: list[Block]
) -> bytes | Stream:
    if kind == "stream":
        try:
            stream = Stream.load(meta, blocks, keyspace.steady_ms)
            restore_ordering(stream, meta, keyspace.steady_ms)
            return stream
        except (OverflowError, IndexError) as error:
            raise ValueError(f"a number is out of range: {error}") from error
    if kind == "string":
        value: bytes = meta["value"]
        return value
    raise ValueError(f"values of kind {kind!r} are not known to this version")


def continue_times(keyspace: Keyspace, steady_ms: int) -> None:
    """Restart the times to live of all groups and all leases at `steady_ms`, which is later than
    the time at which the data was loaded."""
    keyspace.steady_ms = steady_ms
    for db in keyspace.databases:
        for key, value in db.table.items():
            if isinstance(value, Stream) and (value.groups or value.held is not None):
                for group in value.groups.values():
                    group.last_used_ms = steady_ms
                if value.held is not None:
                    value.held.restart_leases(steady_ms)
                db.schedule_groups(key, value)


def restart_leases(keyspace: Keyspace, steady_ms: int) -> None:
    """Restart all leases: no writer could renew one while the data was loaded, which may have taken
    longer than a lease. The timers scheduled meanwhile name the streams."""
    for _, db_index, key, group in keyspace.timer_requests:
        value = keyspace.databases[db_index].table.get(key) if group is None else None
        if isinstance(value, Stream) and value.held is not None:
            value.held.restart_leases(steady_ms)
