"""Copies on their way into a target: `begin`, blocks of rows, `end`.

A clone's rows of this sid are deleted, and the blocks are loaded as they are. Rows of an append are
upserted. A history is compared with the copy, which is in an unlogged table next to it until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.cdc.destination.route import Route
from millstream.cdc.destination.staging import Staging, copy_into, escaped_text, insert_staged
from millstream.cdc.destination.target import TargetError
from millstream.cdc.sql import identifier, table_name
from millstream.cdc.streams.changes import Entry, EntryError
from millstream.cdc.streams.snapshot_entries import CopyBegin, CopyEnd, CopyRows, read_copy_entry


class CopyLost(Exception):
    """Entries of the copy are missing: the table has to be copied again."""


class CopyWriter:
    """Applies entries of one copy in the transaction of a session, and moves its offset."""

    def __init__(
        self, session: TargetSession, to: Route, names: Sequence[str], at: AppliedOffset
    ) -> None:
        """`names` are the source's columns that COPY sends."""
        self._route = to
        self.offset = at
        self.rows = 0
        self._loader = to.kind.copy_loader(session, to, names)

    def apply(self, copy_lsn: int, entries: Sequence[Entry]) -> None:
        """Apply entries, which follow the offset."""
        lines: list[bytes] = []
        for (lsn, n), words in entries:
            done = self.offset.copy_id
            number = done[1] if done is not None and done[0] == copy_lsn else 0
            if lsn != copy_lsn or n != number + 1:
                raise CopyLost(f"the entry {copy_lsn}.{number + 1} of the copy is missing")
            try:
                entry = read_copy_entry(dict(zip(words[::2], words[1::2], strict=True)))
            except (KeyError, ValueError) as error:
                raise EntryError(f"the entry {lsn}.{n} of the copy: {error}") from None
            if isinstance(entry, CopyRows):
                lines.append(entry.block)
            else:
                self._load(lines)
                lines = []
            if isinstance(entry, CopyBegin):
                self._loader.begin(entry, self.offset)
                self.offset = replace(self.offset, state="copying")
            self.offset = replace(self.offset, copy_id=(lsn, n))
            if isinstance(entry, CopyEnd):
                self._loader.end(entry, self.offset)
                self.offset = replace(
                    self.offset,
                    state="streaming",
                    target=table_name(self._route.target.schema, self._route.target.name),
                    id=(copy_lsn, 0),
                    copied_lsn=copy_lsn,
                    copy_id=None,
                    error=None,
                    error_id=None,
                )
        self._load(lines)

    def _load(self, lines: Sequence[bytes]) -> None:
        if lines:
            text = b"".join(lines)
            self.rows += text.count(b"\n")
            self._loader.load(text)


class _RowLoader:
    """Loads rows into the target itself."""

    def __init__(self, session: TargetSession, to: Route, names: Sequence[str]) -> None:
        self._session = session
        self._route = to
        self._names = list(names)
        self._clear = f"DELETE FROM {to.target.sql} AS t WHERE {to.of_sid}"

    def load(self, text: bytes) -> None:
        staging = Staging(self._session, self._route, is_copy=True)
        staging.load_text([staging.numbers[name] for name in self._names], text)
        has_key = bool(self._route.key)
        insert_staged(self._session, self._route, staging, self._names, is_upsert=has_key)

    def end(self, entry: CopyEnd, offset: AppliedOffset) -> None:
        """Every row has been loaded."""


class CloneLoader(_RowLoader):
    """Replaces the rows of a source."""

    def begin(self, entry: CopyBegin, offset: AppliedOffset) -> None:
        self._session.run(self._clear)

    def load(self, text: bytes) -> None:
        route = self._route
        if route.table.set or not all(name in route.columns for name in self._names):
            super().load(text)
            return
        names = [identifier(route.columns[name]) for name in self._names]
        if route.sid is not None:
            # Lines are ended by line feeds, and no value contains one.
            names.insert(0, identifier(route.sid))
            sid = escaped_text(route.sid_value) + b"\t"
            text = sid + text[:-1].replace(b"\n", b"\n" + sid) + b"\n"
        copy_into(self._session.connection, route.target.sql, names, text)


class AppendLoader(_RowLoader):
    """Puts rows in place of those with their keys; without a key, a copy is loaded only once."""

    def begin(self, entry: CopyBegin, offset: AppliedOffset) -> None:
        if self._route.key:
            return
        # Rows of a copy that was not completed are of no use. Others are not ours to delete.
        if offset.copied_lsn is None and offset.copy_id is not None:
            self._session.run(self._clear)
        target = self._route.target.sql
        if self._session.rows(f"SELECT FROM {target} AS t WHERE {self._route.of_sid} LIMIT 1"):
            raise TargetError(
                f"{target} has rows of {self._route.sid_value} and no key:"
                " they would be there twice; delete them, or create a unique index"
            )
