"""Restarts the times of groups and leases after a keyspace was restored."""

from __future__ import annotations

from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream


def continue_times(keyspace: Keyspace, steady_ms: int) -> None:
    """Restart the times to live of all groups and all leases at `steady_ms`, which is later than
    the time at which the data was loaded."""
    keyspace.steady_ms = steady_ms
    for db in keyspace.databases:
        for key, value in db.table.items():
            if isinstance(value, Stream) and (value.groups or value.held is not None):
                for group in value.groups.values():
                    group.restart_ttl(steady_ms)
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
