"""Target tables: their catalog at the destination."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.cdc.protocol.session import Connection
from millstream.cdc.sql import identifier

TargetName: TypeAlias = tuple[str, str]
"""Schema and name."""

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
class TargetTable:
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


def read_targets(
    connection: Connection, names: Sequence[TargetName]
) -> dict[TargetName, TargetTable]:
    """The catalog of the targets that exist."""
    found: dict[TargetName, TargetTable] = {}
    by_oid: dict[int, TargetTable] = {}
    wanted = list(dict.fromkeys(names))
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS_SQL, [[one[0] for one in wanted], [one[1] for one in wanted]])
        for schema, name, oid, column, not_null, generated, fixed, type_, base in cursor:
            target = found.setdefault((schema, name), TargetTable(schema, name, oid))
            by_oid[oid] = target
            target.columns[column] = TargetColumn(column, type_, base, not_null, generated, fixed)
        cursor.execute(INDEXES_SQL, [list(by_oid)])
        for oid, columns in cursor:
            by_oid[oid].unique.append(frozenset(columns))
    return found
