"""Finding the change that cannot be applied, and applying everything before it.

Changes that can be applied are kept; a failing group is halved and retried. A history is cut only
between transactions of the source, because all changes of a key in one transaction are one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import psycopg

from millstream.cdc.applier.table_applier import TableApplier
from millstream.cdc.destination.connections import TargetSession, in_one_line
from millstream.cdc.destination.history_snapshot import CopyVanished
from millstream.cdc.destination.snapshot_loader import CopyLost
from millstream.cdc.destination.target import TargetError
from millstream.cdc.streams.changes import Change, Entry, EntryError, Id

STOPPING = (psycopg.Error, TargetError, EntryError, CopyLost, CopyVanished)
# Errors that return until the change or the target is different: features that are missing,
# cardinality, values, constraints, functions in SQL and in other languages, names and privileges,
# views with CHECK OPTION, limits such as an index row's size, and PL/pgSQL's RAISE.
STOPPING_CLASSES = ("0A", "21", "22", "23", "2F", "38", "39", "42", "44", "54", "P0")
NOT_IN_PREREQUISITE_STATE = "55000"  # a delete from a published target without a replica identity


def stops(error: BaseException) -> bool:
    """True if an error stops its table: a retry without a change fails with it again."""
    if isinstance(error, psycopg.Error):
        state = error.sqlstate or ""
        return state[:2] in STOPPING_CLASSES or state == NOT_IN_PREREQUISITE_STATE
    return isinstance(error, STOPPING)


@dataclass(frozen=True)
class Failure:
    """The change, or the part of a copy, that cannot be applied. `is_lost`: the copy must be made
    again."""

    id: Id
    text: str
    is_lost: bool = False

    @property
    def id_text(self) -> str:
        return f"{self.id[0]}.{self.id[1]}"


# Changes of one transaction of a history that are held in memory, to find the one that fails; and
# the bytes of their rows.
PENDING_MAX = 100_000
PENDING_BYTES_MAX = 64 << 20


class FailureSearch:
    """Applies an applier up to its first failure, in a transaction that is then committed."""

    def __init__(self, session: TargetSession, applier: TableApplier) -> None:
        self._session = session
        self._applier = applier

    def run(self) -> Failure | None:
        """The failure; None if everything could be applied in smaller steps."""
        if self._applier.job.is_copy:
            return self._run_copy()
        in_transactions = self._applier.has_whole_transactions
        pending: list[Change] = []
        unread: Failure | None = None
        chunks = self._applier.entries()
        for chunk in chunks:
            changes, unread = read_changes(self._applier, chunk)
            changes = pending + changes
            pending = []
            if in_transactions:
                changes, pending = _whole_transactions(changes, unread)
            failure = self._narrow(_units(changes, in_transactions))
            if failure is not None or unread is not None:
                return failure or unread
            if len(pending) > PENDING_MAX or _size(pending) > PENDING_BYTES_MAX:
                failure, pending = self._long_transaction(pending, chunks)
                if failure is not None:
                    return failure
        return self._narrow(_units(pending, in_transactions))

    def _long_transaction(
        self, begun: list[Change], chunks: Iterator[list[Entry]]
    ) -> tuple[Failure | None, list[Change]]:
        """Apply a transaction that does not fit into memory in one piece; return the changes
        that were read after it. The failure names its first change."""
        lsn, rest = begun[0].lsn, list[Change]()
        try:
            with self._session.connection.transaction():
                writer = self._applier.write(None, begun)
                for chunk in chunks:
                    changes = self._applier.changes(chunk)
                    own = [change for change in changes if change.lsn == lsn]
                    rest = changes[len(own) :]
                    if own:
                        writer = self._applier.write(writer, own)
                    if rest:
                        break
                writer.flush()
        except STOPPING as error:
            if not stops(error):
                raise
            self._applier.back_to(begun[0].id)
            return Failure(begun[0].id, in_one_line(error)), []
        return None, rest

    # ------------------------------------------------------------ changes

    def _narrow(self, units: list[list[Change]]) -> Failure | None:
        if not units:
            return None
        changes = [change for unit in units for change in unit]
        error = self._try(changes)
        if error is None:
            self._applier.moved(changes)
            return None
        if len(units) == 1:
            return Failure(self._first_bad(changes), in_one_line(error))
        middle = len(units) // 2
        return self._narrow(units[:middle]) or self._narrow(units[middle:])

    def _try(self, changes: Sequence[Change], is_kept: bool = True) -> BaseException | None:
        """Apply changes; the error, after which they have not been applied."""
        try:
            with self._session.connection.transaction(force_rollback=not is_kept):
                writer = self._applier.writer()
                writer.apply(changes)
                writer.flush()
                # Constraints that are checked at COMMIT have to fail here.
                self._session.run("SET CONSTRAINTS ALL IMMEDIATE")
                self._session.run("SET CONSTRAINTS ALL DEFERRED")
        except STOPPING as error:
            if not stops(error):
                raise
            return error
        return None

    def _first_bad(self, changes: list[Change]) -> Id:
        """The first change of a transaction with which it cannot be applied."""
        good, bad = 0, len(changes)
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._try(changes[:middle], is_kept=False) is None:
                good = middle
            else:
                bad = middle
        return changes[bad - 1].id

    # ------------------------------------------------------------ copies

    def _run_copy(self) -> Failure | None:
        for chunk in self._applier.entries():
            for entry in chunk:
                failure = self._try_entry(entry)
                if failure is not None:
                    return failure
        return None

    def _try_entry(self, entry: Entry) -> Failure | None:
        try:
            with self._session.connection.transaction():
                self._applier.load([entry])
        except STOPPING as error:
            if not stops(error):
                raise
            self._applier.reload()
            is_lost = isinstance(error, CopyLost | CopyVanished)
            return Failure(entry[0], in_one_line(error), is_lost)
        return None


def read_changes(
    applier: TableApplier, chunk: Sequence[Entry]
) -> tuple[list[Change], Failure | None]:
    """The changes up to the first entry that cannot be read."""
    changes: list[Change] = []
    for entry in chunk:
        try:
            changes += applier.changes([entry])
        except (EntryError, TargetError) as error:
            return changes, Failure(entry[0], str(error))
    return changes, None


def _size(changes: Sequence[Change]) -> int:
    return sum(
        len(value)
        for change in changes
        for value in (*change.row, *change.old)
        if isinstance(value, bytes)
    )


def _units(changes: list[Change], in_transactions: bool) -> list[list[Change]]:
    if not in_transactions:
        return [[change] for change in changes]
    return [list(own) for _, own in groupby(changes, key=lambda change: change.lsn)]


def _whole_transactions(
    changes: list[Change], unread: Failure | None
) -> tuple[list[Change], list[Change]]:
    """The changes of complete transactions, and those of the last one, which more may follow."""
    last = changes[-1].lsn if changes else 0
    if unread is not None and unread.id[0] != last:
        return changes, []
    end = len(changes)
    while end > 0 and changes[end - 1].lsn == last:
        end -= 1
    return changes[:end], changes[end:]
