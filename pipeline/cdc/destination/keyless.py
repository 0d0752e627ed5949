"""Changes of a target without a key: applied in order, each to exactly one row.

Rows are found by the texts of all their values, because json, xml and point cannot be compared in
another way. The source has replica identity full, so each change has the whole old row.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from millstream.pipeline.cdc.destination.staging import (
    Session,
    Staging,
    copy_into,
    copy_text,
    insert_staged,
    set_values,
)
from millstream.pipeline.cdc.destination.target import Route, TargetError
from millstream.pipeline.cdc.protocol.pgoutput import UNCHANGED
from millstream.pipeline.cdc.sql import identifier, literal
from millstream.pipeline.cdc.streams.changes import (
    DELETE,
    INSERT,
    START,
    TRUNCATE,
    Change,
    EntryError,
)

# Types whose values are equal under = if their texts are equal. For them, an index can be used.
COMPARABLE = {
    *("smallint", "integer", "bigint", "numeric", "text", "uuid", "date", "boolean", "bytea"),
    *("timestamp without time zone", "timestamp with time zone", "character varying"),
}

MODIFIER = re.compile(r"\(.*?\)")


class KeylessWriter:
    """Applies changes to one target in the transaction of a session."""

    def __init__(self, session: Session, to: Route) -> None:
        self._session = session
        self._route = to
        self._is_append = to.table.type == "append"

    def apply(self, changes: Sequence[Change]) -> None:
        """Apply changes, in the order in which the source made them."""
        inserts: list[Change] = []
        for change in changes:
            if change.op == START or (self._is_append and change.op in (DELETE, TRUNCATE)):
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
        route, staging = self._route, Staging(self._session, self._route)
        numbers = {
            name: staging.numbers[name] for name in changes[0].columns if name in staging.numbers
        }
        rows = [[_known(one.value(name), one) for name in numbers] for one in changes]
        staging.load(list(numbers.values()), rows)
        insert_staged(self._session, route, staging, numbers)

    # ------------------------------------------------------------ updates and deletes

    def _one(self, change: Change) -> None:
        conditions, parameters = self._found_by(change)
        one_row = (
            f"SELECT t.tableoid, t.ctid FROM {self._route.target.sql} AS t"
            f" WHERE {' AND '.join(conditions)} LIMIT 1"
        )
        target = self._route.target.sql
        if change.op == DELETE:
            statement = f"DELETE FROM {target} WHERE (tableoid, ctid) = ({one_row})"
        else:
            assigned, values = self._assigned(change)
            statement = (
                f"UPDATE {target} SET {', '.join(assigned)} WHERE (tableoid, ctid) = ({one_row})"
            )
            parameters = [*values, *parameters]
        with self._session.connection.cursor() as cursor:
            cursor.execute(statement.encode(), parameters)
            if cursor.rowcount != 1:
                raise TargetError(
                    f"{target} has no row that equals the old row of the"
                    f" {change.op.decode()} {change.id[0]}.{change.id[1]}"
                )

    def _found_by(self, change: Change) -> tuple[list[str], list[str | None]]:
        """The conditions that a row is the old row of a change, and their parameters."""
        if not change.old_columns:
            raise EntryError(
                f"the {change.op.decode()} {change.id[0]}.{change.id[1]} has no old row:"
                f" ALTER TABLE {self._route.table.full_name} REPLICA IDENTITY FULL"
            )
        conditions = [_doubled(self._route.of_sid)]
        parameters: list[str | None] = []
        for name, value in zip(change.old_columns, change.old, strict=True):
            if name not in self._route.columns:
                continue
            column = self._route.column(name)
            quoted = _doubled(f"t.{identifier(column.name)}")
            if value is None:
                conditions.append(f"{quoted} IS NULL")
                continue
            text = _text(value, change)
            if MODIFIER.sub("", column.base_type) in COMPARABLE:
                conditions.append(f"{quoted} = %s::{column.base_type}")
                parameters.append(text)
            conditions.append(f"{quoted}::text = %s::{_doubled(column.base_type)}::text")
            parameters.append(text)
        return conditions, parameters

    def _assigned(self, change: Change) -> tuple[list[str], list[str | None]]:
        """The assignments of an update, and their parameters."""
        assigned: list[str] = []
        parameters: list[str | None] = []
        values: dict[str, str] = {}
        for name, value in zip(change.columns, change.row, strict=True):
            if value is UNCHANGED:
                continue
            text = _text(value, change)
            if name in self._route.columns:
                column = self._route.column(name)
                quoted, type_ = _doubled(identifier(column.name)), _doubled(column.base_type)
                assigned.append(f"{quoted} = %s::{type_}")
                parameters.append(text)
                values[name] = _as_literal(text, column.base_type)
            elif name in self._route.source_types:
                values[name] = _as_literal(text, self._route.source_types[name])
        for name, made in set_values(self._route, values).items():
            assigned.append(_doubled(f"{identifier(name)} = {made}"))
        return assigned, parameters


def _as_literal(text: str | None, type_: str) -> str:
    return f"NULL::{type_}" if text is None else f"{literal(text)}::{type_}"


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
