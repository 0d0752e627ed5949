"""The kinds of tables: one class for each value that `type` has in the configuration.

A further kind needs its name in `TableType` (cdc/config), a class here, and a writer if none of the
present ones applies its changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from millstream.cdc.config import Table, TableType
from millstream.cdc.destination.connections import TargetSession
from millstream.cdc.destination.history_snapshot import CopiedHistory
from millstream.cdc.destination.history_writer import HistoryWriter
from millstream.cdc.destination.keyed_writer import KeyedWriter
from millstream.cdc.destination.keyless_writer import KeylessWriter
from millstream.cdc.destination.route import ChangeWriter, CopyLoader, FirstCopy, Route, TableKind
from millstream.cdc.destination.snapshot_loader import AppendLoader, CloneLoader
from millstream.cdc.destination.versions import DELETED, END, START


class _RowKind(TableKind):
    """A kind whose target has the rows of the source."""

    def writer(self, session: TargetSession, to: Route) -> ChangeWriter:
        return KeyedWriter(session, to) if to.key else KeylessWriter(session, to)


class Clone(_RowKind):
    """The target has the rows that the source has."""

    def first_copy(self, has_key: bool) -> FirstCopy:
        return FirstCopy.DELETES

    def copy_loader(self, session: TargetSession, to: Route, names: Sequence[str]) -> CopyLoader:
        return CloneLoader(session, to, names)


class Append(_RowKind):
    """The target keeps rows that the source deleted."""

    keeps_deleted = True

    def first_copy(self, has_key: bool) -> FirstCopy:
        return FirstCopy.KEEPS if has_key else FirstCopy.REFUSES

    def copy_loader(self, session: TargetSession, to: Route, names: Sequence[str]) -> CopyLoader:
        return AppendLoader(session, to, names)


class History(TableKind):
    """The target has every version of each row, with the time from which and until which it was
    valid."""

    own_columns: Mapping[str, str] = {
        START: "timestamptz NOT NULL",
        END: "timestamptz NOT NULL",
        DELETED: "boolean NOT NULL",
    }
    key_columns = (START,)
    needs_key = True
    has_whole_transactions = True
    has_copy_table = True

    def first_copy(self, has_key: bool) -> FirstCopy:
        return FirstCopy.KEEPS

    def writer(self, session: TargetSession, to: Route) -> ChangeWriter:
        return HistoryWriter(session, to)

    def copy_loader(self, session: TargetSession, to: Route, names: Sequence[str]) -> CopyLoader:
        return CopiedHistory(session, to, names)


KINDS: Mapping[TableType, type[TableKind]] = {"clone": Clone, "append": Append, "history": History}


def kind_of(table: Table) -> TableKind:
    return KINDS[table.type](table)
