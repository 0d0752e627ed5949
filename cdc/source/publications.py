"""The publication of a source: what it has to be, and the SQL that makes it so."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from millstream.cdc import CdcError
from millstream.cdc.config import Source, Table
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source.pg_catalog import CatalogTable
from millstream.cdc.sql import identifier

FILTERS_VERSION = 150000
"""PostgreSQL 15: publications have row filters and lists of columns."""

PUBLICATION = """
SELECT pubviaroot, puballtables, pubinsert AND pubupdate AND pubdelete AND pubtruncate,
       pg_has_role(pubowner, 'USAGE'), oid::text || '.' || xmin::text, {schemas},
       coalesce(obj_description(oid, 'pg_publication'), '')
FROM pg_publication WHERE pubname = %s
"""
SCHEMAS = """ARRAY(SELECT n.nspname::text FROM pg_publication_namespace s
        JOIN pg_namespace n ON n.oid = s.pnnspid WHERE s.pnpubid = pg_publication.oid ORDER BY 1)"""
MEMBERS = """
SELECT n.nspname, c.relname, {columns}, {filter}, c.oid::int8, r.oid::int8
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
    table_oid: int
    oid: int
    """Of the table's row in pg_publication_rel: another one for a table that was taken out and put
    back, or that got another filter or other columns."""


@dataclass(frozen=True)
class Publication:
    """A publication. `version` is another one after each ALTER PUBLICATION that sets options, and
    after the publication was created again. `schemas` are published with all their tables."""

    via_root: bool
    all_tables: bool
    all_changes: bool
    is_owned: bool
    version: str
    schemas: tuple[str, ...]
    comment: str
    members: Mapping[tuple[str, str], Member]

    def stamp(self, table_oid: int) -> str | None:
        """The identity of a table's place in the publication; None if it has none."""
        for member in self.members.values():
            if member.table_oid == table_oid:
                return ".".join([self.version, str(member.oid), *self.schemas])
        return None


def read_publication(connection: Connection, name: str) -> Publication | None:
    has_filters = connection.info.server_version >= FILTERS_VERSION
    found = PUBLICATION.format(schemas=SCHEMAS if has_filters else "ARRAY[]::text[]")
    row = connection.execute(found, [name]).fetchone()
    if row is None:
        return None
    query = MEMBERS.format(
        columns=LISTED if has_filters else "NULL",
        filter="r.prqual IS NOT NULL" if has_filters else "false",
    )
    members = {
        (schema, table): Member(None if columns is None else tuple(columns), *rest)
        for schema, table, columns, *rest in connection.execute(query, [name])
    }
    via_root, all_tables, all_changes, is_owned, version, schemas, comment = row
    return Publication(
        via_root, all_tables, all_changes, is_owned, version, tuple(schemas), comment, members
    )


def is_whole(table: Table, found: CatalogTable, publication: Publication, version: int) -> bool:
    """True if a publication sends all changes of a table that are configured."""
    member = publication.members.get((found.schema, found.name))
    return (
        member is not None
        and publication.all_changes
        and publication.via_root
        and not publication.schemas
        and member.columns == listed(table, found, version)
        and member.has_filter == bool(table.where)
    )


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
    found += [
        f"ALTER PUBLICATION {name} DROP TABLES IN SCHEMA {identifier(schema)}"
        for schema in publication.schemas
    ]
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


class NotAllowedError(CdcError):
    """The publication cannot be changed; the text has the SQL."""


def execute(connection: Connection, commands: Sequence[str]) -> None:
    """Run the statements in one transaction. NotAllowedError if the role may not."""
    try:
        with connection.transaction():
            for command in commands:
                connection.execute(sql.SQL(command))
    except psycopg.errors.InsufficientPrivilege as error:
        needed = "; ".join(commands)
        raise NotAllowedError(
            f"{error.diag.message_primary}: let the tables' owner run: {needed}"
        ) from None
