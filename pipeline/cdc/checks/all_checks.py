"""`millstream cdc check`: what is needed at the sources, in millstream and at the destination."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import psycopg

from millstream.pipeline.cdc.checks.destination_checks import (
    DESTINATION,
    check_database,
    check_targets,
)
from millstream.pipeline.cdc.checks.findings import Finding, error, ok, warning
from millstream.pipeline.cdc.checks.source_checks import check_source
from millstream.pipeline.cdc.config import Config, Source
from millstream.pipeline.cdc.destination.connection import connect
from millstream.pipeline.cdc.source.catalog import CatalogTable
from millstream.pipeline.cdc.source.preparing import Preparation, Refusal
from millstream.pipeline.cdc.streams.appending import open_server, pack
from millstream.pipeline.cdc.streams.source_record import SourceRecord
from millstream.pipeline.cdc.streams.state import StateError
from millstream.pipeline.server import Server, ServerError

MILLSTREAM = "millstream"
APPLICATION = "millstream cdc: check"

Catalog: TypeAlias = dict[tuple[str, str], CatalogTable]


def check_all(config: Config) -> Iterator[Finding]:
    """Everything, for all sources. Nothing is changed."""
    server = open_server(config.millstream)
    findings = check_millstream(server)
    yield from findings
    is_reachable = all(finding.level != "error" for finding in findings)
    catalogs: dict[str, Catalog] = {}
    for source in config.sources:
        found = check_reachable(source, catalogs.setdefault(source.name, {}))
        yield from found
        if is_reachable and all(finding.level != "error" for finding in found):
            yield from check_slot(SourceRecord(config, source, server))
    try:
        with connect(config, APPLICATION) as connection:
            yield from check_database(connection, config)
            for source in config.sources:
                yield from check_targets(connection, config, source, catalogs[source.name], True)
    except psycopg.Error as problem:
        yield error(DESTINATION, f"the destination cannot be used: {problem}")


def check_reachable(source: Source, catalog: Catalog) -> list[Finding]:
    """As `check_source`; a source that cannot be reached is an error among the findings."""
    try:
        return list(check_source(source, catalog))
    except psycopg.Error as problem:
        return [error(source.name, f"the source cannot be used: {problem}")]


def before_reading(record: SourceRecord) -> list[Finding]:
    """What concerns one source, before it is read. psycopg.Error if it cannot be reached.

    Reading does not need the destination: one that cannot be reached is a warning.
    """
    catalog: Catalog = {}
    findings = list(check_source(record.source, catalog))
    try:
        with connect(record.config, APPLICATION) as connection:
            findings += check_targets(connection, record.config, record.source, catalog, False)
    except psycopg.Error as problem:
        findings.append(warning(DESTINATION, f"the destination cannot be used: {problem}"))
    return findings


def check_slot(record: SourceRecord) -> Iterator[Finding]:
    """Whether the slot fits the state in millstream."""
    source = record.source
    try:
        Preparation(record, lambda _: None, lambda _: None).compare()
    except Refusal as refusal:
        for line in refusal.lines:
            yield error(source.name, line)
    except (psycopg.Error, ServerError, StateError) as problem:
        yield error(source.name, f"the slot cannot be examined: {problem}")


def check_millstream(server: Server) -> list[Finding]:
    """Whether the server can be reached and keeps the data that it acknowledges."""
    try:
        found = raw(server, "COMMAND", "INFO", "TAPPENDONCE")
        if not found or found[0] is None:
            return [error(MILLSTREAM, f"{server.address} is not millstream: it has no TAPPENDONCE")]
        settings = {}
        for name in ("maxmemory-policy", "appendonly", "appendfsync"):
            reply = raw(server, "CONFIG", "GET", name)
            settings[name] = reply[1].decode() if reply else ""
    except ServerError as problem:
        return [error(MILLSTREAM, str(problem))]
    return [*_settings(settings), ok(MILLSTREAM, str(server.address))]


def raw(server: Server, *words: str) -> Any:
    """The reply as the server sent it: redis-py would convert it."""
    return server.checked(server.encoded(pack(words)))


def _settings(settings: dict[str, str]) -> Iterator[Finding]:
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
