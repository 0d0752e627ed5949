"""Target tables: their catalog at the destination, and where the columns of a source go."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.cdc.config import Table
from millstream.cdc.protocol.session import Connection
from millstream.cdc.sql import identifier, literal, shown
from millstream.cdc.streams.source_state import Identity, SourceColumn

TargetName: TypeAlias = tuple[str, str]
"""Schema and name."""

START, END, DELETED = "kvsz_start", "kvsz_end", "kvsz_deleted"
HISTORY_COLUMNS = (START, END, DELETED)

COLUMNS_SQL = """
SELECT w.schema, w.name, c.oid::int8, a.attname, a.attnotnull, a.attgenerated <> '',
       a.attidentity = 'a',
       format_type(a.atttypid, a.atttypmod),
       CASE WHEN t.typtype = 'd' THEN format_type(t.typbasetype, t.typtypmod)
            ELSE format_type(a.atttypid, a.atttypmod) END
  FROM unnest(%s::text[], %s::text[]) AS w (schema, name)
  JOIN pg_namespace n ON n.nspname = w.schema
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name AND c.relkind IN ('r', 'p')
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  JOIN pg_type t ON t.oid = a.atttypid
 ORDER BY c.oid, a.attnum
"""
INDEXES_SQL = """
SELECT i.indrelid::int8, array_agg(a.attname::text)
  FROM pg_index i
  CROSS JOIN unnest(i.indkey[0:i.indnkeyatts - 1]) AS k (number)
  JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number
 WHERE i.indrelid = ANY (%s::oid[]) AND i.indisunique AND i.indisvalid AND i.indimmediate
   AND i.indpred IS NULL AND i.indexprs IS NULL
 GROUP BY i.indrelid, i.indexrelid
"""


class TargetError(Exception):
    """A target cannot take the changes of its table; the text says what has to be changed."""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column. `type` is in SQL; `base_type` is the type that a domain is made of. A `fixed`
    column is GENERATED ALWAYS AS IDENTITY: it can be inserted, but not updated."""

    name: str
    type: str
    base_type: str
    not_null: bool
    generated: bool
    fixed: bool


@dataclass
class Target:
    """A table of the destination. `unique` holds the columns of each unique index without
    conditions and expressions."""

    schema: str
    name: str
    oid: int
    columns: dict[str, TargetColumn] = field(default_factory=dict)
    unique: list[frozenset[str]] = field(default_factory=list)

    @property
    def sql(self) -> str:
        return identifier(self.schema, self.name)

    @property
    def fixed(self) -> set[str]:
        """The columns that cannot be updated."""
        return {name for name, column in self.columns.items() if column.fixed}

    @property
    def shape(self) -> Hashable:
        """Equal as long as the table is not altered."""
        return self.oid, tuple(self.columns.values()), frozenset(self.unique)


def read_targets(connection: Connection, names: Sequence[TargetName]) -> dict[TargetName, Target]:
    """The catalog of the targets that exist."""
    found: dict[TargetName, Target] = {}
    by_oid: dict[int, Target] = {}
    wanted = list(dict.fromkeys(names))
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS_SQL, [[one[0] for one in wanted], [one[1] for one in wanted]])
        for schema, name, oid, column, not_null, generated, fixed, type_, base in cursor:
            target = found.setdefault((schema, name), Target(schema, name, oid))
            by_oid[oid] = target
            target.columns[column] = TargetColumn(column, type_, base, not_null, generated, fixed)
        cursor.execute(INDEXES_SQL, [list(by_oid)])
        for oid, columns in cursor:
            by_oid[oid].unique.append(frozenset(columns))
    return found


@dataclass(frozen=True)
class Route:
    """Where the changes of one table of one source go.

    `columns` maps a source's column to the target's. `key` has the source's columns of the key;
    without a key, rows are found by all their values. `sid` is the target's column for the sid.
    """

    table: Table
    target: Target
    sid_value: str
    sid: str | None
    columns: Mapping[str, str]
    key: tuple[str, ...]
    source_types: Mapping[str, str]

    @property
    def of_sid(self) -> str:
        """The condition that a row `t` of the target belongs to this source."""
        return self.sid_of("t")

    def sid_of(self, alias: str) -> str:
        """The condition that a row of the target with this alias belongs to this source."""
        if self.sid is None:
            return "true"
        return f"{alias}.{identifier(self.sid)} = {literal(self.sid_value)}"

    def column(self, source: str) -> TargetColumn:
        return self.target.columns[self.columns[source]]

    def key_columns(self) -> list[str]:
        """The names of the key's columns at the target, without the sid's."""
        return [self.columns[name] for name in self.key]


def route(
    table: Table,
    target: Target,
    sid: str,
    sid_column: str,
    columns: Sequence[SourceColumn],
    identity: Identity,
    is_shared: bool = False,
) -> Route:
    """Where the changes of a table go. TargetError if the target cannot take them."""
    own = sid_column if sid_column and sid_column in target.columns else None
    if own is None and is_shared:
        raise TargetError(
            f"{target.sql} has no column {sid_column!r}, but takes the rows of several sources:"
            f" ALTER TABLE {target.sql} ADD {identifier(sid_column or 'sid')} text NOT NULL"
        )
    missing = [name for name in HISTORY_COLUMNS if name not in target.columns]
    if table.type == "history" and missing:
        raise TargetError(
            f"{target.sql} is a history without the column {', '.join(map(shown, missing))}"
        )
    mapped = {
        name: table.rename.get(name, name)
        for name in (column.name for column in columns)
        if _takes(target, table, table.rename.get(name, name), own)
    }
    key = _key(table, target, own, columns, identity, mapped)
    types = {column.name: column.type for column in columns}
    return Route(table, target, sid, own, mapped, key, types)


def extended(to: Route, names: Sequence[str]) -> Route:
    """The route, with columns that the source's table got after its copy and the target has."""
    more = {
        name: to.table.rename.get(name, name)
        for name in names
        if name not in to.columns
        and _takes(to.target, to.table, to.table.rename.get(name, name), to.sid)
    }
    if not more:
        return to
    columns = {**to.columns, **more}
    return Route(to.table, to.target, to.sid_value, to.sid, columns, to.key, to.source_types)


def _takes(target: Target, table: Table, name: str, sid: str | None) -> bool:
    column = target.columns.get(name)
    if column is None or column.generated or name == sid or name in table.set:
        return False
    return table.type != "history" or name not in HISTORY_COLUMNS


def _key(
    table: Table,
    target: Target,
    sid: str | None,
    columns: Sequence[SourceColumn],
    identity: Identity,
    mapped: Mapping[str, str],
) -> tuple[str, ...]:
    """The columns of the key; empty for a target without one."""
    key = tuple(column.name for column in columns if column.key)
    wanted = {table.rename.get(name, name) for name in key}
    wanted |= {sid} if sid else set()
    wanted |= {START} if table.type == "history" else set()
    if key and all(name in mapped for name in key) and frozenset(wanted) in target.unique:
        return key
    if identity == "full" and table.type != "history":
        return ()
    if not key:
        raise TargetError(f"{table.full_name} has no key: a history needs one")
    names = ", ".join(identifier(name) for name in sorted(wanted))
    absent = ", ".join(shown(name) for name in sorted(wanted) if name not in target.columns)
    if absent:
        raise TargetError(f"{target.sql} lacks {absent} of the key ({names}): ALTER TABLE")
    raise TargetError(
        f"{target.sql} has no unique index over ({names}):"
        f" CREATE UNIQUE INDEX ON {target.sql} ({names})"
    )
