"""The publication of a source: what it has to be, and the SQL that makes it so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from millstream.pipeline.cdc.config import Source, Table
from millstream.pipeline.cdc.protocol.session import Connection
from millstream.pipeline.cdc.source.catalog import CatalogTable
from millstream.pipeline.cdc.sql import identifier

FILTERS_VERSION = 150000
"""PostgreSQL 15: publications have row filters and lists of columns."""

PUBLICATION = """
SELECT pubviaroot, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate,
       pg_has_role(pubowner, 'USAGE')
FROM pg_publication WHERE pubname = %s
"""
MEMBERS = """
SELECT n.nspname, c.relname, {columns}, {filter}
FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
JOIN pg_class c ON c.oid = r.prrelid JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE p.pubname = %s
"""
LISTED = """(SELECT array_agg(a.attname::text ORDER BY a.attnum) FROM pg_attribute a
        WHERE a.attrelid = r.prrelid AND a.attnum = ANY (r.prattrs::int2[]))"""
OPTIONS = "publish = 'insert, update, delete, truncate', publish_via_partition_root = true"


@dataclass(frozen=True)
class Member:
    """A table in a publication. `columns` is None if all are published."""

    columns: tuple[str, ...] | None
    has_filter: bool


@dataclass(frozen=True)
class Publication:
    via_root: bool
    all_tables: bool
    all_changes: bool
    is_owned: bool
    members: Mapping[tuple[str, str], Member]


def read_publication(connection: Connection, name: str) -> Publication | None:
    row = connection.execute(PUBLICATION, [name]).fetchone()
    if row is None:
        return None
    has_filters = connection.info.server_version >= FILTERS_VERSION
    query = MEMBERS.format(
        columns=LISTED if has_filters else "NULL",
        filter="r.prqual IS NOT NULL" if has_filters else "false",
    )
    members = {
        (schema, table): Member(None if columns is None else tuple(columns), filtered)
        for schema, table, columns, filtered in connection.execute(query, [name])
    }
    via_root, all_tables, all_changes, is_owned = row
    return Publication(via_root, all_tables, all_changes, is_owned, members)


def listed(table: Table, found: CatalogTable, version: int) -> tuple[str, ...] | None:
    """The columns in the publication; None for all. With identity full a list would have to name
    every column; the columns that are not wanted are left out after reading."""
    if not table.columns or found.identity == "full" or version < FILTERS_VERSION:
        return None
    return tuple(column.name for column in found.kept(table))


def clause(table: Table, found: CatalogTable, version: int) -> str:
    """A table in CREATE PUBLICATION."""
    columns = listed(table, found, version)
    names = f" ({', '.join(map(identifier, columns))})" if columns is not None else ""
    where = f" WHERE ({table.where})" if table.where else ""
    return f"{identifier(table.schema, table.name)}{names}{where}"


def statements(
    source: Source,
    publication: Publication | None,
    catalog: Mapping[tuple[str, str], CatalogTable],
    version: int,
    renewed: Collection[Table] = (),
) -> list[str]:
    """The SQL that makes the publication what the configuration says; nothing if it is.

    `renewed` are tables whose filter may be another one than that of the publication.
    """
    name = identifier(source.slot)
    tables = [table for table in source.tables if (table.schema, table.name) in catalog]
    if publication is None:
        return [f"CREATE PUBLICATION {name}{_for(tables, catalog, version)} WITH ({OPTIONS})"]
    found: list[str] = []
    if not (publication.via_root and publication.all_changes):
        found.append(f"ALTER PUBLICATION {name} SET ({OPTIONS})")
    wanted = {(table.schema, table.name): table for table in tables}
    for key, member in publication.members.items():
        table = wanted.get(key)
        if table is not None and (table not in renewed or not table.where):
            same = member.columns == listed(table, catalog[key], version)
            if same and member.has_filter == bool(table.where):
                del wanted[key]
                continue
        found.append(f"ALTER PUBLICATION {name} DROP TABLE {identifier(*key)}")
    found += [
        f"ALTER PUBLICATION {name} ADD TABLE {clause(table, catalog[key], version)}"
        for key, table in wanted.items()
    ]
    return found


def _for(
    tables: Sequence[Table], catalog: Mapping[tuple[str, str], CatalogTable], version: int
) -> str:
    parts = [clause(table, catalog[table.schema, table.name], version) for table in tables]
    return f" FOR TABLE {', '.join(parts)}" if parts else ""


def execute(connection: Connection, commands: Sequence[str]) -> None:
    """Run the statements in one transaction."""
    with connection.transaction():
        for command in commands:
            connection.execute(sql.SQL(command))
