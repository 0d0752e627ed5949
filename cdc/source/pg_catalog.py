"""The tables in a source's catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import psycopg

from millstream.cdc.config import Table
from millstream.cdc.protocol.session import Connection, session
from millstream.cdc.sql import identifier
from millstream.cdc.streams.column_record import RecordedColumn
from millstream.cdc.streams.source_state import Identity, SourceColumn

IDENTITIES: Mapping[str, Identity] = {"d": "default", "f": "full", "i": "index", "n": "nothing"}

TABLES = """
SELECT n.nspname, c.relname, c.oid::int8, c.relkind::text, c.relpersistence::text,
       c.relreplident::text, row_security_active(c.oid),
       CASE WHEN has_schema_privilege(n.oid, 'USAGE') THEN has_table_privilege(c.oid, 'SELECT')
            OR has_any_column_privilege(c.oid, 'SELECT') ELSE false END,
       pg_has_role(c.relowner, 'USAGE'), pg_get_userbyid(c.relowner)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest(%s::text[], %s::text[]))
"""

# With identity full, the key is the primary key: the target's rows are found by it.
COLUMNS = """
SELECT a.attrelid::int8, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
       coalesce(a.attnum = ANY (i.indkey), false),
       a.attgenerated <> '', has_column_privilege(a.attrelid, a.attnum, 'SELECT'), a.attnum::int,
       CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_index i ON i.indrelid = c.oid
    AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""


@dataclass(frozen=True)
class CatalogColumn:
    """A column. With identity full, `key` is whether it is in the primary key."""

    name: str
    type: str
    not_null: bool
    key: bool
    is_generated: bool
    is_readable: bool
    number: int
    missing_value: str | None
    """The value of rows that were there before the column, if PostgreSQL did not rewrite them."""


@dataclass(frozen=True)
class CatalogTable:
    schema: str
    name: str
    oid: int
    kind: str
    """`r` for a table, `p` for a partitioned one; v, m, f .. cannot be published."""
    persistence: str
    """`p` for permanent, u for unlogged, t for temporary."""
    identity: Identity
    has_row_security: bool
    """True if policies would hide rows from the user."""
    is_readable: bool
    is_owned: bool
    owner: str
    columns: tuple[CatalogColumn, ...]

    def kept(self, table: Table) -> list[CatalogColumn]:
        """The columns that are replicated, in their order."""
        return [
            column
            for column in self.columns
            if not column.is_generated and (not table.columns or column.name in table.columns)
        ]

    def source_columns(self, table: Table) -> tuple[SourceColumn, ...]:
        return tuple(
            SourceColumn(column.name, column.type, column.key, column.not_null, column.number)
            for column in self.kept(table)
        )

    def recorded_columns(self, table: Table) -> tuple[RecordedColumn, ...]:
        return tuple(
            RecordedColumn(column.name, column.type, column.number, column.missing_value)
            for column in self.kept(table)
        )

    @property
    def key(self) -> list[str]:
        return [column.name for column in self.columns if column.key]


def connect(url: str, application: str) -> Connection:
    """An ordinary connection to a source, whose values have the format of the slot's."""
    return psycopg.connect(url, autocommit=True, **session(url, application))


Catalog: TypeAlias = dict[tuple[str, str], CatalogTable]
"""Tables by schema and name."""


def read_tables(connection: Connection, tables: Sequence[Table]) -> Catalog:
    """The tables that exist."""
    names = [table.schema for table in tables], [table.name for table in tables]
    rows = connection.execute(TABLES, names).fetchall()
    columns: dict[int, list[CatalogColumn]] = {row[2]: [] for row in rows}
    for oid, name, kind, not_null, key, *rest in connection.execute(COLUMNS, [list(columns)]):
        columns[oid].append(CatalogColumn(name, kind, not_null, key, *rest))
    found = {}
    for row in rows:
        schema, name, oid, kind, persistence, identity, hidden, readable, owned, owner = row
        found[schema, name] = CatalogTable(
            schema,
            name,
            oid,
            kind,
            persistence,
            IDENTITIES[identity],
            hidden,
            readable,
            owned,
            owner,
            tuple(columns[oid]),
        )
    return found


def read_table(connection: Connection, table: Table) -> CatalogTable | None:
    return read_tables(connection, [table]).get((table.schema, table.name))


# ALTER TABLE .. REPLICA IDENTITY of a partitioned table leaves its partitions as they are.
OTHER_IDENTITIES = """
SELECT n.nspname, c.relname FROM pg_partition_tree(%s::oid::regclass) t
JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf AND c.relreplident <> (SELECT relreplident FROM pg_class WHERE oid = %s)
ORDER BY 1, 2
"""


def differing_partitions(connection: Connection, found: CatalogTable) -> list[tuple[str, str]]:
    """The partitions whose replica identity is another than that of their table."""
    if found.kind != "p":
        return []
    return connection.execute(OTHER_IDENTITIES, [found.oid, found.oid]).fetchall()


def selection(table: Table, found: CatalogTable) -> str:
    """The query for the rows of a copy."""
    columns = ", ".join(identifier(column.name) for column in found.kept(table))
    # The publication does not have the rows of tables that inherit from this one, but it has those
    # of partitions.
    only = "" if found.kind == "p" else "ONLY "
    where = f" WHERE ({table.where})" if table.where else ""
    return f"SELECT {columns} FROM {only}{identifier(table.schema, table.name)}{where}"
