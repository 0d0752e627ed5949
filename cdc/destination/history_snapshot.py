"""A history compared with a copy of its table.

Rows that differ from their open version get a new version as of the copy; open versions whose rows
no longer exist are ended. The copy is in an unlogged table, which a crash of the destination
empties; its comment, the time of the copy, stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.staging import Staging, copy_into, set_values
from millstream.cdc.destination.versions import DELETED, END, FIRST_TEXT, LAST_TEXT, START
from millstream.cdc.sql import identifier, literal
from millstream.cdc.streams.snapshot_entries import CopyBegin, CopyEnd

IS_OPEN = f"t.{END} = '{LAST_TEXT}'"


class CopyVanished(Exception):
    """The copy in the unlogged table is incomplete."""


class CopiedHistory:
    """A copy on its way into one source's part of a history."""

    def __init__(self, session: TargetSession, to: Route, names: Sequence[str]) -> None:
        self._session = session
        self._route = to
        self._names = list(names)
        staging = Staging(session, to, is_copy=True)
        self._numbers = staging.numbers
        self._like = staging.table
        name = f"millstream_copy_{to.target.oid}_{crc32(to.sid_value.encode()):08x}"
        self._table = identifier(to.target.schema, name)

    def begin(self, entry: CopyBegin, offset: AppliedOffset) -> None:
        """An empty table for a copy, with the time at which it was made."""
        self._session.run(f"DROP TABLE IF EXISTS {self._table}")
        columns = ", ".join(self._numbers.values())
        self._session.run(
            f"CREATE UNLOGGED TABLE {self._table} AS SELECT {columns} FROM {self._like}"
            " WITH NO DATA"
        )
        self._session.run(f"COMMENT ON TABLE {self._table} IS {literal(entry.at)}")

    def load(self, text: bytes) -> None:
        columns = [self._numbers[name] for name in self._names]
        copy_into(self._session.connection, self._table, columns, text)

    def end(self, entry: CopyEnd, offset: AppliedOffset) -> None:
        """Write the versions that the copy makes, and drop the copy. CopyVanished if it has
        fewer rows than were sent. In the first copy into a history without versions, rows have no
        known beginning; the rows that a later copy has found begin at its time."""
        ((found,),) = self._session.rows(f"SELECT count(*) FROM {self._table}")
        if found != entry.rows:
            raise CopyVanished(f"the copy has {found} rows instead of {entry.rows}")
        self._session.run(f"ANALYZE {self._table}")
        ((at,),) = self._session.rows(
            f"SELECT obj_description({literal(self._table)}::regclass, 'pg_class')"
        )
        time = f"{literal(at)}::{self._route.target.columns[START].base_type}"
        ends = f"greatest({time}, t.{START} + interval '1 microsecond')"
        is_first = offset.copied_lsn is None and not self._has_versions()
        self._end_those_gone(ends)
        self._replace_those_that_differ(ends)
        self._insert_those_that_are_new(f"'{FIRST_TEXT}'" if is_first else time)
        self._session.run(f"DROP TABLE {self._table}")

    def _same_key(self, one: str) -> str:
        conditions = [self._route.sid_of(one)]
        for name in self._route.key:
            column = identifier(self._route.columns[name])
            conditions.append(f"{one}.{column} = s.{self._numbers[name]}")
        return " AND ".join(conditions)

    def _end_those_gone(self, ends: str) -> None:
        self._session.run(
            f"UPDATE {self._route.target.sql} AS t SET {END} = {ends}, {DELETED} = true"
            f" WHERE {self._route.of_sid} AND {IS_OPEN}"
            f" AND NOT EXISTS (SELECT FROM {self._table} AS s WHERE {self._same_key('t')})"
        )

    def _replace_those_that_differ(self, ends: str) -> None:
        names = [name for name in self._route.columns if name not in self._route.key]
        if not names:
            return
        before = ", ".join(f"t.{identifier(self._route.columns[name])}::text" for name in names)
        after = ", ".join(f"s.{self._numbers[name]}::text" for name in names)
        keys = ", ".join(f"s.{self._numbers[name]}" for name in self._route.key)
        same = " AND ".join(
            f"e.{self._numbers[name]} = s.{self._numbers[name]}" for name in self._route.key
        )
        columns, values = self._inserted("e.ended")
        self._session.run(
            f"WITH e AS (UPDATE {self._route.target.sql} AS t SET {END} = {ends},"
            f" {DELETED} = false FROM {self._table} AS s WHERE {self._same_key('t')} AND {IS_OPEN}"
            f" AND ({before}) IS DISTINCT FROM ({after}) RETURNING {keys}, t.{END} AS ended)"
            f" INSERT INTO {self._route.target.sql} ({columns}) OVERRIDING SYSTEM VALUE"
            f" SELECT {values} FROM e JOIN {self._table} AS s ON {same}"
        )

    def _has_versions(self) -> bool:
        target = self._route.target.sql
        query = f"SELECT EXISTS (SELECT FROM {target} AS t WHERE {self._route.of_sid})"
        ((found,),) = self._session.rows(query)
        return bool(found)

    def _insert_those_that_are_new(self, begin: str) -> None:
        target = self._route.target.sql
        last = f"(SELECT max(o.{END}) FROM {target} AS o WHERE {self._same_key('o')})"
        start = f"greatest({begin}, {last})"  # without NULL
        columns, values = self._inserted(start)
        self._session.run(
            f"INSERT INTO {target} ({columns}) OVERRIDING SYSTEM VALUE SELECT {values}"
            f" FROM {self._table} AS s WHERE NOT EXISTS"
            f" (SELECT FROM {target} AS t WHERE {self._same_key('t')} AND {IS_OPEN})"
        )

    def _inserted(self, start: str) -> tuple[str, str]:
        """The columns of a new version and their values; `start` is in SQL."""
        route = self._route
        values = {name: f"s.{self._numbers[name]}" for name in self._names}
        made = {route.columns[name]: sql for name, sql in values.items() if name in route.columns}
        made.update(set_values(route, values))
        made.update({START: start, END: f"'{LAST_TEXT}'", DELETED: "false"})
        if route.sid is not None:
            made[route.sid] = literal(route.sid_value)
        return ", ".join(map(identifier, made)), ", ".join(made.values())
