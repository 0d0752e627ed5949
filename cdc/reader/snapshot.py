"""Copying tables: a thread of the reader's process, with connections of its own.

A copy has five steps: `pausing` is recorded; a temporary slot exports a snapshot and gives C;
`copying` is recorded with C, and the copy stream is created again; COPY sends the rows; `copied` is
recorded with the stream's `end`. A copy that is interrupted anywhere is repeated with a higher C.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import psycopg
from psycopg import pq, sql

from millstream.backoff import Backoff
from millstream.cdc import CdcError
from millstream.cdc.config import Table
from millstream.cdc.protocol.replication_stream import ReplicationStream
from millstream.cdc.protocol.session import Connection
from millstream.cdc.reader.report import SourceReport, TableReport
from millstream.cdc.source import ownership, publications
from millstream.cdc.source.pg_catalog import connect, read_table, read_tables, selection
from millstream.cdc.source.preparing import start_words
from millstream.cdc.source.slots import blockers_reported
from millstream.cdc.sql import one_line
from millstream.cdc.streams.snapshot_entries import BLOCK_BYTES_MAX, CopyBegin, CopyEnd, CopyRows
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState, TableConfig, TableState, has_slot
from millstream.cdc.streams.stream_appender import (
    RefusedError,
    SourceReplacedError,
    States,
    Transaction,
    Words,
    append_words,
    executed,
    sent,
)
from millstream.cdc.streams.translator import time_text
from millstream.errors import counted
from millstream.pipeline.server_connection import ServerConnection, ServerError
from millstream.pipeline.stream_counters import info_of
from millstream.remote import pairs

LOOK_S = 0.5
PAUSE_S = 0.1
REPEAT_S = 0.2
RETRY_S_MAX = 60.0

Result = TypeVar("Result")


class StoppedError(Exception):
    """The process ends."""


class CopyError(Exception):
    """The table cannot be copied as it is. The text says why."""


class RowBlocks:
    """Collects rows into blocks that end at row ends."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._size = 0

    def add(self, row: bytes) -> bytes | None:
        """The block before this row, if the row does not fit into it."""
        full = None
        if self._rows and self._size + len(row) > BLOCK_BYTES_MAX:
            full = self.take()
        self._rows.append(row)
        self._size += len(row)
        return full

    def take(self) -> bytes | None:
        """The rows since the last block."""
        block = b"".join(self._rows) if self._rows else None
        self._rows, self._size = [], 0
        return block


class TableSnapshots:
    """Copies the tables of a source whose state asks for it, one after the other."""

    def __init__(
        self,
        record: SourceRecord,
        report: SourceReport,
        stop: threading.Event,
        log: Callable[[str], None],
    ) -> None:
        self._record = record
        self._source = record.source
        self._keys = record.keys
        self._states = States(record.server)
        self._report = report
        self._stop = stop
        self._log = log
        self._retry_at: dict[str, float] = {}
        self._backoffs: dict[str, Backoff] = {}
        self._current: TableReport | None = None

    def run(self) -> None:
        """Until the process ends."""
        try:
            while True:
                table = self._repeat(self._next)
                if table is None:
                    self._sleep(LOOK_S)
                    continue
                self._try(table)
        except StoppedError:
            return

    def _next(self) -> Table | None:
        """A table whose state asks for a copy, and which is not to be left alone for a while."""
        now, chosen = time.monotonic(), None
        states = self._record.table_states()
        for table in self._source.tables:
            state = states[table.full_name]
            if state is None:
                continue
            self._report.tables[table.full_name].phase = state.phase
            is_due = self._retry_at.get(table.full_name, 0) <= now
            if state.phase != "copied" and is_due and chosen is None:
                chosen = table
        return chosen

    def _try(self, table: Table) -> None:
        name, report = table.full_name, self._report.tables[table.full_name]
        self._current = report
        try:
            self._copy(table)
        except SourceReplacedError as error:
            self._log(f"{name}: the copy begins again: {error}")
            self._retry_at[name] = time.monotonic() + REPEAT_S
        except (psycopg.Error, CdcError, CopyError, ServerError, RefusedError) as error:
            problem = one_line(str(error))
            if report.problem != problem:
                self._log(f"{name}: the copy failed: {problem}")
            report.problem = problem
            backoff = self._backoffs.setdefault(name, Backoff(max_s=RETRY_S_MAX))
            self._retry_at[name] = time.monotonic() + backoff.next_s()
        else:
            report.problem = None
            self._backoffs.pop(name, None)

    # ------------------------------------------------------------ one copy

    def _copy(self, table: Table) -> None:
        name, key = table.full_name, self._keys.table_state(table)
        report = self._report.tables[name]
        text = self._repeat(lambda: self._states.read(key))
        # After the table's state, because the creation of a new slot changes both.
        source = self._repeat(lambda: self._record.source_state(self._states))
        if text is None or not has_slot(source):
            raise SourceReplacedError(f"the slot of {self._source.name} is being made")
        state = TableState.from_json(text)
        self._set(key, replace(state, phase="pausing").to_json())
        report.phase, report.rows = "pausing", 0

        def waiting(problem: str) -> None:
            report.problem = problem

        application = f"millstream cdc: {self._source.name}: copy"
        with connect(self._source.url, application) as connection:
            self._publish(connection, table, state, source)
            with ReplicationStream(self._source.url, application) as replication:
                with blockers_reported(self._source.url, replication.pid, waiting):
                    lsn, snapshot = replication.export_snapshot(self._slot)
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot))
            connection.execute("SET LOCAL row_security = off")
            report.problem = None
            state, query = self._describe(connection, table, lsn, state.request)
            columns = tuple(column.name for column in state.columns)
            begin = CopyBegin(columns, time_text(_time_us(connection))).fields()
            copy = self._keys.copy(table)
            first = append_words(copy, lsn, 1, begin)
            columns_key = self._keys.columns(table)
            self._set(key, state.to_json(), ["DEL", copy, columns_key], first)
            report.phase = "copying"
            self._log(f"{name}: copying")
            rows = self._send_rows(connection, query, table, lsn)
        report.phase = "copied"
        self._log(f"{name}: copied {counted(rows, 'row')}")

    def _publish(
        self, connection: Connection, table: Table, state: TableState, source: SourceState | None
    ) -> None:
        """Have the publication send all changes of the table, before its copy. Preparation did
        that before the first copy; the publication may have been altered since."""
        catalog = read_tables(connection, self._source.tables)
        publication = publications.read_publication(connection, self._source.slot)
        if publication is not None:
            problem = ownership.foreign(self._source, source, None, publication.comment)
            if problem is not None:
                raise CopyError(problem)
        stamp = None if publication is None else publication.stamp(state.oid)
        is_altered = publication is not None and publication.is_owned and stamp != state.published
        commands = publications.statements(
            *(self._source, publication, catalog, connection.info.server_version),
            [table] if state.published and is_altered else [],
        )
        publications.execute(connection, commands)
        for command in commands:
            self._log(command)

    @property
    def _slot(self) -> str:
        """The temporary slot; its name has the process, since an earlier one may still be there."""
        return f"{self._source.slot[:45]}_copy_{os.getpid()}"

    def _describe(
        self, connection: Connection, table: Table, lsn: int, request: int
    ) -> tuple[TableState, str]:
        """The state of the copy, and the query for its rows."""
        found = read_table(connection, table)
        if found is None:
            raise CopyError(f"the table {table.full_name} does not exist at the source")
        publication = publications.read_publication(connection, self._source.slot)
        version = connection.info.server_version
        stamp = None if publication is None else publication.stamp(found.oid)
        if publication is None or stamp is None:
            raise CopyError(f"the publication {self._source.slot} lacks the table")
        if not publications.is_whole(table, found, publication, version):
            raise CopyError(f"the publication {self._source.slot} does not send all changes")
        changes, server = self._keys.changes(table), self._record.server
        self._repeat(lambda: server.call(*start_words(changes)))
        info = info_of(self._repeat(lambda: server.call("TINFO", changes)))
        if info is None:
            raise CopyError(f"the stream {changes} was deleted while the copy began")
        state = TableState(
            "copying",
            lsn,
            found.source_columns(table),
            found.identity,
            info.incarnation,
            found.oid,
            TableConfig.of(table, self._record.config),
            request,
            published=stamp,
        )
        return state, selection(table, found)

    def _send_rows(self, connection: Connection, query: str, table: Table, lsn: int) -> int:
        """Write the blocks, then `end` and `copied`; the number of rows."""
        name, copy = table.full_name, self._keys.copy(table)
        report, transaction = self._report.tables[name], Transaction()
        blocks, place, rows = RowBlocks(), 1, 0
        for row in self._paced(copy_rows(connection, query, self._check)):
            block = blocks.add(row)
            if block is not None:
                place += 1
                transaction.add(append_words(copy, lsn, place, CopyRows(block).fields()))
            if transaction.is_full or (self._is_slow and block is not None):
                self._flush(transaction, rows, name)
                transaction = Transaction()
                self._wait_for_apply(table)
            rows += 1
        block = blocks.take()
        if block is not None:
            place += 1
            transaction.add(append_words(copy, lsn, place, CopyRows(block).fields()))
        self._flush(transaction, rows, name)
        report.rows = rows
        key = self._keys.table_state(table)
        copied = replace(TableState.from_json(self._states.seen(key)), phase="copied", rows=rows)
        end = append_words(copy, lsn, place + 1, CopyEnd(rows).fields())
        self._set(key, copied.to_json(), end)
        return rows

    @property
    def _is_slow(self) -> bool:
        return bool(self._record.config.read.copy_rate)

    def _paced(self, rows: Iterator[bytes]) -> Iterator[bytes]:
        """The rows, at most `copy_rate` of them in a second."""
        rate = self._record.config.read.copy_rate
        if not rate:
            yield from rows
            return
        started = time.monotonic()
        for count, row in enumerate(rows):
            ahead_s = count / rate - (time.monotonic() - started)
            if ahead_s > PAUSE_S:
                self._sleep(ahead_s)
            yield row

    # ------------------------------------------------------------ millstream

    def _flush(self, transaction: Transaction, rows: int, name: str) -> None:
        if transaction.count:
            request, count = transaction.encoded(), transaction.count + 2
            server = self._record.server
            self._repeat(lambda: executed(sent(server, request, count)))
        report = self._report.tables[name]
        self._report.copied_bytes[name] += transaction.size_bytes
        self._report.copied_rows[name] += rows - report.rows
        report.rows = rows

    def _set(self, key: str, text: str, *others: Words) -> None:
        self._repeat(lambda: self._states.swap(key, text, *others))

    def _wait_for_apply(self, table: Table) -> None:
        """Wait while too many rows wait for `apply`. SourceReplacedError if a new copy was
        asked for."""
        limit = self._record.config.read.copy_ahead_mb << 20
        key, copy = self._keys.table_state(table), self._keys.copy(table)
        while True:
            self._repeat(lambda: self._states.check_unchanged(key))
            if self._repeat(lambda: stream_bytes(self._record.server, [copy])) <= limit:
                return
            self._sleep(PAUSE_S)

    def _repeat(self, attempt: Callable[[], Result]) -> Result:
        """The result of a request, which is repeated until millstream answers it."""
        backoff, report, is_repeated = Backoff(), self._current, False
        while True:
            try:
                result = attempt()
            except (ServerError, RefusedError) as error:
                problem = str(error)
            else:
                if report is not None and is_repeated:
                    report.problem = None
                return result
            if report is not None:
                report.problem = problem
            is_repeated = True
            self._sleep(backoff.next_s())

    # ------------------------------------------------------------ stopping

    def _check(self) -> None:
        if self._stop.is_set():
            raise StoppedError

    def _sleep(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError


def copy_rows(connection: Connection, query: str, check: Callable[[], None]) -> Iterator[bytes]:
    """The rows of a query as lines of COPY's text format. `check` is called while waiting."""
    pgconn = connection.pgconn
    result = pgconn.exec_(f"COPY ({query}) TO STDOUT".encode())
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result, encoding="utf-8")
    while True:
        size, data = pgconn.get_copy_data(1)
        if size > 0:
            yield bytes(data)
        elif size < 0:
            break
        else:
            check()
            select.select([pgconn.socket], [], [], LOOK_S)
            pgconn.consume_input()
    while (ended := pgconn.get_result()) is not None:
        if ended.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(ended, encoding="utf-8")


def _time_us(connection: Connection) -> int:
    """The time at the source, whose commit times it is compared with."""
    query = "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::int8"
    ((found,),) = connection.execute(query).fetchall()
    return int(found)


def stream_bytes(server: ServerConnection, keys: Sequence[str]) -> int:
    """The bytes in the blocks of these streams, in total."""
    total = 0
    for reply in server.pipeline([("TINFO", key) for key in keys]):
        info = server.checked(reply)
        if info is not None:
            total += int(pairs(info)["bytes"])
    return total
