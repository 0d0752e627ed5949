"""The threads of a reader's process that watch millstream and the source.

One publishes the report every second, measures the size of the streams, and detects requests to
copy everything again. The other checks the slot and the tables' definitions.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

import psycopg
import redis

from millstream.cdc.config import Table
from millstream.cdc.protocol.session import Connection
from millstream.cdc.reader.report import SourceReport
from millstream.cdc.reader.snapshot import stream_bytes
from millstream.cdc.source import publications, slots
from millstream.cdc.source.changed_tables import published_otherwise
from millstream.cdc.source.pg_catalog import CatalogTable, connect, read_tables
from millstream.cdc.sql import read_lsn, shown
from millstream.cdc.streams.column_record import ColumnRecord
from millstream.cdc.streams.key_names import ALIVE_S
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState, StateError, TableState
from millstream.cdc.streams.stream_appender import RefusedError, SourceReplacedError, States
from millstream.pipeline.server_connection import ServerError

PUBLISH_S = 1.0
LOOK_S = 5.0


class StreamBacklog:
    """The size of a source's streams: the last measurement, plus the bytes appended since then."""

    def __init__(self, limit_mb: int) -> None:
        self._limit_mb = limit_mb
        self._measured_bytes = 0
        self._added_bytes = 0

    def add(self, size_bytes: int) -> None:
        self._added_bytes += size_bytes

    def measured(self, size_bytes: int) -> None:
        self._measured_bytes, self._added_bytes = size_bytes, 0

    def problem(self) -> str | None:
        """The reason why no more changes may be read now, or None."""
        total = self._measured_bytes + self._added_bytes
        if total <= self._limit_mb << 20:
            return None
        return (
            f"the streams hold {total >> 20} MB that `millstream cdc apply` has not trimmed, more "
            f"than backlog_mb = {self._limit_mb}"
        )


class Publisher:
    """Publishes the report until the process ends."""

    def __init__(
        self,
        record: SourceRecord,
        report: SourceReport,
        backlog: StreamBacklog,
        send: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        self.resync = threading.Event()
        """Set when the state asks for everything to be copied again."""
        self._record = record
        self._report = report
        self._backlog = backlog
        self._send = send
        self._stop = stop
        tables = record.source.tables
        self._streams = [record.keys.cuts, *(record.keys.changes(table) for table in tables)]

    def run(self) -> None:
        while True:
            text = json.dumps(self._report.as_json())
            self._send(text)
            with contextlib.suppress(ServerError):  # the reader notices it, too, and reports it
                self._exchange(text)
            if self._stop.wait(PUBLISH_S):
                return

    def _exchange(self, text: str) -> None:
        server = self._record.server
        alive = self._record.keys.alive
        (reply,) = server.pipeline([("SET", alive, text, "EX", ALIVE_S)])
        if isinstance(reply, redis.RedisError):
            # Without memory nothing can be written; the last report stays, and its time is in it.
            server.pipeline([("EXPIRE", alive, ALIVE_S)])
        self._backlog.measured(stream_bytes(server, self._streams))
        state = server.call("GET", self._record.keys.state)
        try:
            asked = state is not None and SourceState.from_json(state).resync
        except StateError:
            asked = False  # the reader refuses it
        if asked:
            self.resync.set()
        else:
            self.resync.clear()


class Watcher:
    """Looks at the source until the process ends."""

    def __init__(
        self,
        record: SourceRecord,
        report: SourceReport,
        stop: threading.Event,
        warn: Callable[[str], None],
    ) -> None:
        """`warn` gets a line when a table stops."""
        self._record = record
        self._source = record.source
        self._report = report
        self._stop = stop
        self._warn = warn
        self._now = threading.Event()
        self._columns: dict[str, tuple[int, ColumnRecord]] = {}
        """By table: the LSN of its copy, and what was recorded since then."""

    def look_now(self) -> None:
        """Look at once: a table was changed."""
        self._now.set()

    def run(self) -> None:
        while not self._pause():
            try:
                with connect(self._source.url, f"millstream cdc: {self._source.name}") as one:
                    while True:
                        self._look(one)
                        if self._pause():
                            return
            except (psycopg.Error, ServerError, StateError, redis.RedisError):
                continue  # the reader reports it

    def _pause(self) -> bool:
        """Wait until the next look is due; whether the process ends."""
        self._now.wait(LOOK_S)
        self._now.clear()
        return self._stop.is_set()

    def _look(self, connection: Connection) -> None:
        slot = slots.read_slot(connection, self._source.slot)
        self._report.slot = None if slot is None else slot.as_json()
        self._report.source_lsn = max(self._report.source_lsn, current_lsn(connection))
        # Before the publication, so that a table that was copied in between is not considered lost.
        states = self._record.table_states()
        catalog = read_tables(connection, self._source.tables)
        publication = publications.read_publication(connection, self._source.slot)
        version = connection.info.server_version
        for table in self._source.tables:
            report = self._report.tables[table.full_name]
            state = states[table.full_name]
            report.warnings = table_warnings(table, state, catalog)
            found = catalog.get((table.schema, table.name))
            if state is not None and found is not None and found.oid == state.oid:
                self._record_columns(table, state, found)
            if state is not None and state.phase == "copied" and not state.lost:
                lost = published_otherwise(self._source, table, state, found, publication, version)
                if lost is not None:
                    self._lose(table, state, lost)

    def _lose(self, table: Table, state: TableState, reason: str) -> None:
        """Have `apply` stop a table until it is copied again."""
        states, key = States(self._record.server), self._record.keys.table_state(table)
        text = states.read(key)
        if text is None or TableState.from_json(text) != state:
            return  # a copy was begun or asked for
        with contextlib.suppress(SourceReplacedError, RefusedError):  # the next look tries again
            states.swap(key, replace(state, lost=reason).to_json())
            advice = f"millstream cdc resync {self._source.name} {table.full_name}"
            self._warn(f"{reason}; to copy the table again: {advice}")

    def _record_columns(self, table: Table, state: TableState, found: CatalogTable) -> None:
        """Keep names and types of columns that a table has got since its copy, for `apply`."""
        name = table.full_name
        if found.source_columns(table) == state.columns and name not in self._columns:
            return
        key = self._record.keys.columns(table)
        copy_lsn, known = self._columns.get(name, (0, ColumnRecord()))
        if copy_lsn != state.copy_lsn:
            known = ColumnRecord.from_json(self._record.server.call("GET", key))
        made = known.with_columns(found.recorded_columns(table))
        if made != known:
            self._record.server.call("SET", key, made.to_json())
        self._columns[name] = state.copy_lsn, made


def current_lsn(connection: Connection) -> int:
    """The end of the source's WAL."""
    row = connection.execute(f"SELECT ({slots.NOW})::text").fetchone()
    return 0 if row is None or row[0] is None else read_lsn(row[0])


def table_warnings(
    table: Table, state: TableState | None, catalog: Mapping[tuple[str, str], CatalogTable]
) -> list[str]:
    """List the changes of a table since its copy, one line each."""
    if state is None or state.phase != "copied":
        return []
    found = catalog.get((table.schema, table.name))
    if found is None or found.oid != state.oid:
        return [
            "the table was renamed or dropped at the source; run refuses the source at its next "
            "start"
        ]
    before = {column.name: column.type for column in state.columns}
    now = {column.name: column.type for column in found.kept(table)}
    lines = [f"the column {shown(name)} is new" for name in now if name not in before]
    lines += [f"the column {shown(name)} was dropped" for name in before if name not in now]
    lines += [
        f"the type of the column {shown(name)} was changed from {before[name]} to {kind}: rows "
        "that ALTER TABLE rewrote are not in the stream"
        for name, kind in now.items()
        if before.get(name, kind) != kind
    ]
    return lines
