"""Checks of a source before it is read. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg import sql

from millstream.cdc.checks.findings import Finding, error, ok, warning
from millstream.cdc.config import Source, Table
from millstream.cdc.destination.table_kinds import kind_of
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source import publications
from millstream.cdc.source.changed_tables import read_changed_tables
from millstream.cdc.source.pg_catalog import (
    Catalog,
    CatalogTable,
    connect,
    differing_partitions,
    read_tables,
)
from millstream.cdc.source.preparing import Preparation, SourceRefusal
from millstream.cdc.sql import identifier, shown
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import StateError, has_slot
from millstream.errors import counted
from millstream.pipeline.server_connection import ServerError

APPLICATION = "millstream cdc: check"
OLDEST_VERSION = 140000
STANDBY_VERSION = 160000
FAILOVER_VERSION = 170000
SLOTS = 2
"""A slot for the changes, and a temporary one for copies; as many connections read them."""

ROLE = """
SELECT current_user, rolreplication OR rolsuper,
       has_database_privilege(current_database(), 'CREATE'), pg_is_in_recovery()
FROM pg_roles WHERE rolname = current_user
"""
SETTINGS = """
SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,
       current_setting('max_wal_senders')::int, current_setting('max_slot_wal_keep_size'),
       (SELECT count(*) FROM pg_replication_slots
        WHERE slot_name <> %(slot)s AND NOT starts_with(slot_name, %(copy)s)),
       (SELECT count(*) FROM pg_stat_replication
        WHERE NOT starts_with(coalesce(application_name, ''), %(application)s))
"""


def check_source(source: Source, catalog: Catalog, is_fit: bool) -> Iterator[Finding]:
    """Findings about the server, the role, the tables and the publication. The tables that exist
    are added to `catalog`. `is_fit`: the source fits its state in millstream, so `run` would change
    the publication. psycopg.Error if the source cannot be reached."""
    with connect(source.url, APPLICATION) as connection:
        yield from _check(source, connection, catalog, is_fit)


def check_source_and_slot(
    record: SourceRecord, catalog: Catalog, is_reachable: bool
) -> tuple[list[Finding], list[Finding]]:
    """As `check_source`, where a source that cannot be reached is an error; and whether the source
    fits its state in millstream, if millstream `is_reachable`."""
    source = record.source
    slot = list(check_slot(record)) if is_reachable else []
    try:
        return list(check_source(source, catalog, not slot)), slot
    except psycopg.Error as problem:
        return [error(source.name, f"the source cannot be used: {problem}")], []


def check_slot(record: SourceRecord) -> Iterator[Finding]:
    """Check that the slot, the tables and the publication fit the state in millstream."""
    source = record.source
    try:
        state, _ = Preparation(record, lambda _: None, lambda _: None).compare()
        if has_slot(state):
            with connect(source.url, APPLICATION) as connection:
                for line in read_changed_tables(connection, record, record.table_states()):
                    yield error(source.name, line)
    except SourceRefusal as refusal:
        for line in refusal.lines:
            yield error(source.name, line)
    except (psycopg.Error, ServerError, StateError) as problem:
        yield error(source.name, f"the slot cannot be examined: {problem}")


def _check(
    source: Source, connection: Connection, catalog: Catalog, is_fit: bool
) -> Iterator[Finding]:
    version = connection.info.server_version
    if version < OLDEST_VERSION:
        yield error(source.name, f"PostgreSQL {version // 10000} is too old: 14 is the oldest")
        return
    role, may_replicate, may_create, is_standby = _row(connection, ROLE, {})
    if is_standby and version < STANDBY_VERSION:
        yield error(source.name, "the source is a standby: PostgreSQL 16 can be read there")
    if source.failover and version < FAILOVER_VERSION:
        yield error(source.name, "failover needs PostgreSQL 17 or newer")
    if not may_replicate:
        yield error(
            source.name,
            f"{shown(role)} does not have the REPLICATION attribute",
            f"ALTER ROLE {identifier(role)} REPLICATION",
        )
    yield from _settings(source, connection)
    catalog.update(read_tables(connection, source.tables))
    wrong = False
    for table in source.tables:
        findings = list(check_table(source, table, catalog, connection, role))
        wrong = wrong or any(finding.level == "error" for finding in findings)
        yield from findings
    if is_fit and not wrong:
        yield from _publication(source, connection, catalog, may_create)
    count = len(source.tables)
    tables = f"{count} {'table' if count == 1 else 'tables'}"
    yield ok(source.name, f"PostgreSQL {version // 10000}, {tables}")


def _row(connection: Connection, query: str, values: Mapping[str, Any]) -> Any:
    row = connection.execute(query, values).fetchone()
    assert row is not None
    return row


def _settings(source: Source, connection: Connection) -> Iterator[Finding]:
    values = {
        "slot": source.slot,
        "copy": f"{source.slot[:45]}_copy_",
        "application": f"millstream cdc: {source.name}",
    }
    level, slots, senders, keep, other_slots, other_senders = _row(connection, SETTINGS, values)
    if level != "logical":
        yield error(
            source.name,
            f"wal_level is {level}; restart the source after changing it",
            "ALTER SYSTEM SET wal_level = 'logical'",
        )
    for name, limit, used in (
        ("max_replication_slots", slots, other_slots),
        ("max_wal_senders", senders, other_senders),
    ):
        if limit - used < SLOTS:
            yield error(
                source.name,
                f"{name} is {limit}, of which others use {used}, and {SLOTS} are needed; the "
                "source has to be restarted after",
                f"ALTER SYSTEM SET {name} = {used + SLOTS}",
            )
    if keep == "-1":
        yield warning(
            source.name,
            "max_slot_wal_keep_size is -1: while nothing is read, WAL fills the source's disk",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'",
        )


def check_table(
    source: Source,
    table: Table,
    catalog: Mapping[tuple[str, str], CatalogTable],
    connection: Connection,
    role: str,
) -> Iterator[Finding]:
    """Findings about one table of a source."""
    where, name = f"{source.name} {table.full_name}", identifier(table.schema, table.name)
    found = catalog.get((table.schema, table.name))
    if found is None:
        yield error(where, f"the table {table.full_name} does not exist")
        return
    if found.kind not in ("r", "p"):
        yield error(where, "is not a table: only tables and partitioned tables can be published")
        return
    if found.persistence != "p":
        yield error(
            where,
            "is unlogged, so its changes are not in the WAL",
            f"ALTER TABLE {name} SET LOGGED",
        )
    yield from _columns(where, table, found, connection, role)
    if found.has_row_security:
        yield error(
            where,
            f"policies hide rows from {role}, so a copy would be incomplete",
            f"ALTER ROLE {identifier(role)} BYPASSRLS",
        )
    if found.kind == "p":
        yield from _partitions(where, found, connection)
    yield from _key(where, table, found)


def _columns(
    where: str, table: Table, found: CatalogTable, connection: Connection, role: str
) -> Iterator[Finding]:
    """Check that the columns exist, and may be read and filtered."""
    missing = [column for column in table.columns if column not in _names(found)]
    if missing:
        yield error(
            where, f"columns names {', '.join(map(shown, missing))}, which the table does not have"
        )
    if not found.is_readable or not all(column.is_readable for column in found.kept(table)):
        yield error(
            where,
            f"{shown(role)} may not read the table",
            f"GRANT USAGE ON SCHEMA {identifier(table.schema)} TO {identifier(role)}; "
            f"GRANT SELECT ON {identifier(table.schema, table.name)} TO {identifier(role)}",
        )
    elif table.where:
        yield from _filter(where, table, found, connection)


def _partitions(where: str, found: CatalogTable, connection: Connection) -> Iterator[Finding]:
    """Check partitioned tables, and report what is not sent of them."""
    yield warning(
        where,
        "PostgreSQL does not send a TRUNCATE of a single partition, nor ATTACH and DETACH "
        "PARTITION: copy the table again after them",
    )
    differing = differing_partitions(connection, found)
    if differing:
        identity = "FULL" if found.identity == "full" else "DEFAULT"
        yield error(
            where,
            f"has {counted(len(differing), 'partition')} with another replica identity",
            "; ".join(
                f"ALTER TABLE {identifier(*one)} REPLICA IDENTITY {identity}" for one in differing
            ),
        )


def _names(found: CatalogTable) -> set[str]:
    return {column.name for column in found.columns if not column.is_generated}


def _key(where: str, table: Table, found: CatalogTable) -> Iterator[Finding]:
    name = identifier(table.schema, table.name)
    if found.identity == "nothing" or (found.identity != "full" and not found.key):
        yield error(
            where,
            f"has {'no replica identity' if found.key else 'no key'}: publishing it would break "
            "its updates and deletes",
            f"ALTER TABLE {name} REPLICA IDENTITY FULL",
        )
        return
    if kind_of(table).needs_key and not found.key:
        yield error(
            where, f"a {table.type} needs a primary key", f"ALTER TABLE {name} ADD PRIMARY KEY .."
        )
    kept = {column.name for column in found.kept(table)}
    left_out = [] if found.identity == "full" else [key for key in found.key if key not in kept]
    if left_out:
        yield error(
            where,
            "columns must include the replica identity: "
            f"{', '.join(map(shown, left_out))} is missing",
        )
    targets = {table.rename.get(key, key) for key in found.key}
    computed = sorted(targets & set(table.set))
    if computed:
        yield error(
            where, f"set must not compute columns of the key: {', '.join(map(shown, computed))}"
        )
    unknown = sorted(set(table.rename) - kept)
    if unknown:
        yield error(
            where, f"rename names {', '.join(map(shown, unknown))}, which is not replicated"
        )
    taken = sorted((kept - set(table.rename)) & set(table.rename.values()))
    if taken:
        yield error(
            where, f"rename gives a column the name of another one: {', '.join(map(shown, taken))}"
        )


def _filter(
    where: str, table: Table, found: CatalogTable, connection: Connection
) -> Iterator[Finding]:
    """Check that `where` is valid and uses only columns of the replica identity."""
    if connection.info.server_version < publications.FILTERS_VERSION:
        yield error(where, "where needs PostgreSQL 15 or newer at the source")
        return
    columns = _names(found) if found.identity == "full" else set(found.key)
    listed = ", ".join(map(identifier, sorted(columns)))
    # A query that has only the columns of the identity: another column is an error.
    query = (
        f"EXPLAIN SELECT FROM (SELECT {listed} FROM {identifier(table.schema, table.name)}) "
        f"AS {identifier(table.name)} WHERE ({table.where})"
    )
    try:
        connection.execute(sql.SQL(query))
    except psycopg.errors.UndefinedColumn as problem:
        yield error(
            where,
            "where may only use columns of the replica identity "
            f"({', '.join(map(shown, sorted(columns)))}), "
            f"or updates of the table would fail: {problem.diag.message_primary}",
            f"ALTER TABLE {identifier(table.schema, table.name)} REPLICA IDENTITY FULL",
        )
    except psycopg.Error as problem:
        yield error(where, f"where cannot be used: {problem.diag.message_primary or problem}")


def _publication(
    source: Source,
    connection: Connection,
    catalog: Mapping[tuple[str, str], CatalogTable],
    may_create: bool,
) -> Iterator[Finding]:
    found = publications.read_publication(connection, source.slot)
    if found is not None and found.all_tables:
        yield error(
            source.name,
            f"the publication {source.slot} is for all tables",
            f"DROP PUBLICATION {identifier(source.slot)}",
        )
        return
    commands = publications.statements(source, found, catalog, connection.info.server_version)
    if not commands:
        return
    may_change = may_create if found is None else found.is_owned
    owned = all(table.is_owned for table in catalog.values())
    what = "does not exist" if found is None else "does not have what is configured"
    text = "; ".join(commands)
    if may_change and owned:
        yield warning(source.name, f"the publication {what}; setup and run change it", text)
    else:
        yield error(
            source.name, f"the publication {what}, and only the tables' owner can change that", text
        )
