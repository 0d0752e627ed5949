"""The records of a source in millstream, for all programs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from millstream.cdc.config import CdcConfig, Source, Table
from millstream.cdc.streams.key_names import SourceKeys
from millstream.cdc.streams.source_state import SourceState, TableState
from millstream.cdc.streams.stream_appender import States
from millstream.pipeline.server_connection import ServerConnection


@dataclass(frozen=True)
class SourceRecord:
    """The record of a source: its keys, and the server that has them."""

    config: CdcConfig
    source: Source
    server: ServerConnection

    @property
    def keys(self) -> SourceKeys:
        return SourceKeys(self.config.millstream.prefix, self.source)

    def all_keys(self) -> Iterator[str]:
        """Every key of the source that exists, the stream of cuts as well."""
        yield self.keys.cuts
        yield from (key.decode() for key in self.server.scan(self.keys.pattern))

    def table_states(self) -> dict[str, TableState | None]:
        """The states of the configured tables, by their full names."""
        commands = [("GET", self.keys.table_state(table)) for table in self.source.tables]
        texts = [self.server.checked(reply) for reply in self.server.pipeline(commands)]
        return {
            table.full_name: None if text is None else TableState.from_json(text)
            for table, text in zip(self.source.tables, texts, strict=True)
        }

    def tables_by_oid(self) -> dict[int, Table]:
        """The tables that have been copied, by their numbers in the source's catalog."""
        states = self.table_states()
        return {
            state.oid: table
            for table in self.source.tables
            if (state := states[table.full_name]) is not None and state.oid
        }

    def source_state(self, states: States) -> SourceState | None:
        text = states.read(self.keys.state)
        return None if text is None else SourceState.from_json(text)
