"""`millstream cdc check`: what is needed at the sources, in millstream and at the destination."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from millstream.cdc.checks.destination_checks import (
    DESTINATION,
    check_database,
    check_targets,
)
from millstream.cdc.checks.findings import Finding, error, warning
from millstream.cdc.checks.millstream_checks import check_millstream
from millstream.cdc.checks.source_checks import (
    APPLICATION,
    check_slot,
    check_source,
    check_source_and_slot,
)
from millstream.cdc.config import CdcConfig
from millstream.cdc.destination.connections import connect
from millstream.cdc.source.pg_catalog import Catalog
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.stream_appender import open_server


def check_all(config: CdcConfig) -> Iterator[Finding]:
    """Everything, for all sources. Nothing is changed."""
    server = open_server(config.millstream)
    findings = check_millstream(server)
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
