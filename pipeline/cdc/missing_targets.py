"""The SQL that makes missing targets, from the columns of their sources."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg
from psycopg import sql

from millstream.pipeline.cdc.catalog import CatalogTable
from millstream.pipeline.cdc.config import Config, Source, Table, target_name
from millstream.pipeline.cdc.replication import quoted
from millstream.pipeline.cdc.target import DELETED, END, START, Connection, TargetName, identifier


def target_of(table: Table, config: Config) -> TargetName:
    """The target's schema and name."""
    schema, _, name = target_name(table, config).rpartition(".")
    return schema, name


def is_shared(table: Table, config: Config) -> bool:
    """Whether several tables have the same target."""
    name = target_name(table, config)
    owners = [one for source in config.sources for one in source.tables]
    return sum(target_name(one, config) == name for one in owners) > 1


def create_target(
    connection: Connection, table: Table, found: CatalogTable, source: Source, config: Config
) -> str:
    """CREATE TABLE for a target at the destination."""
    sid = config.destination.sid_column
    siblings = [one for one in config.sources if one.database == source.database]
    key = [quoted(sid)] if sid and (len(siblings) > 1 or is_shared(table, config)) else []
    columns = [f"{name} text NOT NULL" for name in key]
    has_key = bool(found.key)
    for column in found.kept(table):
        name = table.rename.get(column.name, column.name)
        if name in table.set:
            continue
        columns.append(f"{quoted(name)} {column.type}{' NOT NULL' if column.key else ''}")
        key += [quoted(name)] if column.key else []
    for name, expression in table.set.items():
        columns.append(f"{quoted(name)} {_type_of(connection, expression, table, found)}")
    if table.type == "history":
        columns += [f"{START} timestamptz NOT NULL", f"{END} timestamptz NOT NULL"]
        columns += [f"{DELETED} boolean NOT NULL"]
        key.append(START)
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
        f"NULL::{types.get(column.name, column.type)} AS {quoted(column.name)}"
        for column in found.kept(table)
    )
    cursor = connection.execute(sql.SQL(f"SELECT ({expression}) FROM (SELECT {row}) AS t LIMIT 0"))
    assert cursor.description is not None
    oid = cursor.description[0].type_code
    named = connection.execute("SELECT format_type(%s::oid, NULL)", [oid]).fetchone()
    assert named is not None
    return str(named[0])
