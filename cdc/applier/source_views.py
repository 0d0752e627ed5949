"""Reads the state of each source and table in millstream before a batch, and trims their streams
after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.cdc.config import CdcConfig, Source, Table, TableKey, shared_targets, target_of
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.cdc.sql import read_lsn
from millstream.cdc.streams.changes import Id
from millstream.cdc.streams.key_names import SourceKeys
from millstream.cdc.streams.source_state import TableConfig, TableState
from millstream.pipeline.positions import id_from_text, id_text
from millstream.pipeline.selection import after
from millstream.pipeline.server_connection import Command, ServerConnection
from millstream.pipeline.stream_counters import ALL, StreamCounters, info_of

COMMANDS_PER_TABLE = 4


@dataclass(frozen=True)
class ConfiguredTable:
    """A table of a source, and what the configuration says about it."""

    source: Source
    table: Table
    keys: SourceKeys
    table_config: TableConfig
    is_shared: bool

    @property
    def key(self) -> TableKey:
        return self.source.key_of(self.table)


@dataclass(frozen=True)
class TableView:
    """The state and the streams of a table in millstream, at one moment."""

    key: TableKey
    stream: str
    copy_stream: str
    state: TableState | None
    info: StreamCounters | None
    copy_info: StreamCounters | None


@dataclass(frozen=True)
class SourceView:
    """A source at one moment. `newest_cut` is a commit LSN, 0 without a cut; `cut_lsn` is where its
    transaction ended, `cut_at` its time."""

    source: Source
    cuts: str
    newest_cut: int
    cut_lsn: int | None
    cut_at: str | None
    cuts_info: StreamCounters | None
    tables: Mapping[TableKey, TableView]
    resumed: frozenset[TableKey]


def configured_tables(config: CdcConfig) -> list[ConfiguredTable]:
    """All tables of all sources."""
    shared = shared_targets(config)
    return [
        ConfiguredTable(
            source,
            table,
            SourceKeys(config.millstream.prefix, source),
            TableConfig.of(table, config),
            target_of(table, config) in shared,
        )
        for source in config.sources
        for table in source.tables
    ]


def read_sources(server: ServerConnection, tables: Sequence[ConfiguredTable]) -> list[SourceView]:
    """All sources. The state of a source's tables and their streams are of one moment."""
    by_source: dict[str, list[ConfiguredTable]] = {}
    for configured in tables:
        by_source.setdefault(configured.source.name, []).append(configured)
    return [_source_view(server, own) for own in by_source.values()]


def _source_view(server: ServerConnection, tables: Sequence[ConfiguredTable]) -> SourceView:
    keys = tables[0].keys
    commands: list[Command] = [("TINFO", keys.cuts), ("XREVRANGE", keys.cuts, "+", "-", "COUNT", 1)]
    for configured in tables:
        commands.append(("GET", keys.table_state(configured.table)))
        commands.append(("TINFO", keys.changes(configured.table)))
        commands.append(("TINFO", keys.copy(configured.table)))
        commands.append(("EXISTS", keys.resume(configured.table)))
    replies = [server.checked(reply) for reply in server.transaction(commands)]
    cuts_info = info_of(replies[0])
    cut, fields = 0, dict[bytes, bytes]()
    if replies[1]:
        ((id_, fields),) = replies[1]
        cut = int(id_.split(b"-")[0])
    views: dict[TableKey, TableView] = {}
    resumed = set()
    for number, configured in enumerate(tables):
        at = 2 + COMMANDS_PER_TABLE * number
        text, info, copy_info, is_resumed = replies[at : at + COMMANDS_PER_TABLE]
        views[configured.key] = TableView(
            configured.key,
            keys.changes(configured.table),
            keys.copy(configured.table),
            None if text is None else TableState.from_json(text),
            info_of(info),
            info_of(copy_info),
        )
        if is_resumed:
            resumed.add(configured.key)
    lsn, at_text = fields.get(b"lsn"), fields.get(b"at")
    return SourceView(
        tables[0].source,
        keys.cuts,
        cut,
        None if lsn is None else read_lsn(lsn.decode()),
        None if at_text is None else at_text.decode(),
        cuts_info,
        views,
        frozenset(resumed),
    )


# ------------------------------------------------------------ trimming


def trim(
    server: ServerConnection, stream: str, info: StreamCounters | None, until: Id, keep: int
) -> None:
    """Evict the entries of a stream up to an ID, except for the last `keep` of them."""
    if keep < 0 or info is None or info.first_id is None or info.first_id > until:
        return
    first = after(until)
    if keep:
        (later, _) = server.call("TSEEK", stream, id_text(until), ALL)
        surplus = info.length - later - keep
        if surplus <= 0:
            return
        (_, last) = server.call("TSEEK", stream, "0", surplus)
        if last is None:
            return
        first = after(id_from_text(last))
    if first is not None:
        server.call("XTRIM", stream, "MINID", f"{first[0]}-{first[1]}")


def trim_copy(
    server: ServerConnection, configured: ConfiguredTable, view: TableView, offset: AppliedOffset
) -> None:
    """Evict the blocks of a copy that have been loaded; delete the stream of a complete one."""
    state, info = view.state, view.copy_info
    if state is None or info is None:
        return
    if state.phase == "copied" and offset.copied_lsn == state.copy_lsn:
        key = configured.keys.table_state(configured.table)
        text = server.call("GET", key)
        # The reader may have begun another copy since.
        if text is not None and TableState.from_json(text) == state:
            server.transaction_if(key, text, [("DEL", view.copy_stream)])
    elif offset.copy_id is not None and offset.copy_id[0] == state.copy_lsn:
        trim(server, view.copy_stream, info, offset.copy_id, 0)
