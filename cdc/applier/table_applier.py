"""One table's entries on their way from millstream into its target, in a given transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from millstream.cdc.applier.apply_jobs import ApplyJob
from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.missing_columns import missing_columns, missing_text
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.cdc.destination.route import ChangeWriter, Route, extended
from millstream.cdc.destination.snapshot_loader import CopyWriter
from millstream.cdc.destination.target import TargetError
from millstream.cdc.streams.changes import Change, Entry, EntryReader, Id
from millstream.cdc.streams.column_record import ColumnRecord
from millstream.cdc.streams.key_names import columns_key
from millstream.pipeline.range_plan import Range
from millstream.pipeline.range_reader import open_range
from millstream.pipeline.server_connection import ServerConnection
from millstream.storage.blocks.block import Block

# Entries in memory at a time.
ENTRIES_MAX = 20_000
BYTES_MAX = 32 << 20

Shape: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]
"""The columns of a change's new row, and those of its old row."""


def lost(job: ApplyJob, text: str) -> str:
    """The message for entries that no longer exist, with the command that repairs the table."""
    return f"{text}: millstream cdc resync {job.source} {job.key[2]}"


class TableApplier:
    """Entries of one job; `offset` is where the table is when they have been applied."""

    def __init__(
        self,
        session: TargetSession,
        server: ServerConnection,
        job: ApplyJob,
        to: Route,
        offset: AppliedOffset,
        new_names: Mapping[str, str] | None = None,
    ) -> None:
        """`new_names` has the target's names of columns that were renamed at both sides.
        TargetError if the target lacks columns of the copy."""
        self._session = session
        self._server = server
        self.job = job
        self._route = self._written_route = to
        self._reader = EntryReader([column.name for column in job.columns])
        self.offset = offset
        self.applied = 0
        self.rows = 0
        self.warnings: list[str] = []
        self._new_names = new_names or {}
        self._known: dict[Shape, Shape] = {}
        names = [column.name for column in job.columns]
        self._copy_writer: CopyWriter | None = None
        if job.is_copy:
            self._require(names)
            self._copy_writer = CopyWriter(session, to, names, offset)

    @property
    def has_whole_transactions(self) -> bool:
        """True if its changes can only be applied by whole transactions of the source."""
        return self._route.kind.has_whole_transactions

    def entries(self) -> Iterator[list[Entry]]:
        """The entries to apply, in lists that fit into memory."""
        after = self.job.after
        if not self.job.is_copy:
            after = max(after, self.offset.id)
        elif self.offset.copy_id is not None and self.offset.copy_id[0] == self.job.copy_lsn:
            after = max(after, self.offset.copy_id)
        if after >= self.job.until:
            return iter(())
        job = self.job
        range_ = Range(job.stream.encode(), after, job.until, job.entries, job.incarnation)
        return fetch(self._server, range_)

    def changes(self, entries: Sequence[Entry]) -> list[Change]:
        """The changes in entries. TargetError if the target lacks columns of them."""
        read, known = self._reader.read, self._known
        changes = [read(id_, words) for id_, words in entries]
        for change in changes:
            shape = change.columns, change.old_columns
            named = known.get(shape)
            if named is None:
                named = known[shape] = self._learn(change)
            change.columns, change.old_columns = named
        return changes

    def _learn(self, change: Change) -> Shape:
        """The target's names of a change's columns, which the target has. The route gets those that
        the copy did not have."""
        if change.columns:
            self._require_listed(change.columns)
        new_names = self._new_names
        columns, old_columns = (
            tuple(new_names.get(name, name) for name in names)
            for names in (change.columns, change.old_columns)
        )
        names = list(dict.fromkeys((*columns, *old_columns)))
        self._route = extended(self._route, names)
        self._require(names)
        return columns, old_columns

    def _require_listed(self, names: Sequence[str]) -> None:
        """TargetError if changes no longer have a column that the configuration lists."""
        gone = [name for name in self._route.table.columns if name not in names]
        if gone:
            noun = "column" if len(gone) == 1 else "columns"
            raise TargetError(
                lost(
                    self.job,
                    f"the changes lack the {noun} {', '.join(gone)}, which `columns` lists and the"
                    " source renamed or dropped; correct `columns`, and copy the table again",
                )
            )

    def _require(self, names: Sequence[str]) -> None:
        """TargetError if the target does not take all of these columns, unless that is wanted."""
        missing = missing_columns(self._session, self._route, names)
        if not missing:
            return
        if self._route.table.missing_columns == "stop":
            key = columns_key(self.job.changes)
            record = ColumnRecord.from_json(self._server.call("GET", key))
            record = record.with_copied(self.job.columns)
            raise TargetError(missing_text(self._route, missing, record))
        text = f"{self._route.target.sql} lacks {', '.join(missing)}: ignored"
        if text not in self.warnings:
            self.warnings.append(text)

    def run(self) -> None:
        """Apply everything."""
        if self.job.is_copy:
            for chunk in self.entries():
                self.load(chunk)
            return
        writer: ChangeWriter | None = None
        for chunk in self.entries():
            writer = self.write(writer, self.changes(chunk))
        if writer is not None:
            writer.flush()

    def write(self, writer: ChangeWriter | None, changes: Sequence[Change]) -> ChangeWriter:
        """Apply changes with a writer, or with a new one if the route has further columns; the
        writer that did it."""
        if writer is None or self._written_route is not self._route:
            if writer is not None:
                writer.flush()
            writer = self.writer()
        writer.apply(changes)
        self.moved(changes)
        return writer

    def load(self, entries: Sequence[Entry]) -> None:
        """Apply entries of a copy."""
        assert self._copy_writer is not None
        self._copy_writer.apply(self.job.copy_lsn, entries)
        self.offset = self._copy_writer.offset
        self.rows = self._copy_writer.rows
        self.applied += len(entries)

    def reload(self) -> None:
        """Entries of a copy were rolled back: continue at the offset."""
        names = [column.name for column in self.job.columns]
        rows = self.rows
        self._copy_writer = CopyWriter(self._session, self._route, names, self.offset)
        self._copy_writer.rows = rows

    def writer(self) -> ChangeWriter:
        """A writer for the changes of the table."""
        self._written_route = self._route
        return self._route.kind.writer(self._session, self._route)

    def moved(self, changes: Sequence[Change]) -> None:
        """These changes have been applied."""
        self.applied += len(changes)
        last = changes[-1].id
        self.offset = replace(self.offset, state="streaming", id=last, error=None, error_id=None)

    def back_to(self, first: Id) -> None:
        """The changes from this one on were rolled back."""
        lsn, n = first
        self.offset = replace(self.offset, id=(lsn, n - 1))


class StreamChanged(Exception):
    """The stream is no longer what the plan was made for: it was deleted, created again or
    trimmed."""


def fetch(
    server: ServerConnection, range_: Range, entries_max: int = ENTRIES_MAX
) -> Iterator[list[Entry]]:
    """The entries of a range, as many at a time as a worker may hold. StreamChanged if some of them
    no longer exist."""
    pages = open_range(server, range_)
    chunk: list[Entry] = []
    size_bytes = 0
    for page in pages.pages():
        if page.max_evicted_id > range_.after:
            raise StreamChanged
        for data in page.blocks:
            size_bytes += len(data)
            for ms, seq, words in Block.from_bytes(data).entries():
                if page.first <= (ms, seq) <= page.last:
                    chunk.append(((ms, seq), words))
                    if len(chunk) >= entries_max:
                        yield chunk
                        chunk, size_bytes = [], 0
            if size_bytes >= BYTES_MAX and chunk:
                yield chunk
                chunk, size_bytes = [], 0
    if pages.last_page is None or pages.last_page.incarnation != range_.incarnation:
        raise StreamChanged
    if chunk:
        yield chunk
