"""Tables that can no longer be read from where their copies ended, and why.

The configuration, the table, or what the publication sends may be another one than at the copy. In
all these cases changes may be missing, so the table has to be copied again.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.cdc.config import CdcConfig, Source, Table
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source import publications
from millstream.cdc.source.pg_catalog import CatalogTable, read_tables
from millstream.cdc.source.publications import Publication
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import TableConfig, TableState


def changed_tables(
    config: CdcConfig,
    source: Source,
    states: Mapping[str, TableState | None],
    catalog: Mapping[tuple[str, str], CatalogTable],
    publication: Publication | None,
    version: int,
) -> list[str]:
    """One line for each table, with the command that copies it again."""
    lines = []
    copied = [one for one in states.values() if one is not None and one.phase == "copied"]
    if publication is None and copied:
        return [without_publication(source)]
    for table in source.tables:
        state = states.get(table.full_name)
        if state is None or state.phase == "wanted":
            continue
        found = catalog.get((table.schema, table.name))
        reason = _of_configuration(table, state, config)
        if reason is None and state.phase == "copied":
            reason = state.lost or _not_the_same(table, state, found)
            reason = reason or published_otherwise(
                source, table, state, found, publication, version
            )
        if reason is not None:
            lines.append(
                f"{reason}; to copy the table again: "
                f"millstream cdc resync {source.name} {table.full_name}"
            )
    return lines


def read_changed_tables(
    connection: Connection, record: SourceRecord, states: Mapping[str, TableState | None]
) -> list[str]:
    """The same, from the source's catalog."""
    return changed_tables(
        record.config,
        record.source,
        states,
        read_tables(connection, record.source.tables),
        publications.read_publication(connection, record.source.slot),
        connection.info.server_version,
    )


def without_publication(source: Source) -> str:
    """The line for a publication that was dropped. The source cannot decode changes that were made
    without it, also if it was created again, so that only a new slot helps."""
    return (
        f"the publication {source.slot} was dropped, so changes may be missing; to copy everything"
        f" again: millstream cdc resync {source.name} --all"
    )


def _of_configuration(table: Table, state: TableState, config: CdcConfig) -> str | None:
    """List the options of the table that are not those of its copy."""
    old, new = state.table_config, TableConfig.of(table, config)
    if old is None or old == new:
        return None
    names = [name for name in vars(new) if getattr(old, name) != getattr(new, name)]
    verb = "was" if len(names) == 1 else "were"
    return f"{', '.join(names)} of {table.full_name} {verb} changed since the copy"


def _not_the_same(table: Table, state: TableState, found: CatalogTable | None) -> str | None:
    """Find out whether another table has the name of the one that was copied."""
    if found is None or (state.oid and found.oid != state.oid):
        return f"{table.full_name} is not the table that was copied: it was renamed or dropped"
    return None


def published_otherwise(
    source: Source,
    table: Table,
    state: TableState,
    found: CatalogTable | None,
    publication: Publication | None,
    version: int,
) -> str | None:
    """Find out whether the publication may have left out changes of a table since its copy."""
    name = table.full_name
    if publication is None:
        return f"the publication {source.slot} was dropped, so changes of {name} may be missing"
    stamp = publication.stamp(state.oid or (0 if found is None else found.oid))
    if stamp is None:
        return f"{name} is no longer in the publication, so changes of it may be missing"
    if state.published:
        is_same = stamp == state.published
    else:  # the state was written by an earlier version
        is_same = found is None or publications.is_whole(table, found, publication, version)
    if is_same:
        return None
    return (
        f"the publication {source.slot} was altered since the copy of {name}, so changes of it may"
        " be missing"
    )
