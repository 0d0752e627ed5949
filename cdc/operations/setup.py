"""`millstream cdc setup`: creates what is missing, or prints the SQL for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
from psycopg import sql

from millstream.cdc.checks.all_checks import check_millstream
from millstream.cdc.checks.destination_checks import (
    PRIVILEGES,
    check_targets,
    create_target,
    missing_schemas,
)
from millstream.cdc.checks.findings import Finding
from millstream.cdc.checks.source_checks import check_source_and_slot
from millstream.cdc.config import CdcConfig, Source, target_of
from millstream.cdc.destination.connections import connect as connect_destination
from millstream.cdc.destination.offsets import NAME, OffsetTable, create_sql
from millstream.cdc.destination.table_kinds import kind_of
from millstream.cdc.destination.target import read_targets
from millstream.cdc.operations.resync_requests import RequestError
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source import publications
from millstream.cdc.source.pg_catalog import Catalog, CatalogTable, connect, read_tables
from millstream.cdc.source.preparing import Preparation
from millstream.cdc.sql import identifier, shown, table_name
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.stream_appender import open_server

APPLICATION = "millstream cdc: setup"

Catalogs = dict[str, Catalog]


def setup(config: CdcConfig, create_targets: bool, say: Callable[[str], None]) -> list[Finding]:
    """Create missing objects and report them. Returns the errors found; if there are any, no object
    is created."""
    server = open_server(config.millstream)
    errors = [finding for finding in check_millstream(server, config) if finding.level == "error"]
    catalogs: Catalogs = {}
    for source in config.sources:
        catalog = catalogs.setdefault(source.name, {})
        found, slot = check_source_and_slot(SourceRecord(config, source, server), catalog, True)
        errors += [finding for finding in [*found, *slot] if finding.level == "error"]
    if errors:
        return errors
    with connect_destination(config, APPLICATION) as connection:
        _create_at_destination(connection, config, catalogs, create_targets, say)
        for source in config.sources:
            errors += [
                finding
                for finding in check_targets(
                    connection, config, source, catalogs[source.name], False
                )
                if finding.level == "error"
            ]
    if errors:
        return errors
    for source in config.sources:
        record = SourceRecord(config, source, server)

        def at(line: str, source: Source = source) -> None:
            say(f"{source.name}: {line}")

        Preparation(record, at, at).run()
    return []


def _create_at_destination(
    connection: Connection,
    config: CdcConfig,
    catalogs: Catalogs,
    create_targets: bool,
    say: Callable[[str], None],
) -> None:
    for what, statement in _missing(connection, config, catalogs, create_targets):
        try:
            connection.execute(sql.SQL(statement))
        except psycopg.Error as problem:
            text = problem.diag.message_primary or str(problem)
            raise RequestError(f"{what} cannot be created: {text}: {statement}") from None
        say(f"destination: {what} was created")


def _missing(
    connection: Connection, config: CdcConfig, catalogs: Catalogs, create_targets: bool
) -> Iterator[tuple[str, str]]:
    """List what is missing at the destination, with the SQL that creates it."""
    schema = config.destination.schema
    for one in missing_schemas(connection, config):
        if create_targets or one == schema:
            yield f"the schema {table_name('', one)}", f"CREATE SCHEMA {identifier(one)}"
    if not OffsetTable(connection, schema).exists():
        yield f"the table {table_name(schema, NAME)}", create_sql(schema).as_string(connection)
    if not create_targets:
        return
    for source in config.sources:
        for table in source.tables:
            found = catalogs[source.name].get((table.schema, table.name))
            name = target_of(table, config)
            # Looked up each time: an earlier table may have the same target.
            if found is not None and not read_targets(connection, [name]):
                statement = create_target(connection, table, found, source, config)
                yield f"the table {table_name(*name)}", statement


# ------------------------------------------------------------ --print-sql


def print_sql(config: CdcConfig, create_targets: bool) -> Iterator[str]:
    """The SQL for what is missing, and the least privileges. Nothing is changed."""
    catalogs: Catalogs = {}
    for source in config.sources:
        with connect(source.url, APPLICATION) as connection:
            catalog = read_tables(connection, source.tables)
            catalogs[source.name] = catalog
            yield f"-- at the source {source.name}"
            yield from _source_sql(source, connection, catalog)
    with connect_destination(config, APPLICATION) as destination:
        yield "-- at the destination"
        yield from _destination_sql(destination, config, catalogs, create_targets)


def _source_sql(
    source: Source,
    connection: psycopg.Connection[object],
    catalog: dict[tuple[str, str], CatalogTable],
) -> Iterator[str]:
    role = identifier(connection.info.user)
    yield f"ALTER ROLE {role} LOGIN REPLICATION;"
    for schema in sorted({schema for schema, _ in catalog}):
        yield f"GRANT USAGE ON SCHEMA {identifier(schema)} TO {role};"
    for table in source.tables:
        if (table.schema, table.name) not in catalog:
            yield f"-- the table {identifier(table.schema, table.name)} does not exist"
    for name in catalog:
        yield f"GRANT SELECT ON {identifier(*name)} TO {role};"
    found = publications.read_publication(connection, source.slot)
    version = connection.info.server_version
    owners = ", ".join(sorted({shown(table.owner) for table in catalog.values()}))
    for statement in publications.statements(source, found, catalog, version):
        yield f"{statement}; -- as the tables' owner, {owners}"


def _destination_sql(
    connection: Connection, config: CdcConfig, catalogs: Catalogs, create_targets: bool
) -> Iterator[str]:
    role = identifier(connection.info.user)
    made = []
    for _, statement in _missing(connection, config, catalogs, create_targets):
        if statement not in made:  # a shared target is missing for each of its sources
            made.append(statement)
            yield f"{statement};"
    schema = config.destination.schema
    tables = {
        target_of(table, config): table for source in config.sources for table in source.tables
    }
    absent: set[tuple[str, str]] = set()
    if not create_targets:
        absent = set(tables) - set(read_targets(connection, list(tables)))
    for name in sorted(absent):
        yield (
            f"-- the target {identifier(*name)} does not exist: create it, or use --create-targets,"
            " and print this again"
        )
    tables = {name: table for name, table in tables.items() if name not in absent}
    for one in sorted({schema, *(name for name, _ in tables)}):
        yield f"GRANT USAGE ON SCHEMA {identifier(one)} TO {role};"
    for name in sorted({(schema, NAME), *tables}):
        yield f"GRANT {', '.join(PRIVILEGES)} ON {identifier(*name)} TO {role};"
    yield f"GRANT TEMPORARY ON DATABASE {identifier(connection.info.dbname)} TO {role};"
    with_copies = {name for (name, _), table in tables.items() if kind_of(table).has_copy_table}
    for one in sorted(with_copies):
        yield f"GRANT CREATE ON SCHEMA {identifier(one)} TO {role}; -- for copies of histories"
