"""Changes of a target without a key: applied in order, each to exactly one row.

Rows are found by the texts of all their values, because json, xml and point cannot be compared in
another way. The source has replica identity full, so each change has the whole old row.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.staging import (
    Staging,
    copy_into,
    copy_text,
    insert_staged,
    moving_one_sql,
    row_text,
    set_values,
)
from millstream.cdc.destination.target import TargetError
from millstream.cdc.protocol.pgoutput import UNCHANGED
from millstream.cdc.sql import identifier, literal, without_modifier
from millstream.cdc.streams.changes import DELETE, INSERT, START, TRUNCATE, Change, EntryError

# Types whose values are equal under = if their texts are equal. For them, an index can be used.
COMPARABLE = {
    *("smallint", "integer", "bigint", "numeric", "text", "uuid", "date", "boolean", "bytea"),
    *("timestamp without time zone", "timestamp with time zone", "character varying"),
}


class KeylessWriter:
    """Applies changes to one target in the transaction of a session."""

    def __init__(self, session: TargetSession, to: Route) -> None:
        self._session = session
        self._route = to
        self._staging = Staging(session, to)
        self._keeps_deleted = to.kind.keeps_deleted

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes, in the order in which the source made them."""
        inserts: list[Change] = []
        for change in changes:
            if change.op == START or (self._keeps_deleted and change.op in (DELETE, TRUNCATE)):
                continue
            if inserts and (change.op != INSERT or change.columns != inserts[0].columns):
                self._insert(inserts)
                inserts = []
            if change.op == INSERT:
                inserts.append(change)
            elif change.op == TRUNCATE:
                self._session.run(
                    f"DELETE FROM {self._route.target.sql} AS t WHERE {self._route.of_sid}"
                )
            else:
                self._one(change)
        if inserts:
            self._insert(inserts)

    def flush(self) -> None:
        """Nothing is held: `apply` has written everything."""

    # ------------------------------------------------------------ inserts

    def _insert(self, changes: list[Change]) -> None:
        route, source = self._route, changes[0].columns
        if route.table.set:
            self._insert_with_set(changes)
            return
        places = [number for number, name in enumerate(source) if name in route.columns]
        names = [identifier(route.columns[source[place]]) for place in places]
        rows = [[_known(one.row[place], one) for place in places] for one in changes]
        if route.sid is not None:
            names.insert(0, identifier(route.sid))
            for row in rows:
                row.insert(0, route.sid_value.encode())
        text = copy_text(rows, len(names))
        copy_into(self._session.connection, route.target.sql, names, text)

    def _insert_with_set(self, changes: list[Change]) -> None:
        route, staging = self._route, self._staging
        numbers = {
            name: staging.numbers[name] for name in changes[0].columns if name in staging.numbers
        }
        rows = [[_known(one.value(name), one) for name in numbers] for one in changes]
        staging.load(list(numbers.values()), rows)
        insert_staged(self._session, route, staging, numbers)

    # ------------------------------------------------------------ updates and deletes

    def _one(self, change: Change) -> None:
        one_row, old_row = self._found_by(change)
        target = self._route.target.sql
        if change.op == DELETE:
            self._on_one(
                change, f"DELETE FROM {target} WHERE (tableoid, ctid) = ({one_row})", [old_row]
            )
            return
        assigned, values = self._assigned(change)
        moved = self._moved(change)
        place = one_row
        found: list[str | None] = [old_row]
        if moved:
            typed = {name: f"%s::{type_}" for name, (type_, _) in moved.items()}
            statement = moving_one_sql(self._route, one_row, typed)
            texts = [text for _, text in moved.values()]
            place, found = "%s::oid, %s::tid", self._on_one(change, statement, [old_row, *texts])
        if assigned:
            statement = (
                f"UPDATE {target} SET {', '.join(assigned)} WHERE (tableoid, ctid) = ({place})"
            )
            self._on_one(change, statement, [*values, *found])
        elif not moved:  # only the row's presence is left to check
            self._on_one(change, one_row, found)

    def _on_one(
        self, change: Change, statement: str, parameters: Sequence[str | None]
    ) -> list[str | None]:
        """Execute a statement that must find exactly one row; the texts that it returns."""
        with self._session.connection.cursor() as cursor:
            cursor.execute(statement.encode(), parameters)
            if cursor.rowcount != 1:
                raise TargetError(
                    f"{self._route.target.sql} has no row that equals the old row of the"
                    f" {change.op.decode()} {change.id[0]}.{change.id[1]}"
                )
            return [str(value) for value in cursor.fetchall()[0]] if cursor.description else []

    def _found_by(self, change: Change) -> tuple[str, str]:
        """The query that finds the old row of a change, and its parameter: the row as a text.

        The text is read as a row of the temporary table, whose values are those that an INSERT
        would store. A cast to the target's type would cut them.
        """
        if not change.old_columns:
            raise EntryError(
                f"the {change.op.decode()} {change.id[0]}.{change.id[1]} has no old row:"
                f" ALTER TABLE {self._route.table.full_name} REPLICA IDENTITY FULL"
            )
        conditions = [self._route.of_sid]
        texts: dict[str, str | None] = {}
        for name, value in zip(change.old_columns, change.old, strict=True):
            if name not in self._route.columns:
                continue
            column = self._route.column(name)
            quoted = f"t.{identifier(column.name)}"
            if value is None:
                conditions.append(f"{quoted} IS NULL")
                continue
            number = self._staging.numbers[name]
            texts[number] = _text(value, change)
            if without_modifier(column.base_type) in COMPARABLE:
                conditions.append(f"{quoted} = o.{number}")
            conditions.append(f"{quoted}::text = o.{number}::text")
        old = f"SELECT (r.row).* FROM (SELECT %s::{self._staging.table} AS row OFFSET 0) AS r"
        query = _doubled(
            f"SELECT t.tableoid, t.ctid FROM {self._route.target.sql} AS t, o"
            f" WHERE {' AND '.join(conditions)} LIMIT 1"
        )
        fields = [texts.get(name) for name in self._staging.names]
        return f"WITH o AS MATERIALIZED ({old}) {query}", row_text(fields)

    def _assigned(self, change: Change) -> tuple[list[str], list[str | None]]:
        """The assignments of an update, and their parameters. A parameter has the type of its
        column, and is stored as by an INSERT."""
        assigned: list[str] = []
        parameters: list[str | None] = []
        values: dict[str, str] = {}
        for name, value in zip(change.columns, change.row, strict=True):
            if value is UNCHANGED:
                continue
            text = _text(value, change)
            if name in self._route.columns:
                column = self._route.column(name)
                if not column.fixed:
                    assigned.append(f"{_doubled(identifier(column.name))} = %s")
                    parameters.append(text)
                values[name] = _as_literal(text, column.base_type)
            elif name in self._route.source_types:
                values[name] = _as_literal(text, self._route.source_types[name])
        for name, made in set_values(self._route, values).items():
            assigned.append(_doubled(f"{identifier(name)} = {made}"))
        return assigned, parameters

    def _moved(self, change: Change) -> dict[str, tuple[str, str | None]]:
        """The new values of columns that cannot be updated, with their types, if they changed."""
        old = dict(zip(change.old_columns, change.old, strict=True))
        found = {}
        for name, value in zip(change.columns, change.row, strict=True):
            if value is UNCHANGED or name not in self._route.columns:
                continue
            column = self._route.column(name)
            if column.fixed and (name not in old or old[name] != value):
                found[column.name] = (column.base_type, _text(value, change))
        return found


def _as_literal(text: str | None, type_: str) -> str:
    """A value in SQL. A cast to a type with a length would cut it."""
    plain = without_modifier(type_)
    return f"NULL::{plain}" if text is None else f"{literal(text)}::{plain}"


def _doubled(sql: str) -> str:
    """A part of a statement that has parameters: a percent sign in it stands for itself."""
    return sql.replace("%", "%%")


def _text(value: object, change: Change) -> str | None:
    known = _known(value, change)
    try:
        return None if known is None else known.decode()
    except UnicodeDecodeError:  # from a source with the encoding SQL_ASCII
        raise EntryError(
            f"a value of the entry {change.id[0]}.{change.id[1]} is not UTF-8"
        ) from None


def _known(value: object, change: Change) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    raise EntryError(
        f"the entry {change.id[0]}.{change.id[1]} lacks a large value that has not changed"
    )
