"""Requests of an operator, recorded in millstream: `resync`."""

from __future__ import annotations

from dataclasses import replace

from millstream.cdc import CdcError
from millstream.cdc.config import Table
from millstream.cdc.source import ownership, slots
from millstream.cdc.source.pg_catalog import connect
from millstream.cdc.source.slots import ReplicationSlot
from millstream.cdc.sql import table_name, visible
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState, TableState
from millstream.cdc.streams.stream_appender import SourceReplacedError, States

ATTEMPTS = 20


class RequestError(CdcError):
    """The request cannot be recorded; the text says why."""


def find_table(record: SourceRecord, name: str) -> Table:
    """A table of a source by `schema.table`, or by `table` if only one has this name."""
    source = record.source
    found = [
        table
        for table in source.tables
        # A shell removes the quotes of "my.table".
        if name
        in (
            table.full_name,
            visible(table.full_name),
            table.name,
            visible(table_name("", table.name)),
            f"{table.schema}.{table.name}",
        )
    ]
    exact = [table for table in found if name in (table.full_name, visible(table.full_name))]
    if len(exact or found) != 1:
        known = ", ".join(table.full_name for table in source.tables)
        what = "several tables" if found else "no table"
        raise RequestError(f"{source.name} has {what} {name!r}; its tables are {known}")
    return (exact or found)[0]


def resync_table(record: SourceRecord, table: Table) -> str:
    """Ask for a new copy of a table; what was recorded, in words."""
    states, key = States(record.server), record.keys.table_state(table)
    for _ in range(ATTEMPTS):
        text = states.read(key)
        if text is None:
            return f"{table.full_name} has not been copied yet; run copies it"
        try:
            states.swap(key, TableState.from_json(text).asked().to_json())
        except SourceReplacedError:
            continue  # the reader has just begun or ended a copy
        return f"{table.full_name} is copied again"
    raise RequestError(f"the state of {table.full_name} keeps changing: try again")


def resync_all(record: SourceRecord, take_over: bool = False) -> str:
    """Ask for copies of all tables with a new slot; what was recorded, in words. `take_over`: also
    if the slot and the publication may be those of another pipeline, which does not run."""
    states, key = States(record.server), record.keys.state
    for _ in range(ATTEMPTS):
        state = record.source_state(states)
        if state is None or take_over:
            slot = _check_ownership(record, state, take_over)
            if state is None and slot is None and not take_over:
                return f"{record.source.name} has not been copied yet; run copies it"
        if state is None:
            state = SourceState(record.source.slot, "", 0, 0)
        try:
            states.swap(key, replace(state, resync=True, take_over=take_over).to_json())
        except SourceReplacedError:
            continue  # the reader has just written its progress
        return f"{record.source.name} is copied again, with a new slot"
    raise RequestError(f"the state of {record.source.name} keeps changing: try again")


def _check_ownership(
    record: SourceRecord, state: SourceState | None, take_over: bool
) -> ReplicationSlot | None:
    """The slot of a source; RequestError if another pipeline may use it."""
    source = record.source
    with connect(source.url, "millstream cdc: resync") as connection:
        slot = slots.read_slot(connection, source.slot)
        comment = ownership.read_comment(connection, source)
    if not take_over:
        problem = ownership.foreign_line(source, state, slot, comment)
        if problem is not None:
            raise RequestError(problem)
    elif slot is not None and slot.active_pid is not None:
        raise RequestError(
            f"the slot {slot.name} is active for PID {slot.active_pid}: stop the pipeline that uses"
            " it first"
        )
    return slot


def resume(record: SourceRecord, table: Table) -> str:
    """Ask `apply` to retry a stopped table; what was recorded, in words."""
    record.server.call("SET", record.keys.resume(table), "1")
    return f"{record.source.name} {table.full_name} is retried as soon as apply runs"
