"""Preparing a source before it is read: comparing, the publication, the tables, the slot."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import psycopg

from millstream.cdc import CdcError
from millstream.cdc.config import Table
from millstream.cdc.protocol.replication_stream import ReplicationStream, SystemId
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source import ownership, publications, slots
from millstream.cdc.source.changed_tables import changed_tables
from millstream.cdc.source.pg_catalog import CatalogTable, connect, read_tables
from millstream.cdc.source.publications import Publication
from millstream.cdc.streams.source_record import SourceRecord
from millstream.cdc.streams.source_state import SourceState, TableState, has_slot
from millstream.cdc.streams.stream_appender import States, Words, append_words
from millstream.cdc.streams.translator import time_text


class SourceRefusal(CdcError):
    """The source cannot be read in its current state; no change was made. One line for each
    reason."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("; ".join(lines))
        self.lines = list(lines)


def start_words(key: str) -> Words:
    """The request that creates a stream of changes, if there is none."""
    now = time_text(time.time_ns() // 1000).encode()
    return append_words(key, 0, 1, [(b"@op", b"start"), (b"@at", now)])


class Preparation:
    """Makes a source ready; the state from which it is read."""

    def __init__(
        self, record: SourceRecord, report: Callable[[str], None], log: Callable[[str], None]
    ) -> None:
        self._record = record
        self._source = record.source
        self._keys = record.keys
        self._states = States(record.server)
        self._report = report
        self._log = log

    def compare(self) -> tuple[SourceState | None, SystemId]:
        """The state, and the cluster. Refusal if they do not fit each other."""
        # In this order, because another process may be reading: the durable LSN is at or after what
        # the slot has confirmed, and at or before the end of the WAL.
        with connect(self._source.url, self._application) as connection:
            slot = slots.read_slot(connection, self._source.slot)
            comment = ownership.read_comment(connection, self._source)
        state = self._record.source_state(self._states)
        problem = ownership.foreign_line(self._source, state, slot, comment)
        if problem is not None:
            raise SourceRefusal([problem])
        if not has_slot(state) and slot is not None and slot.active_pid is not None:
            # It is about to be dropped. Nothing is changed before that is possible.
            raise psycopg.errors.ObjectInUse(
                f'replication slot "{slot.name}" is active for PID {slot.active_pid}'
            )
        with ReplicationStream(self._source.url, self._application) as replication:
            system = replication.identify()
            problem = slots.refusal(self._source, state, slot, system, replication.timeline_end)
        if problem is not None:
            raise SourceRefusal([problem])
        return state, system

    def run(self, is_known: bool = False) -> SourceState:
        """Compare, then create what is missing. With `is_known`, a source that is recorded nowhere
        was dropped, and is not created again. Refusal, psycopg.Error, ServerError, RefusedError,
        ReplacedError."""
        state, system = self.compare()
        if state is None and is_known:
            raise SourceRefusal(
                ["the source was dropped while it was read: start run again to copy it"]
            )
        is_new = not has_slot(state)
        with connect(self._source.url, self._application) as connection:
            catalog = read_tables(connection, self._source.tables)
            publication = publications.read_publication(connection, self._source.slot)
            tables = self._record.table_states()
            if not is_new:
                lines = changed_tables(
                    *(self._record.config, self._source, tables, catalog, publication),
                    connection.info.server_version,
                )
                if lines:
                    raise SourceRefusal(lines)
            self._forget_removed()
            copied = [] if is_new else [name for name, one in tables.items() if is_copied(one)]
            state = self._owned(state, system)
            if self._publish(connection, catalog, publication, copied, state.owner):
                publication = publications.read_publication(connection, self._source.slot)
            if not is_new:
                self._stamp(tables, publication)
            if is_new:
                return self._make_slot(connection, system, state.owner)
            self._want(tables)
            if state.timeline != system.timeline:
                state = replace(state, timeline=system.timeline)
                self._states.swap(self._keys.state, state.to_json())
            return state

    @property
    def _application(self) -> str:
        return f"millstream cdc: {self._source.name}"

    # ------------------------------------------------------------ tables

    def _stamp(
        self, states: Mapping[str, TableState | None], publication: Publication | None
    ) -> None:
        """Record the place in the publication of each copied table, which is known to be as it was
        at its copy: an earlier version recorded none, and `run` itself may have changed it."""
        for table in self._source.tables:
            state = states[table.full_name]
            if state is None or state.phase != "copied" or publication is None:
                continue
            stamp, key = publication.stamp(state.oid), self._keys.table_state(table)
            if stamp in (None, state.published):
                continue
            text = self._states.read(key)
            if text is not None and TableState.from_json(text) == state:
                self._states.swap(key, replace(state, published=stamp).to_json())

    def _forget_removed(self) -> None:
        """A table that is not in the file any more is copied again if it is added later."""
        configured = {table.full_name for table in self._source.tables}
        for key in self._record.all_keys():
            name = self._keys.table_name(key)
            if name is not None and name not in configured:
                self._record.server.call("DEL", key)
                self._log(f"{name} is no longer in the configuration; its stream stays until drop")

    def _want(self, states: Mapping[str, TableState | None]) -> None:
        for table in self._source.tables:
            key = self._keys.table_state(table)
            self._record.server.call(*start_words(self._keys.changes(table)))
            if states[table.full_name] is None:
                self._states.read(key)
                self._states.swap(key, TableState().asked().to_json())

    # ------------------------------------------------------------ publication and slot

    def _publish(
        self,
        connection: Connection,
        catalog: Mapping[tuple[str, str], CatalogTable],
        publication: Publication | None,
        copied: Collection[str],
        owner: str,
    ) -> bool:
        """Make the publication what the configuration says; whether it was another one."""
        renewed: list[Table] = []
        if publication is not None and publication.is_owned:
            renewed = [table for table in self._source.tables if table.full_name not in copied]
        commands = publications.statements(
            self._source, publication, catalog, connection.info.server_version, renewed
        )
        found = None if publication is None else ownership.owner_in(publication.comment)
        comments = []
        if found != owner and (publication is None or publication.is_owned):
            comments = [ownership.comment_sql(self._source, owner, self._keys.prefix)]
        try:
            publications.execute(connection, [*commands, *comments])
        except publications.NotAllowedError as error:
            raise SourceRefusal([str(error)]) from None
        for command in commands:
            self._log(command)
        return bool(commands)

    def _owned(self, state: SourceState | None, system: SystemId) -> SourceState:
        """The state with the ID of this pipeline, which is recorded before the publication gets
        it."""
        if state is not None and state.owner:
            return state
        made = state or SourceState(self._source.slot, system.system, system.timeline, 0)
        made = replace(made, owner=ownership.new_owner())
        self._states.swap(self._keys.state, made.to_json())
        return made

    def _make_slot(self, connection: Connection, system: SystemId, owner: str) -> SourceState:
        """Begin from scratch: empty streams, a new slot, and copies of all tables."""
        state = SourceState(self._source.slot, system.system, system.timeline, 0, owner=owner)
        others: list[Words] = []
        kept = {self._keys.state, self._keys.alive}
        gone = [key for key in self._record.all_keys() if key not in kept]
        others.append(["DEL", *gone])
        for table in self._source.tables:
            others.append(start_words(self._keys.changes(table)))
            asked = TableState().asked("pausing").to_json()
            others.append(["SET", self._keys.table_state(table), asked])
        self._states.swap(self._keys.state, state.to_json(), *others)
        if slots.drop_slot(connection, self._source.slot):
            self._log(f"the slot {self._source.slot} was dropped")
        lsn = slots.create_slot(self._source, self._report)
        made = replace(state, phase="made", durable_lsn=lsn)
        self._states.swap(self._keys.state, made.to_json())
        self._log(f"the slot {self._source.slot} was created")
        return made


def is_copied(state: TableState | None) -> bool:
    """True if the table was copied or is being copied."""
    return state is not None and state.phase != "wanted"
