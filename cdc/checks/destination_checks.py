"""Checks of the destination and its targets. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import sql

from millstream.cdc.checks.findings import Finding, error, ok, warning
from millstream.cdc.config import CdcConfig, Source, Table, shared_targets, target_of
from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.missing_columns import missing_columns, missing_text
from millstream.cdc.destination.offsets import NAME, OffsetTable, create_sql
from millstream.cdc.destination.route import FirstCopy, Route, route
from millstream.cdc.destination.table_kinds import kind_of
from millstream.cdc.destination.target import TargetError, TargetTable, read_targets
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source.pg_catalog import CatalogTable
from millstream.cdc.sql import identifier, shown, table_name
from millstream.cdc.streams.column_record import ColumnRecord
from millstream.errors import counted

DESTINATION = "destination"
ROWS_COUNTED = 1_000_000
PRIVILEGES = ("SELECT", "INSERT", "UPDATE", "DELETE")


# ------------------------------------------------------------ checks


def check_database(connection: Connection, config: CdcConfig) -> Iterator[Finding]:
    """Findings that do not concern one table."""
    schema = config.destination.schema
    role, database, may_make_temporary = _row(
        connection,
        "SELECT current_user, current_database(),"
        " has_database_privilege(current_database(), 'TEMPORARY')",
    )
    if not may_make_temporary:
        yield error(
            DESTINATION,
            f"{shown(role)} may not create temporary tables",
            f"GRANT TEMPORARY ON DATABASE {identifier(database)} TO {identifier(role)}",
        )
    for one in missing_schemas(connection, config):
        yield error(
            DESTINATION,
            f"the schema {table_name('', one)} does not exist; setup creates it",
            f"CREATE SCHEMA {identifier(one)}",
        )
    if not OffsetTable(connection, schema).exists():
        yield warning(
            DESTINATION,
            f"the table {table_name(schema, NAME)} does not exist; setup creates it",
            create_sql(schema).as_string(connection),
        )
    else:
        yield from _privileges(connection, DESTINATION, schema, NAME)
    version = connection.info.server_version
    yield ok(DESTINATION, f"PostgreSQL {version // 10000}")


def missing_schemas(connection: Connection, config: CdcConfig) -> list[str]:
    """The schemas of the table of offsets and of the targets that do not exist."""
    wanted = {config.destination.schema}
    wanted |= {target_of(table, config)[0] for one in config.sources for table in one.tables}
    rows = connection.execute("SELECT nspname FROM pg_namespace").fetchall()
    return sorted(wanted - {name for (name,) in rows})


def check_targets(
    connection: Connection,
    config: CdcConfig,
    source: Source,
    catalog: Mapping[tuple[str, str], CatalogTable],
    with_rows: bool = False,
    is_reading: bool = False,
) -> Iterator[Finding]:
    """Findings about the targets of a source. `with_rows`: also about the rows that they have.
    `is_reading`: a target that only `apply` cannot use yet is a warning."""
    offsets = OffsetTable(connection, config.destination.schema)
    known = {}
    if with_rows and offsets.exists() and not _lacking(connection, config.destination.schema, NAME):
        known = offsets.read()
    copied = {key: one.copied_lsn for key, one in known.items()}
    targets = read_targets(connection, [target_of(table, config) for table in source.tables])
    for table in source.tables:
        found = catalog.get((table.schema, table.name))
        if found is None:
            continue
        where, name = f"{source.name} {table.full_name}", target_of(table, config)
        target = targets.get(name)
        if target is None:
            yield error(
                where,
                f"the target {table_name(*name)} does not exist",
                create_target(connection, table, found, source, config),
            )
            continue
        try:
            to = _route(config, source, table, found, target)
        except TargetError as problem:
            yield error(where, str(problem))
            continue
        yield from _check_target(connection, where, table, found, to, is_reading)
        if with_rows and copied.get(source.key_of(table)) is None:
            yield from _rows(connection, where, to)


def _check_target(
    connection: Connection,
    where: str,
    table: Table,
    found: CatalogTable,
    to: Route,
    is_reading: bool,
) -> Iterator[Finding]:
    target = to.target
    columns = [column.name for column in found.source_columns(table)]
    missing = missing_columns(TargetSession(connection), to, columns)
    if missing and table.missing_columns == "ignore":
        yield warning(
            where, f"{target.sql} lacks {', '.join(map(shown, missing))}, which is ignored"
        )
    elif missing:
        text = missing_text(to, missing, ColumnRecord(found.recorded_columns(table)))
        # Reading continues without these columns; only `apply` stops the table.
        yield warning(where, text) if is_reading else error(where, text)
    yield from _computed(connection, where, table, to, found)
    yield from _privileges(connection, where, target.schema, target.name)
    if to.kind.has_copy_table:
        yield from _may_create(connection, where, to)
    yield ok(where, f"{table.type} in {target.sql}")


def _computed(
    connection: Connection, where: str, table: Table, to: Route, found: CatalogTable
) -> Iterator[Finding]:
    """Check that the expressions of `set` can be computed."""
    for name, expression in table.set.items():
        if name not in to.target.columns:
            yield error(where, f"set names {shown(name)}, which {to.target.sql} does not have")
            continue
        types = {one: to.column(one).type for one in to.columns}
        try:
            computed_type(connection, expression, table, found, types)
        except psycopg.errors.UndefinedObject:
            continue  # a type of the source that the destination does not have
        except psycopg.Error as problem:
            text = problem.diag.message_primary or str(problem)
            yield error(where, f"set of {shown(name)} cannot be computed: {text}")


def _privileges(connection: Connection, where: str, schema: str, table: str) -> Iterator[Finding]:
    role = _lacking(connection, schema, table)
    if role:
        yield error(
            where,
            f"{shown(role)} may not change {table_name(schema, table)}",
            f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {identifier(role)}; "
            f"GRANT {', '.join(PRIVILEGES)} ON {identifier(schema, table)} TO {identifier(role)}",
        )


def _lacking(connection: Connection, schema: str, table: str) -> str | None:
    """The role if it lacks privileges on a table that exists. Reads the catalog: the name of a
    table can only be used with a privilege on its schema."""
    role, *held = _row(
        connection,
        "SELECT current_user, "
        + ", ".join(f"has_table_privilege(c.oid, '{one}')" for one in PRIVILEGES)
        + ", has_schema_privilege(n.oid, 'USAGE')"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %(schema)s AND c.relname = %(name)s",
        {"schema": schema, "name": table},
    )
    return None if all(held) else str(role)


def _may_create(connection: Connection, where: str, to: Route) -> Iterator[Finding]:
    role, may_create = _row(
        connection,
        "SELECT current_user, has_schema_privilege(%(schema)s, 'CREATE')",
        {"schema": to.target.schema},
    )
    if not may_create:
        yield error(
            where,
            f"{shown(role)} may not create the table with which the copy of a {to.table.type}"
            " is compared",
            f"GRANT CREATE ON SCHEMA {identifier(to.target.schema)} TO {identifier(role)}",
        )


def _route(
    config: CdcConfig, source: Source, table: Table, found: CatalogTable, target: TargetTable
) -> Route:
    sid_column, columns = config.destination.sid_column, found.source_columns(table)
    is_shared = target_of(table, config) in shared_targets(config)
    kind, identity = kind_of(table), found.identity
    return route(kind, target, source.sid, sid_column, columns, identity, is_shared)


def _rows(connection: Connection, where: str, to: Route) -> Iterator[Finding]:
    """Report the effect of the first copy on the rows that the target has."""
    if _lacking(connection, to.target.schema, to.target.name):
        return  # it is reported, and the rows cannot be counted
    first_copy = to.kind.first_copy(bool(to.key))
    if first_copy is FirstCopy.KEEPS:
        return
    (count,) = _row(
        connection,
        f"SELECT count(*) FROM (SELECT FROM {to.target.sql} AS t WHERE {to.of_sid}"
        f" LIMIT {ROWS_COUNTED + 1}) AS t",
    )
    if not count:
        return
    rows = f"more than {ROWS_COUNTED} rows" if count > ROWS_COUNTED else counted(count, "row")
    if first_copy is FirstCopy.DELETES:
        yield warning(where, f"the first copy deletes {rows} of {to.target.sql}")
    else:
        yield warning(
            where,
            f"{to.target.sql} has {rows} and no key, so a copy cannot be appended to it",
            f"DELETE FROM {to.target.sql} AS t WHERE {to.of_sid}",
        )


def _row(connection: Connection, query: str, values: Mapping[str, Any] | None = None) -> Any:
    row = connection.execute(sql.SQL(query), values).fetchone()
    assert row is not None
    return row


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
