"""Columns of a source whose values the target cannot take, and the SQL that cures it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import psycopg

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.staging import missing_types
from millstream.cdc.sql import identifier, literal, shown
from millstream.cdc.streams.column_record import ColumnRecord


def missing_columns(session: TargetSession, to: Route, names: Sequence[str]) -> list[str]:
    """Those columns of a source that neither the target takes nor a `set` uses or makes."""
    return [
        name
        for name in names
        if name not in to.columns
        and to.table.rename.get(name, name) not in to.table.set
        and not _is_used(session, to, name)
    ]


def _is_used(session: TargetSession, to: Route, name: str) -> bool:
    """True if an expression of `set` uses a column: it cannot be computed without the column."""
    if name not in to.source_types:
        return False
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)", re.IGNORECASE)
    quoted = name.replace('"', '""')
    used = [one for one in to.table.set.values() if word.search(one) or quoted in one]
    if not used:
        return False
    types = {one: to.column(one).base_type for one in to.columns} | missing_types(session, to)
    return any(
        _can_compute(session, one, types)
        and not _can_compute(session, one, {key: types[key] for key in types if key != name})
        for one in used
    )


def _can_compute(session: TargetSession, expression: str, types: dict[str, str]) -> bool:
    row = ", ".join(f"NULL::{type_} AS {identifier(name)}" for name, type_ in types.items())
    try:
        with session.connection.transaction():
            session.rows(f"SELECT ({expression}) FROM (SELECT {row}) AS r LIMIT 0")
    except psycopg.errors.UndefinedColumn:
        return False
    except psycopg.DatabaseError as error:
        if error.sqlstate is None:  # the connection was lost
            raise
    return True


def missing_text(to: Route, names: Sequence[str], record: ColumnRecord) -> str:
    """The reason why the changes cannot be applied, in one sentence with the SQL that cures it."""
    target = to.target.sql
    absent = [name for name in names if _target_name(to, name) not in to.target.columns]
    if absent:
        listed = ", ".join(_described(to, name) for name in absent)
        cure = "; ".join(_alter(to, name, record) for name in absent)
        noun = "column" if len(absent) == 1 else "columns"
        return f"{target} lacks the {noun} {listed}, which the source has: {cure}"
    name = names[0]
    column = _target_name(to, name)
    if to.target.columns[column].generated:
        return (
            f"the column {shown(column)} of {target} is generated, so the source's values cannot be"
            f" written: ALTER TABLE {target} ALTER COLUMN {identifier(column)} DROP EXPRESSION"
        )
    return (
        f"the column {shown(column)} of {target} is one that millstream fills, so the source's"
        f" values cannot be written: give the source's column {shown(name)} another name with"
        " `rename`"
    )


def _target_name(to: Route, name: str) -> str:
    return to.table.rename.get(name, name)


def _described(to: Route, name: str) -> str:
    column = _target_name(to, name)
    return shown(column) if column == name else f"{shown(column)} ({shown(name)} at the source)"


def _alter(to: Route, name: str, record: ColumnRecord) -> str:
    """The ALTER TABLE that gives the target a column of the source."""
    table, column = f"ALTER TABLE {to.target.sql}", identifier(_target_name(to, name))
    before = record.other_name(name, lambda other: _target_name(to, other) in to.target.columns)
    if before is not None:
        return f"{table} RENAME COLUMN {identifier(_target_name(to, before))} TO {column}"
    known = record.latest(name)
    if known is not None:
        default = "" if known.default is None else f" DEFAULT {literal(known.default)}"
        return f"{table} ADD COLUMN {column} {known.type}{default}"
    type_ = to.source_types.get(name)
    if type_ is not None:
        return f"{table} ADD COLUMN {column} {type_}"
    return f"{table} ADD COLUMN {column} with the type that it has at the source"
