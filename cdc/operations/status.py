"""`millstream cdc status`: the combined state of the sources, millstream and the destination."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import psycopg
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from millstream.cdc.config import CdcConfig, Source, Table, TableKey, target_name
from millstream.cdc.destination.connections import connect as connect_destination
from millstream.cdc.destination.offsets import AppliedOffset, OffsetTable
from millstream.cdc.protocol.replication_stream import ReplicationStream
from millstream.cdc.reader.watching import current_lsn
from millstream.cdc.source import ownership, slots
from millstream.cdc.source.changed_tables import read_changed_tables
from millstream.cdc.source.pg_catalog import connect
from millstream.cdc.source.slots import ReplicationSlot
from millstream.cdc.sql import lsn_text, one_line, read_lsn
from millstream.cdc.streams.key_names import apply_alive
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState, StateError, TableState, has_slot
from millstream.cdc.streams.stream_appender import States, open_server
from millstream.pipeline.positions import id_text
from millstream.pipeline.server_connection import ServerConnection, ServerError
from millstream.pipeline.stream_counters import ALL

APPLICATION = "millstream cdc: status"
TIMEOUT_S = 10
LATE_S = 5.0
"""A process reports every second; a report that is older than this is out of date."""
PIPE_WIDTH = 1000
WELL = ("reading", "paused", "starting")
"""The states of a reader that needs nothing."""

Json = dict[str, Any]


@dataclass
class SourceSeen:
    """The state of a source according to itself."""

    slot: ReplicationSlot | None = None
    lsn: int | None = None
    comment: str | None = None
    problem: str | None = None


@dataclass
class Collected:
    """The collected state of one source."""

    state: SourceState | None = None
    report: Json = field(default_factory=dict)
    tables: Mapping[str, TableState | None] = field(default_factory=dict)
    problem: str | None = None


EXIT_CODES: Mapping[bool | None, int] = {True: 0, False: 1, None: 3}
"""By `ok`. A wrong configuration file ends the program with 2."""


def status(config: CdcConfig, hide: Callable[[str], str]) -> Json:
    """The contents of `status --json`. Unknown values are None. `ok` is None if no problem was
    found and something could not be asked. `hide` removes passwords."""
    offsets, apply_problem = read_offsets(config)
    server = open_server(config.millstream, TIMEOUT_S)
    alive: Json | None = None
    try:
        text = server.call("GET", apply_alive(config.millstream.prefix))
        alive = {} if text is None else json.loads(text)
    except ServerError as error:
        apply_problem = str(error)
    seen = [_source(config, source, server, offsets, alive) for source in config.sources]
    verdicts = [verdict for _, verdict in seen]
    sources = [{**one, "problem": _hidden(one["problem"], hide)} for one, _ in seen]
    verdicts.append(_verdict_of_apply(alive, offsets is not None))
    apply = {
        "running": None if alive is None else bool(alive),
        "problem": _hidden(apply_problem or (alive or {}).get("problem"), hide),
        "rows": (alive or {}).get("rows"),
    }
    return {"ok": together(verdicts), "apply": apply, "sources": sources}


def _hidden(problem: str | None, hide: Callable[[str], str]) -> str | None:
    return None if problem is None else hide(problem)


def read_offsets(config: CdcConfig) -> tuple[Mapping[TableKey, AppliedOffset] | None, str | None]:
    """The offsets at the destination, or why they are unknown."""
    try:
        with connect_destination(config, APPLICATION) as connection:
            offsets = OffsetTable(connection, config.destination.schema)
            return (offsets.read() if offsets.exists() else {}), None
    except psycopg.Error as error:
        return None, f"the destination cannot be reached: {one_line(str(error))}"


def together(verdicts: Iterable[bool | None]) -> bool | None:
    """False if one of them is, otherwise None if one of them is unknown.

    >>> together([True, None, False]), together([True, None]), together([])
    (False, None, True)
    """
    found = set(verdicts)
    return False if False in found else None if None in found else True


def _verdict_of_apply(alive: Json | None, are_offsets_known: bool) -> bool | None:
    if alive is None:
        return None
    if not alive or alive.get("problem"):
        return False
    return True if are_offsets_known else None


def _verdict(one: Json, is_known: bool) -> bool | None:
    """True if a source is well. `is_known`: everything that can be asked has answered."""
    if any(table["state"] == "stopped" or table["problem"] for table in one["tables"]):
        return False
    if one["reader"] is not None and one["reader"] not in WELL:
        return False
    if not is_known:
        return None
    return one["problem"] is None or one["reader"] == "paused"


# ------------------------------------------------------------ one source


def _source(
    config: CdcConfig,
    source: Source,
    server: ServerConnection,
    offsets: Mapping[TableKey, AppliedOffset] | None,
    alive: Json | None,
) -> tuple[Json, bool | None]:
    """A source's part, and whether the source is well."""
    record = SourceRecord(config, source, server)
    seen = look_at_source(source)
    known = _collect(record)
    refusal = None
    if seen.problem is None and known.problem is None:
        refusal = _refusal(record, known, seen)
    report = known.report
    reader = None if known.problem else report.get("reader", "not running")
    problem = report.get("problem") or refusal
    late_s = time.time() - report.get("at", time.time())
    if late_s > LATE_S and problem is None:
        problem = f"the reader has not reported for {late_s:.0f} s"
    unknown = known.problem or seen.problem
    is_known = problem is not None or unknown is None
    problem = problem or unknown
    source_lsn = seen.lsn or _lsn(report.get("source_lsn"))
    durable = None if known.state is None else known.state.durable_lsn or None
    shown = [TableShown.of(record, table, known, offsets, alive) for table in source.tables]
    tables = [table.as_json() for table in shown]
    applied = _applied_lsn(tables, durable)
    one = {
        "source": source.name,
        "reader": reader,
        "problem": problem,
        "slot": seen.slot.as_json() if seen.slot is not None else report.get("slot"),
        "source_lsn": _text(source_lsn),
        "durable_lsn": _text(durable),
        "applied_lsn": _text(applied),
        "lag_bytes": _difference(source_lsn, applied),
        "lag_seconds": _lag_seconds(record, shown, applied, durable),
        "repeated": report.get("repeated"),
        "tables": tables,
    }
    return one, _verdict(one, is_known)


def look_at_source(source: Source) -> SourceSeen:
    """The slot and the end of the WAL, from the source itself."""
    try:
        with connect(source.url, APPLICATION) as connection:
            slot = slots.read_slot(connection, source.slot)
            comment = ownership.read_comment(connection, source)
            return SourceSeen(slot, current_lsn(connection), comment)
    except psycopg.Error as error:
        return SourceSeen(problem=f"the source cannot be reached: {one_line(str(error))}")


def _collect(record: SourceRecord) -> Collected:
    try:
        state = record.source_state(States(record.server))
        text = record.server.call("GET", record.keys.alive)
        report = {} if text is None else json.loads(text)
        return Collected(state, report, record.table_states())
    except (ServerError, StateError) as error:
        return Collected(problem=str(error))


def _refusal(record: SourceRecord, known: Collected, seen: SourceSeen) -> str | None:
    """The reason why the reader would refuse the source. `seen` gets the problem if that cannot be
    asked."""
    source, state = record.source, known.state
    try:
        with ReplicationStream(source.url, APPLICATION) as replication:
            system = replication.identify()
            found = ownership.foreign_line(source, state, seen.slot, seen.comment)
            found = found or slots.refusal(
                source, state, seen.slot, system, replication.timeline_end
            )
        if found is not None or not has_slot(state):
            return found
        with connect(source.url, APPLICATION) as connection:
            return "; ".join(read_changed_tables(connection, record, known.tables)) or None
    except psycopg.Error as error:
        seen.problem = f"the source cannot be asked: {one_line(str(error))}"
        return None


def _applied_lsn(tables: list[Json], durable: int | None) -> int | None:
    """The LSN before which all changes are at the destination; None while a table is waiting or
    copied."""
    if durable is None or any(one["state"] in (None, "waiting", "copying") for one in tables):
        return None
    lsns = [read_lsn(one["lsn"]) for one in tables if one["pending"]]
    return min([durable, *lsns])


def _lag_seconds(
    record: SourceRecord, shown: list[TableShown], applied: int | None, durable: int | None
) -> float | None:
    """The age of the oldest change that is in millstream and not at the destination."""
    if applied is None or durable is None:
        return None
    times = [_next_time(record, table) for table in shown if table.pending]
    known = [at for at in times if at is not None]
    return round(max(0.0, time.time() - min(known)), 3) if known else 0.0


def _next_time(record: SourceRecord, shown: TableShown) -> float | None:
    """The Unix time of the first change after an offset."""
    if shown.offset is None:
        return None
    lsn, n = shown.offset.id
    key = record.keys.changes(shown.table)
    try:
        found = record.server.call("XRANGE", key, f"({lsn}-{n}", "+", "COUNT", 1)
    except ServerError:
        return None
    if not found:
        return None
    [(_, fields)] = found
    return datetime.fromisoformat(fields[b"@at"].decode()).timestamp()


# ------------------------------------------------------------ one table


@dataclass(frozen=True)
class TableShown:
    """One table, in the terms of `status --json`."""

    table: Table
    target: str
    state: str | None
    offset: AppliedOffset | None
    pending: int | None
    rows: int | None
    lost: str | None
    report: Json
    warnings: list[str]

    @classmethod
    def of(
        cls,
        record: SourceRecord,
        table: Table,
        known: Collected,
        offsets: Mapping[TableKey, AppliedOffset] | None,
        alive: Json | None,
    ) -> TableShown:
        source = record.source
        offset = None if offsets is None else offsets.get(source.key_of(table))
        report = known.report.get("tables", {}).get(table.full_name, {})
        applied = (alive or {}).get("warnings", {}).get(f"{source.name} {table.full_name}", [])
        state = known.tables.get(table.full_name)
        is_known = known.problem is None and offsets is not None
        return cls(
            table,
            target_name(table, record.config),
            table_state(state, offset) if is_known else None,
            offset,
            None if known.problem or offsets is None else _pending(record, table, offset),
            state.rows if state is not None and state.phase == "copied" else report.get("rows"),
            _lost(source, table, state),
            report,
            [*report.get("warnings", []), *applied],
        )

    def as_json(self) -> Json:
        offset = self.offset
        is_stopped = offset is not None and offset.state == "stopped"
        return {
            "table": self.table.full_name,
            "target": self.target,
            "type": self.table.type,
            "state": self.state,
            "lsn": None if offset is None else lsn_text(offset.id[0]),
            "pending": self.pending,
            "rows": self.rows,
            "problem": offset.error
            if offset and is_stopped
            else self.lost or self.report.get("problem"),
            "error_id": offset.error_id if offset and is_stopped else None,
            "warnings": self.warnings,
        }


def _lost(source: Source, table: Table, state: TableState | None) -> str | None:
    """The reason why changes since the copy may be missing, and the command that copies the table
    again."""
    if state is None or not state.lost or state.phase != "copied":
        return None
    return f"{state.lost}: millstream cdc resync {source.name} {table.full_name}"


def table_state(state: TableState | None, offset: AppliedOffset | None) -> str:
    """The state of a table, in the words of `status`."""
    if offset is not None and offset.state == "stopped":
        return "stopped"
    if state is not None and state.lost and state.phase == "copied":
        return "stopped"
    if state is None or (offset is None and state.phase in ("wanted", "pausing")):
        return "waiting"
    is_loaded = offset is not None and offset.copied_lsn == state.copy_lsn
    if state.phase in ("pausing", "copying") or not is_loaded:
        return "copying"
    return "streaming"


def _pending(record: SourceRecord, table: Table, offset: AppliedOffset | None) -> int | None:
    lsn, n = offset.id if offset is not None else (0, 1)  # without `start`
    try:
        count, _ = record.server.call("TSEEK", record.keys.changes(table), id_text((lsn, n)), ALL)
    except ServerError:
        return None
    return int(count)


# ------------------------------------------------------------ LSNs


def _lsn(text: str | None) -> int | None:
    return None if text is None else read_lsn(text)


def _text(lsn: int | None) -> str | None:
    return None if lsn is None else lsn_text(lsn)


def _difference(later: int | None, earlier: int | None) -> int | None:
    return None if later is None or earlier is None else max(0, later - earlier)


# ------------------------------------------------------------ for people


def print_status(found: Json) -> None:
    """The same as a table."""
    # A file or a pipe has no width: nothing is cut off.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = RichTable("source", "reader", "durable", "applied", "lag", "problem")
    for one in found["sources"]:
        lag = "" if one["lag_seconds"] is None else f"{one['lag_seconds']:.1f} s"
        table.add_row(
            *map(_cell, (one["source"], one["reader"], one["durable_lsn"], one["applied_lsn"])),
            lag,
            _cell(one["problem"]),
        )
    console.print(table)
    table = RichTable("source", "table", "target", "type", "state", "pending", "rows", "problem")
    for one in found["sources"]:
        for row in one["tables"]:
            names = ("table", "target", "type", "state", "pending", "rows")
            problem = "; ".join(filter(None, [row["problem"], *row["warnings"]]))
            table.add_row(
                *(_cell(one["source"]), *(_cell(row[name]) for name in names), _cell(problem))
            )
    console.print(table)
    apply = found["apply"]
    running = {True: "running", False: "not running", None: "unknown"}[apply["running"]]
    console.print(
        escape(f"apply: {running}" + (f": {apply['problem']}" if apply["problem"] else ""))
    )


def _cell(value: object) -> str:
    return "" if value is None else escape(one_line(str(value)))
