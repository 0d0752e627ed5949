"""The table of offsets in the destination: how far the changes of each table have been applied.

It is the only record of progress. An offset moves in the transaction that applies the changes, so
the two cannot differ, even after a crash.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from psycopg.sql import SQL, Composed, Identifier

from millstream.cdc.config import TableKey
from millstream.cdc.protocol.session import Connection
from millstream.cdc.sql import lsn_text, read_lsn
from millstream.cdc.streams.changes import Id

State: TypeAlias = Literal["waiting", "copying", "streaming", "stopped"]

NAME = "millstream_position"
COLUMNS = (
    "database, sid, source_table, target, state, lsn, n, copied_lsn, copy_lsn, copy_n, error,"
    " error_id"
)


@dataclass(frozen=True)
class AppliedOffset:
    """The entries of a table up to `id` have been applied.

    `copied_lsn` is C of the last copy that was applied completely; `copy_id` is the last applied
    entry of a copy in progress.
    """

    key: TableKey
    target: str
    state: State = "waiting"
    id: Id = (0, 0)
    copied_lsn: int | None = None
    copy_id: Id | None = None
    error: str | None = None
    error_id: str | None = None


def create_sql(schema: str) -> Composed:
    """The statement that creates the table."""
    return SQL(
        "CREATE TABLE IF NOT EXISTS {} (\n"
        "    database text NOT NULL,\n"
        "    sid text NOT NULL,\n"
        "    source_table text NOT NULL,\n"
        "    target text NOT NULL,\n"
        "    state text NOT NULL,\n"
        "    lsn pg_lsn NOT NULL,\n"
        "    n bigint NOT NULL,\n"
        "    copied_lsn pg_lsn,\n"
        "    copy_lsn pg_lsn,\n"
        "    copy_n bigint,\n"
        "    error text,\n"
        "    error_id text,\n"
        "    updated timestamptz NOT NULL DEFAULT now(),\n"
        "    PRIMARY KEY (database, sid, source_table)\n"
        ")"
    ).format(Identifier(schema, NAME))


class OffsetTable:
    """The table, over one connection. The caller decides where transactions begin and end."""

    def __init__(self, connection: Connection, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._name = Identifier(schema, NAME)

    def exists(self) -> bool:
        """True if there is the table; needs no privileges."""
        query = (
            "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s)"
        )
        with self._connection.cursor() as cursor:
            cursor.execute(query, [self._schema, NAME])
            (found,) = cursor.fetchone() or (False,)
            return bool(found)

    def read(self) -> dict[TableKey, AppliedOffset]:
        """All offsets."""
        return self._select(SQL("SELECT {} FROM {}").format(SQL(COLUMNS), self._name), [])

    def lock(self, keys: Sequence[TableKey]) -> dict[TableKey, AppliedOffset]:
        """These offsets, locked until the end of the transaction."""
        query = SQL(
            "SELECT {} FROM {} WHERE (database, sid, source_table) IN"
            " (SELECT * FROM unnest(%s::text[], %s::text[], %s::text[]))"
            " ORDER BY database, sid, source_table FOR UPDATE"
        ).format(SQL(COLUMNS), self._name)
        return self._select(query, [list(part) for part in zip(*keys, strict=True)])

    def _select(self, query: Composed, values: list[list[str]]) -> dict[TableKey, AppliedOffset]:
        with self._connection.cursor() as cursor:
            cursor.execute(query, values)
            return {(row[0], row[1], row[2]): _offset(row) for row in cursor}

    def add(self, offsets: Iterable[AppliedOffset]) -> None:
        """Those that are missing."""
        query = SQL(
            "INSERT INTO {} (database, sid, source_table, target, state, lsn, n)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
        ).format(self._name)
        with self._connection.cursor() as cursor:
            for one in offsets:
                lsn, n = one.id
                cursor.execute(query, [*one.key, one.target, one.state, lsn_text(lsn), n])

    def write(self, offsets: Sequence[AppliedOffset]) -> None:
        """New contents of these offsets, which the transaction has locked."""
        query = SQL(
            "UPDATE {} SET target = %s, state = %s, lsn = %s, n = %s, copied_lsn = %s,"
            " copy_lsn = %s, copy_n = %s, error = %s, error_id = %s, updated = clock_timestamp()"
            " WHERE database = %s AND sid = %s AND source_table = %s"
        ).format(self._name)
        with self._connection.cursor() as cursor:
            for one in offsets:
                copy_lsn, copy_n = one.copy_id or (None, None)
                cursor.execute(
                    query,
                    [
                        *(one.target, one.state, lsn_text(one.id[0]), one.id[1]),
                        *(_text(one.copied_lsn), _text(copy_lsn), copy_n),
                        *(one.error, one.error_id, *one.key),
                    ],
                )

    def mark(self, key: TableKey, state: State, error: str | None) -> None:
        """Set the state of an offset that is not locked. Its progress does not change, because a
        worker may be moving it."""
        query = SQL(
            "UPDATE {} SET state = %s, error = %s, error_id = NULL, updated = clock_timestamp()"
            " WHERE database = %s AND sid = %s AND source_table = %s"
        ).format(self._name)
        with self._connection.cursor() as cursor:
            cursor.execute(query, [state, error, *key])

    def remove(self, database: str, sid: str) -> int:
        """Delete the offsets of a source; their number."""
        query = SQL("DELETE FROM {} WHERE database = %s AND sid = %s").format(self._name)
        with self._connection.cursor() as cursor:
            cursor.execute(query, [database, sid])
            return cursor.rowcount

    # ------------------------------------------------------------ locks

    def lock_set(self) -> None:
        """Wait until no other program adds or removes offsets; until the end of the
        transaction."""
        query = SQL("SELECT pg_advisory_xact_lock((%s::regclass::oid::int8 << 32) | 2)")
        with self._connection.cursor() as cursor:
            cursor.execute(query, [self._name.as_string(self._connection)])

    def try_lock_all(self) -> bool:
        """Take the lock that one `apply` holds as long as its connection lives."""
        query = SQL("SELECT pg_try_advisory_lock((%s::regclass::oid::int8 << 32) | 1)")
        name = self._name.as_string(self._connection)
        with self._connection.cursor() as cursor:
            cursor.execute(query, [name])
            (taken,) = cursor.fetchone() or (False,)
            return bool(taken)

    def lock_holder(self) -> str:
        """A description of the lock's holder."""
        query = SQL(
            "SELECT a.pid, coalesce(host(a.client_addr), 'a socket') FROM pg_locks l"
            " JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' AND l.granted"
            " AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            " AND l.classid = %s::regclass::oid AND l.objid = 1"
        )
        name = self._name.as_string(self._connection)
        with self._connection.cursor() as cursor:
            cursor.execute(query, [name])
            row = cursor.fetchone()
        return f"backend {row[0]} of {row[1]}" if row else "a connection that is ending"


def _text(lsn: int | None) -> str | None:
    return None if lsn is None else lsn_text(lsn)


def _offset(row: tuple[Any, ...]) -> AppliedOffset:
    database, sid, table, target, state, lsn, n, copied, copy_lsn, copy_n, error, error_id = row
    return AppliedOffset(
        (database, sid, table),
        target,
        state,
        (read_lsn(lsn), n),
        None if copied is None else read_lsn(copied),
        None if copy_lsn is None else (read_lsn(copy_lsn), copy_n),
        error,
        error_id,
    )
