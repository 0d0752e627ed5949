"""`millstream cdc check`: what is needed at the sources, in millstream and at the destination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg

from millstream.cdc.checks.destination_checks import DESTINATION, check_database, check_targets
from millstream.cdc.checks.findings import Finding, error, ok, warning
from millstream.cdc.checks.source_checks import (
    APPLICATION,
    check_slot,
    check_source,
    check_source_and_slot,
)
from millstream.cdc.config import CdcConfig
from millstream.cdc.destination.connections import connect
from millstream.cdc.source.pg_catalog import Catalog
from millstream.cdc.streams.key_names import SourceKeys
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.stream_appender import open_server, pack
from millstream.pipeline.server_connection import (
    ServerConnection,
    ServerError,
    SeveralSlotsError,
)

MILLSTREAM = "millstream"


def check_all(config: CdcConfig) -> Iterator[Finding]:
    """Everything, for all sources. Nothing is changed."""
    server = open_server(config.millstream)
    findings = check_millstream(server, config)
    yield from findings
    is_reachable = all(finding.level != "error" for finding in findings)
    catalogs: dict[str, Catalog] = {}
    for source in config.sources:
        catalog = catalogs.setdefault(source.name, {})
        record = SourceRecord(config, source, server)
        found, slot = check_source_and_slot(record, catalog, is_reachable)
        yield from found
        if all(finding.level != "error" for finding in found):
            yield from slot
    try:
        with connect(config, APPLICATION) as connection:
            yield from check_database(connection, config)
            for source in config.sources:
                yield from check_targets(connection, config, source, catalogs[source.name], True)
    except psycopg.Error as problem:
        yield error(DESTINATION, f"the destination cannot be used: {problem}")


def before_reading(record: SourceRecord) -> list[Finding]:
    """Check what concerns one source, before it is read. psycopg.Error if it cannot be reached.

    Reading does not need the destination: one that cannot be reached is a warning.
    """
    catalog: Catalog = {}
    is_fit = not list(check_slot(record))
    findings = list(check_source(record.source, catalog, is_fit))
    try:
        with connect(record.config, APPLICATION) as connection:
            findings += check_targets(
                connection, record.config, record.source, catalog, is_reading=True
            )
    except psycopg.Error as problem:
        findings.append(warning(DESTINATION, f"the destination cannot be used: {problem}"))
    return findings


def check_millstream(server: ServerConnection, config: CdcConfig) -> list[Finding]:
    """Check that the server can be reached and keeps the data that it acknowledges."""
    try:
        found = _raw(server, "COMMAND", "INFO", "TAPPENDONCE")
        if not found or found[0] is None:
            return [error(MILLSTREAM, f"{server.address} is not millstream: it has no TAPPENDONCE")]
        _check_slots(server, config)
    except ServerError as problem:
        return [error(MILLSTREAM, str(problem))]
    return [*_settings(server), ok(MILLSTREAM, str(server.address))]


def _check_slots(server: ServerConnection, config: CdcConfig) -> None:
    """SeveralSlotsError if the server is a cluster that has the keys of a source in several
    slots."""
    for source in config.sources:
        keys = SourceKeys(config.millstream.prefix, source)
        names = [keys.state, *map(keys.table_state, source.tables)]
        try:
            server.transaction([("GET", name) for name in names])
        except SeveralSlotsError:
            raise
        except ServerError:
            continue  # the user may not read them: reading them reports it


def _raw(server: ServerConnection, *words: str) -> Any:
    """The reply as the server sent it: redis-py would convert it."""
    return server.checked(server.encoded(pack(words)))


def _settings(server: ServerConnection) -> Iterator[Finding]:
    """Settings with which confirmed changes can be lost. A user need not have the right to read
    them: CONFIG GET also shows passwords."""
    settings = {}
    for name in ("maxmemory-policy", "appendonly", "appendfsync"):
        try:
            reply = _raw(server, "CONFIG", "GET", name)
        except ServerError as problem:
            yield warning(
                MILLSTREAM,
                f"maxmemory-policy, appendonly and appendfsync are not checked: {problem}",
                "check them as a user who may run CONFIG GET",
            )
            return
        settings[name] = reply[1].decode() if reply else ""
    if settings["maxmemory-policy"] == "allstreams-oldest":
        yield warning(
            MILLSTREAM,
            "maxmemory-policy allstreams-oldest evicts changes first, because IDs that are LSNs "
            "look like the oldest",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if settings["appendonly"] == "no":
        yield warning(
            MILLSTREAM,
            "there is no journal: a crash loses changes that were confirmed to the sources, which "
            "are refused after it",
            "CONFIG SET appendonly yes",
        )
    elif settings["appendfsync"] != "always":
        yield warning(
            MILLSTREAM,
            f"appendfsync is {settings['appendfsync']}: a power failure loses changes that were "
            "confirmed to the sources, which are refused after it",
            "CONFIG SET appendfsync always",
        )
