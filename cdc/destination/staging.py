"""Rows on their way into a target: COPY's text format, and a temporary table for each target."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.route import Route
from millstream.cdc.protocol.session import Connection
from millstream.cdc.sql import identifier, literal, without_modifier

Texts: TypeAlias = Sequence[bytes | None]

OP, UNCHANGED_COLUMN = "_op", "_unchanged"
BYTES_PER_SEND = 1 << 20

_SPECIAL = ((b"\\", b"\\\\"), (b"\n", b"\\n"), (b"\r", b"\\r"), (b"\t", b"\\t"))


def copy_text(rows: Sequence[Texts], width: int) -> bytes:
    r"""The rows in COPY's text format.

    >>> copy_text([(b"1", b"two"), (b"a\tb", None)], 2)
    b'1\ttwo\na\\tb\t\\N\n'
    """
    nulls = 0
    lines = []
    for row in rows:
        if None in row:
            nulls += row.count(None)
            row = [b"\\N" if value is None else value for value in row]
        lines.append(b"\t".join(row))  # type: ignore[arg-type]
    lines.append(b"")
    text = b"\n".join(lines)
    # Characters that have to be escaped are rare. If there are any, the counts show it.
    if (
        text.count(b"\t") == (width - 1) * len(rows)
        and text.count(b"\n") == len(rows)
        and text.count(b"\\") == nulls
        and b"\r" not in text
    ):
        return text
    return b"".join(b"\t".join(map(_escaped, row)) + b"\n" for row in rows)


def _escaped(value: bytes | None) -> bytes:
    if value is None:
        return b"\\N"
    for character, replacement in _SPECIAL:
        value = value.replace(character, replacement)
    return value


def escaped_text(value: str) -> bytes:
    """A text as a value of COPY's text format."""
    return _escaped(value.encode())


def row_text(values: Sequence[str | None]) -> str:
    r"""The text of a row of a composite type.

    >>> print(row_text(["a", None, 'b"\\']))
    ("a",,"b""\\")
    """
    return f"({','.join(map(_field, values))})"


def _field(value: str | None) -> str:
    if value is None:
        return ""
    return '"' + value.replace("\\", "\\\\").replace('"', '""') + '"'


def copy_into(connection: Connection, table: str, columns: Iterable[str], text: bytes) -> None:
    """Load lines in COPY's text format into a table."""
    names = ", ".join(columns)
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:
        for start in range(0, len(text), BYTES_PER_SEND):
            copy.write(text[start : start + BYTES_PER_SEND])


class Staging:
    """The temporary table of one route, which is empty after each transaction.

    Its columns are named by their numbers: `c1` for a value, `o1` for an old value of the key, and
    what `extra` names. Besides the columns that the target has, there are those that only a `set`
    uses.
    """

    def __init__(
        self,
        session: TargetSession,
        to: Route,
        extra: Sequence[tuple[str, str]] = (),
        is_copy: bool = False,
    ) -> None:
        """With `is_copy`, there are all columns of the source: those that COPY sends."""
        self._session = session
        types = {name: to.column(name).base_type for name in to.columns}
        if to.table.set or is_copy:
            types.update(missing_types(session, to))
        self.numbers = {name: f"c{number}" for number, name in enumerate(types, 1)}
        self.old = {name: f"o{number}" for number, name in enumerate(to.key, 1)}
        columns = [(OP, '"char"'), (UNCHANGED_COLUMN, "text[]"), *extra]
        columns += [(self.numbers[name], type_) for name, type_ in types.items()]
        columns += [(self.old[name], types[name]) for name in to.key]
        self.names = [name for name, _ in columns]
        described = ", ".join(f"{name} {type_}" for name, type_ in columns)
        digest = hashlib.sha256(f"{to.target.oid} {described}".encode()).hexdigest()
        name = f"millstream_{digest[:24]}"
        self.table = f"pg_temp.{name}"
        session.run(f"CREATE TEMP TABLE IF NOT EXISTS {name} ({described}) ON COMMIT DELETE ROWS")

    def load(self, columns: Sequence[str], rows: Sequence[Texts]) -> None:
        """Replace the rows of the table with these; `columns` are the table's own names."""
        self.load_text(columns, copy_text(rows, len(columns)))

    def load_text(self, columns: Sequence[str], text: bytes) -> None:
        """The same for lines in COPY's text format."""
        if self.table in self._session.dirty:
            self._session.run(f"TRUNCATE {self.table}")
        self._session.dirty.add(self.table)
        copy_into(self._session.connection, self.table, columns, text)


def missing_types(session: TargetSession, to: Route) -> dict[str, str]:
    """The types of the columns that the target lacks: the source's, or text if there is no such
    type at the destination. Their lengths may have changed at the source since the copy."""
    missing = {name: type_ for name, type_ in to.source_types.items() if name not in to.columns}
    types = {}
    for name, type_ in missing.items():
        plain = without_modifier(type_)
        ((is_known,),) = session.rows(f"SELECT to_regtype({literal(plain)}) IS NOT NULL")
        types[name] = plain if is_known else "text"
    return types


def row_of(to: Route, values: Mapping[str, str]) -> str:
    """A subquery with the source's columns, for the expressions of `set`. `values` are expressions
    in SQL by column."""
    listed = ", ".join(
        f"{_as_source(to, name, value)} AS {identifier(name)}" for name, value in values.items()
    )
    return f"(SELECT {listed}) AS r"


def _as_source(to: Route, name: str, value: str) -> str:
    """The value in the source's type, if the target has another one that can differ in SQL. A cast
    to a type with a length would cut the value."""
    wanted = to.source_types.get(name)
    if name not in to.columns or wanted is None or to.column(name).base_type == wanted:
        return value
    return f"{value}::text::{without_modifier(wanted)}"


def set_values(to: Route, values: Mapping[str, str]) -> dict[str, str]:
    """The expressions of `set`, by the target's column."""
    if not to.table.set:
        return {}
    row = row_of(to, values)
    return {name: f"(SELECT {made} FROM {row})" for name, made in to.table.set.items()}


def same_key(to: Route, numbers: Mapping[str, str]) -> str:
    """The condition that a row `t` of the target has the key of a staged row `s`, whose columns
    have these names."""
    conditions = [to.of_sid] if to.sid else []
    for name, number in numbers.items():
        conditions.append(f"t.{identifier(to.columns[name])} = s.{number}")
    return " AND ".join(conditions)


def insert_staged(
    session: TargetSession,
    to: Route,
    staging: Staging,
    columns: Iterable[str],
    condition: str = "true",
    is_upsert: bool = True,
) -> None:
    """Insert the staged rows `s` that fulfil a condition into the target. With `is_upsert`, their
    values go into the rows that have their keys."""
    values = {name: f"s.{staging.numbers[name]}" for name in columns}
    made = {to.columns[name]: sql for name, sql in values.items() if name in to.columns}
    made.update(set_values(to, values))
    key = set(to.key_columns())
    fixed = {name: sql for name, sql in made.items() if name in to.target.fixed - key}
    updated = ", ".join(
        f"{identifier(name)} = EXCLUDED.{identifier(name)}"
        for name in made
        if name not in key and name not in fixed
    )
    if is_upsert and to.key and fixed:
        found = same_key(to, {name: staging.numbers[name] for name in to.key})
        session.run(moving_sql(to, staging.table, fixed, f"{condition} AND {found}"))
    conflict = [identifier(name) for name in to.key_columns()]
    if to.sid is not None:
        made[to.sid] = literal(to.sid_value)
        conflict.append(identifier(to.sid))
    statement = (
        f"INSERT INTO {to.target.sql} ({', '.join(map(identifier, made))})"
        f" OVERRIDING SYSTEM VALUE SELECT {', '.join(made.values())}"
        f" FROM {staging.table} AS s WHERE {condition}"
    )
    if is_upsert and to.key:
        action = f"UPDATE SET {updated}" if updated else "NOTHING"
        statement += f" ON CONFLICT ({', '.join(conflict)}) DO {action}"
    session.run(statement)


def moving_sql(to: Route, staged: str, values: Mapping[str, str], condition: str) -> str:
    """The statement that gives target rows `t` new values from staged rows `s`, for any columns.
    Rows that have these values already are left alone.

    `values` are expressions in SQL by the target's column; the first one can be sorted.
    """
    present = ", ".join(f"t.{identifier(name)}" for name in values)
    wanted = ", ".join(values.values())
    kept = [name for name in to.target.columns if _is_kept(to, name) and name not in values]
    returned = [f"t.{identifier(name)} AS k{number}" for number, name in enumerate(kept)]
    returned += [f"{value} AS v{number}" for number, value in enumerate(values.values())]
    inserted = [f"k{number}" for number in range(len(kept))]
    inserted += [f"v{number}" for number in range(len(values))]
    # Sorted: all rows have been deleted before the first one is inserted with its new value.
    return (
        f"WITH d AS (DELETE FROM {to.target.sql} AS t USING {staged} AS s WHERE {condition}"
        f" AND ROW({present}) IS DISTINCT FROM ROW({wanted}) RETURNING {', '.join(returned)})"
        f" INSERT INTO {to.target.sql} ({', '.join(map(identifier, [*kept, *values]))})"
        f" OVERRIDING SYSTEM VALUE SELECT {', '.join(inserted)} FROM d ORDER BY v0"
    )


def moving_one_sql(to: Route, one_row: str, values: Mapping[str, str]) -> str:
    """The statement that gives the row that a subquery finds new values, and returns where it is
    then. `values` are expressions in SQL by the target's column."""
    kept = [name for name in to.target.columns if _is_kept(to, name) and name not in values]
    names = [identifier(name) for name in kept]
    return (
        f"WITH d AS (DELETE FROM {to.target.sql} WHERE (tableoid, ctid) = ({one_row}) RETURNING *)"
        f" INSERT INTO {to.target.sql} ({', '.join([*names, *map(identifier, values)])})"
        f" OVERRIDING SYSTEM VALUE SELECT {', '.join([*names, *values.values()])} FROM d"
        " RETURNING tableoid, ctid"
    )


def _is_kept(to: Route, name: str) -> bool:
    return not to.target.columns[name].generated
