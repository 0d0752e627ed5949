"""The SQL that makes missing targets, from the columns of their sources."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from millstream.cdc.config import CdcConfig, Source, Table, shared_targets, target_of
from millstream.cdc.destination.table_kinds import kind_of
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source.pg_catalog import CatalogTable
from millstream.cdc.sql import identifier


def create_target(
    connection: Connection, table: Table, found: CatalogTable, source: Source, config: CdcConfig
) -> str:
    """CREATE TABLE for a target at the destination."""
    sid = config.destination.sid_column
    siblings = [one for one in config.sources if one.database == source.database]
    is_shared = len(siblings) > 1 or target_of(table, config) in shared_targets(config)
    key = [identifier(sid)] if sid and is_shared else []
    columns = [f"{name} text NOT NULL" for name in key]
    has_key = bool(found.key)
    for column in found.kept(table):
        name = table.rename.get(column.name, column.name)
        if name in table.set:
            continue
        columns.append(f"{identifier(name)} {column.type}{' NOT NULL' if column.key else ''}")
        key += [identifier(name)] if column.key else []
    for name, expression in table.set.items():
        columns.append(f"{identifier(name)} {_type_of(connection, expression, table, found)}")
    kind = kind_of(table)
    columns += [f"{name} {type_}" for name, type_ in kind.own_columns.items()]
    key += kind.key_columns
    if has_key:
        columns.append(f"PRIMARY KEY ({', '.join(key)})")
    return f"CREATE TABLE {identifier(*target_of(table, config))} ({', '.join(columns)})"


def _type_of(connection: Connection, expression: str, table: Table, found: CatalogTable) -> str:
    try:
        return computed_type(connection, expression, table, found, {})
    except psycopg.Error:
        return "text"  # what is wrong with the expression is reported by a check


def computed_type(
    connection: Connection,
    expression: str,
    table: Table,
    found: CatalogTable,
    types: Mapping[str, str],
) -> str:
    """The type of an expression of `set`, over columns with these types, or with those of the
    source. psycopg.Error if the destination cannot compute it."""
    row = ", ".join(
        f"NULL::{types.get(column.name, column.type)} AS {identifier(column.name)}"
        for column in found.kept(table)
    )
    cursor = connection.execute(sql.SQL(f"SELECT ({expression}) FROM (SELECT {row}) AS t LIMIT 0"))
    assert cursor.pgresult is not None
    # With its length, as CREATE TABLE AS takes it: `character` without a length is character(1).
    type_ = [cursor.pgresult.ftype(0), cursor.pgresult.fmod(0)]
    named = connection.execute("SELECT format_type(%s::oid, %s::int4)", type_).fetchone()
    assert named is not None
    return str(named[0])
