"""One table's entries on their way from millstream into its target, in a given transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from millstream.pipeline.cdc.applier.jobs import Job
from millstream.pipeline.cdc.destination.clone import KeyedWriter
from millstream.pipeline.cdc.destination.history import HistoryWriter
from millstream.pipeline.cdc.destination.keyless import KeylessWriter
from millstream.pipeline.cdc.destination.loading import CopyWriter
from millstream.pipeline.cdc.destination.positions import Position
from millstream.pipeline.cdc.destination.staging import Session
from millstream.pipeline.cdc.destination.target import Route, extended, left_out
from millstream.pipeline.cdc.streams.changes import Change, EntryReader, Id
from millstream.pipeline.cdc.streams.pulling import Entry, chunks
from millstream.pipeline.range_plan import Range
from millstream.pipeline.server import Server


class Writer(Protocol):
    """Applies changes to a target."""

    def apply(self, changes: Sequence[Change]) -> None: ...


def lost(job: Job, text: str) -> str:
    """The message for entries that no longer exist, with the command that repairs the table."""
    return f"{text}: millstream cdc resync {job.source} {job.key[2]}"


class Transfer:
    """Entries of one job; `position` is where the table is when they have been applied."""

    def __init__(
        self, session: Session, server: Server, job: Job, to: Route, position: Position
    ) -> None:
        self._session = session
        self._server = server
        self._job = job
        self._route = to
        self._reader = EntryReader([column.name for column in job.columns])
        self.position = position
        self.applied = 0
        self.rows = 0
        self.warnings: list[str] = []
        names = [column.name for column in job.columns]
        self._warn_left_out(names)
        self._copy_writer = CopyWriter(session, to, names, position) if job.is_copy else None

    @property
    def is_copy(self) -> bool:
        return self._job.is_copy

    @property
    def is_history(self) -> bool:
        return self._route.table.type == "history"

    def entries(self) -> Iterator[list[Entry]]:
        """The entries to apply, in lists that fit into memory."""
        after = self._job.after
        if not self._job.is_copy:
            after = max(after, self.position.id)
        elif self.position.copy_id is not None and self.position.copy_id[0] == self._job.copy_lsn:
            after = max(after, self.position.copy_id)
        if after >= self._job.until:
            return iter(())
        job = self._job
        range_ = Range(job.stream.encode(), after, job.until, job.entries, job.incarnation)
        return chunks(self._server, range_)

    def changes(self, entries: Sequence[Entry]) -> list[Change]:
        read = self._reader.read
        return [read(id_, words) for id_, words in entries]

    def run(self) -> None:
        """Apply everything."""
        if self.is_copy:
            for chunk in self.entries():
                self.load(chunk)
            return
        writer: Writer | None = None
        for chunk in self.entries():
            changes = self.changes(chunk)
            is_wider = self.widen(changes)
            if writer is None or is_wider:
                flush(writer)
                writer = self.writer()
            writer.apply(changes)
            self.moved(changes)
        flush(writer)

    def load(self, entries: Sequence[Entry]) -> None:
        """Apply entries of a copy."""
        assert self._copy_writer is not None
        self._copy_writer.apply(self._job.copy_lsn, entries)
        self.position = self._copy_writer.position
        self.rows = self._copy_writer.rows
        self.applied += len(entries)

    def reload(self) -> None:
        """Entries of a copy were rolled back: continue at the position."""
        names = [column.name for column in self._job.columns]
        rows = self.rows
        self._copy_writer = CopyWriter(self._session, self._route, names, self.position)
        self._copy_writer.rows = rows

    def writer(self) -> Writer:
        """A writer for the changes of the table."""
        if not self._route.key:
            return KeylessWriter(self._session, self._route)
        if self.is_history:
            return HistoryWriter(self._session, self._route)
        return KeyedWriter(self._session, self._route)

    def moved(self, changes: Sequence[Change]) -> None:
        """These changes have been applied."""
        self.applied += len(changes)
        last = changes[-1].id
        self.position = replace(
            self.position, state="streaming", id=last, error=None, error_id=None
        )

    def back_to(self, first: Id) -> None:
        """The changes from this one on were rolled back."""
        lsn, n = first
        self.position = replace(self.position, id=(lsn, n - 1))

    def widen(self, changes: Sequence[Change]) -> bool:
        """Whether entries have columns that the target has and the copy did not have."""
        names: dict[str, None] = {}
        for columns in {change.columns for change in changes}:
            names.update(dict.fromkeys(columns))
        wider = extended(self._route, list(names))
        is_wider = wider is not self._route
        self._route = wider
        self._warn_left_out(list(names))
        return is_wider

    def _warn_left_out(self, names: Sequence[str]) -> None:
        missing = left_out(self._route, names)
        if missing:
            listed = ", ".join(missing)
            text = f"{self._route.target.sql} lacks {listed}: left out"
            if text not in self.warnings:
                self.warnings.append(text)


def flush(writer: Writer | None) -> None:
    """Write what a writer still holds; its last transaction is complete."""
    if isinstance(writer, HistoryWriter):
        writer.flush()
