"""`millstream cdc drop`: a source is removed, and its rows at the destination stay."""

from __future__ import annotations

from collections.abc import Callable

from psycopg import sql

from millstream.cdc.config import Source
from millstream.cdc.destination.connections import connect as connect_destination
from millstream.cdc.destination.offsets import OffsetTable
from millstream.cdc.operations.resync_requests import RequestError
from millstream.cdc.source import ownership, slots
from millstream.cdc.source.pg_catalog import connect
from millstream.cdc.source.slots import ReplicationSlot
from millstream.cdc.sql import identifier, literal
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.stream_appender import States
from millstream.errors import counted

APPLICATION = "millstream cdc: drop"


def drop(record: SourceRecord, say: Callable[[str], None]) -> None:
    """Remove slot, publication, offsets and keys of a source. RequestError while it is read.

    The keys are removed last: an interrupted drop can be repeated, and meanwhile `run` refuses the
    source. If `run` was started after the first check, it has reported itself before the second
    one. `apply` may be running.
    """
    source, destination = record.source, record.config.destination
    if record.server.call("EXISTS", record.keys.alive):
        raise RequestError(f"{source.name} is being read: stop `millstream cdc run` first")
    with connect(source.url, APPLICATION) as connection:
        slot = slots.read_slot(connection, source.slot)
        if slot is not None and slot.active_pid is not None:
            raise RequestError(f"slot {slot.name} is active for PID {slot.active_pid}")
        comment = ownership.read_comment(connection, source)
        state = record.source_state(States(record.server))
        problem = ownership.foreign(source, state, slot, comment)
        if problem is not None:
            raise RequestError(f"{problem}; to remove it anyway: {_removal(source, slot)}")
        if slots.drop_slot(connection, source.slot):
            say(f"{source.name}: the slot {source.slot} was dropped")
        found = connection.execute(
            "SELECT FROM pg_publication WHERE pubname = %s", [source.slot]
        ).fetchone()
        if found is not None:
            connection.execute(sql.SQL(f"DROP PUBLICATION {identifier(source.slot)}"))
            say(f"{source.name}: the publication {source.slot} was dropped")
    with connect_destination(record.config, APPLICATION) as connection, connection.transaction():
        offsets = OffsetTable(connection, destination.schema)
        removed = None
        if offsets.exists():
            offsets.lock_set()  # `apply` adds no offset without the table's state
            removed = offsets.remove(source.database, source.sid)
        if record.server.call("EXISTS", record.keys.alive):
            raise RequestError(
                f"run was started during the drop of {source.name}: stop `millstream cdc run`, and"
                " drop the source again"
            )
        count = record.server.call("DEL", *record.all_keys())
    if removed is not None:
        say(f"destination: removed {counted(removed, 'position')}")
    say(f"millstream: removed {counted(count, 'key')}")


def _removal(source: Source, slot: ReplicationSlot | None) -> str:
    """The SQL that an operator can run at the source."""
    commands = [f"DROP PUBLICATION IF EXISTS {identifier(source.slot)}"]
    if slot is not None:
        commands.insert(0, f"SELECT pg_drop_replication_slot({literal(slot.name)})")
    return "; ".join(commands)
