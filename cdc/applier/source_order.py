"""Applying the changes of several tables in the order in which the source made them.

Table by table is faster, but a foreign key of the destination can forbid it: a row is inserted
before the one that it references, or deleted after it. In the source's order, every step leaves a
state that the source was in. Most pieces can still be applied table by table, parents or children
first; a piece for which neither works is halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from millstream.cdc.applier.failure_search import (
    STOPPING,
    Failure,
    FailureSearch,
    read_changes,
    stops,
)
from millstream.cdc.applier.table_applier import TableApplier
from millstream.cdc.destination.connections import TargetSession, in_one_line
from millstream.cdc.streams.changes import Change, Entry, Id

Piece: TypeAlias = "list[tuple[_Lane, Change]]"


@dataclass
class _Lane:
    """One table: its changes that were read and not yet applied. `failure` is the reason why it has
    been stopped, or will be after these changes."""

    applier: TableApplier
    place: int
    chunks: Iterator[list[Entry]]
    changes: list[Change] = field(default_factory=list)
    failure: Failure | None = None
    is_stopped: bool = False
    is_read: bool = False

    def fill(self) -> None:
        """Read further changes if there are none."""
        while not self.changes and not self.is_read:
            chunk = next(self.chunks, None)
            if chunk is None:
                self.is_read = True
                return
            self.changes, self.failure = read_changes(self.applier, chunk)
            self.is_read = self.failure is not None

    def take(self, until: Id | None) -> list[Change]:
        """Remove the changes up to an ID; all of them without one."""
        end = len(self.changes)
        if until is not None:
            end = next((n for n, one in enumerate(self.changes) if one.id > until), end)
        taken, self.changes = self.changes[:end], self.changes[end:]
        return taken


class SourceOrder:
    """Applies appliers of one or several sources, in a transaction that is then committed. A table
    whose change cannot be applied is stopped there, and the others continue."""

    def __init__(
        self,
        session: TargetSession,
        appliers: Sequence[TableApplier],
        place: Callable[[TableApplier], int],
    ) -> None:
        """`place` is a table's place in an order in which parents come first."""
        self._session = session
        self._place = place
        self._appliers = appliers
        self._is_reversed = False

    def run(self) -> list[Failure | None]:
        """Apply everything, and return the failure of each applier."""
        failures: dict[int, Failure | None] = {}
        by_source: dict[str, list[TableApplier]] = {}
        for one in self._appliers:
            by_source.setdefault(one.job.source, []).append(one)
        for own in by_source.values():
            lanes = [
                _Lane(one, self._place(one), one.entries())
                for one in own
                if not one.has_whole_transactions
            ]
            self._run(lanes)
            failures.update({id(one.applier): one.failure for one in lanes})
            for one in own:
                if one.has_whole_transactions:
                    failures[id(one)] = FailureSearch(self._session, one).run()
        return [failures[id(one)] for one in self._appliers]

    def _run(self, lanes: Sequence[_Lane]) -> None:
        while True:
            for lane in lanes:
                lane.fill()
            # Up to the last change that was read of a table that has more.
            ends = [lane.changes[-1].id for lane in lanes if lane.changes and not lane.is_read]
            until = min(ends, default=None)
            piece = [(lane, change) for lane in lanes for change in lane.take(until)]
            if not piece:
                return
            piece.sort(key=lambda one: one[1].id)
            self._narrow(piece)

    def _narrow(self, piece: Piece) -> None:
        """Apply a piece as far as possible."""
        piece = [one for one in piece if not one[0].is_stopped]
        if not piece:
            return
        error = self._try(piece)
        if error is None:
            return
        if len(piece) > 1:
            middle = len(piece) // 2
            self._narrow(piece[:middle])
            self._narrow(piece[middle:])
            return
        [(lane, change)] = piece
        lane.failure = Failure(change.id, in_one_line(error))
        lane.is_stopped = lane.is_read = True
        lane.changes = []

    def _try(self, piece: Piece) -> BaseException | None:
        """Apply a piece; the error, after which nothing of it has been applied."""
        by_lane: dict[int, tuple[_Lane, list[Change]]] = {}
        for lane, change in piece:
            by_lane.setdefault(id(lane), (lane, []))[1].append(change)
        tables = sorted(by_lane.values(), key=lambda one: one[0].place, reverse=self._is_reversed)
        error = self._try_tables(tables)
        if error is not None and len(tables) > 1:
            error = self._try_tables(tables[::-1])
            self._is_reversed ^= error is None  # the next piece is often of the same kind
        if error is None:
            for lane, changes in tables:
                lane.applier.moved(changes)
        return error

    def _try_tables(self, tables: Sequence[tuple[_Lane, list[Change]]]) -> BaseException | None:
        try:
            with self._session.connection.transaction():
                for lane, changes in tables:
                    writer = lane.applier.writer()
                    writer.apply(changes)
                    writer.flush()
        except STOPPING as error:
            if not stops(error):
                raise
            return error
        return None
