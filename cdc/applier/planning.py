"""Planning a batch: which entries of which streams, up to which cut, and for which worker.

The plan follows from the offsets at the destination and the counters of the streams; there is no
other state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple
from zlib import crc32

from millstream.cdc.applier.apply_jobs import ApplyJob
from millstream.cdc.applier.retries import Retries
from millstream.cdc.applier.source_views import ConfiguredTable, SourceView, TableView
from millstream.cdc.config import TableKey
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.cdc.streams.changes import Id
from millstream.cdc.streams.source_state import TableConfig, TableState
from millstream.pipeline.positions import LARGEST, id_from_text, id_text
from millstream.pipeline.selection import before
from millstream.pipeline.server_connection import ServerConnection
from millstream.pipeline.stream_counters import ALL

# Blocks of a copy in a batch: with 64 KB each, what a reader may be ahead with.
COPY_ENTRIES_MAX = 1024


class Need(Enum):
    """The need of a table in the next batch."""

    NOTHING = "nothing"
    COPY = "copy"
    CHANGES = "changes"
    STOP = "stop"


@dataclass(frozen=True)
class Judgement:
    """The need of a table, and the reason if it must be stopped."""

    need: Need
    reason: str = ""


NOTHING = Judgement(Need.NOTHING)


def judge(view: TableView, offset: AppliedOffset, configured: TableConfig) -> Judgement:
    """Find what a table needs, whether or not it has been stopped."""
    state = view.state
    if state is None or state.phase == "pausing":
        return NOTHING
    is_loaded = offset.copied_lsn == state.copy_lsn
    if state.phase == "wanted" and not is_loaded:
        return NOTHING
    if state.table_config != configured and state.phase != "wanted":
        return Judgement(
            Need.STOP,
            "its configuration is not that of its copy: restart apply if it was started before the"
            " file was changed, otherwise copy the table again",
        )
    if state.lost:
        return NOTHING if state.phase == "wanted" else Judgement(Need.STOP, state.lost)
    if state.phase == "copying" or not is_loaded:
        return _judge_copy(view, state, offset)
    reason = _loss(view, state, offset)
    if reason and state.phase == "wanted":
        return NOTHING  # it is about to be copied again
    return Judgement(Need.STOP, reason) if reason else Judgement(Need.CHANGES)


def _judge_copy(view: TableView, state: TableState, offset: AppliedOffset) -> Judgement:
    done = copy_offset(state, offset)
    info = view.copy_info
    is_complete = state.phase == "copied"
    if info is None or (is_complete and info.last_id <= done):
        return Judgement(Need.STOP, "its copy is missing in millstream") if is_complete else NOTHING
    if info.max_evicted_id > done:
        return Judgement(Need.STOP, "entries of its copy were evicted before they were applied")
    return Judgement(Need.COPY) if info.last_id > done else NOTHING


def copy_offset(state: TableState, offset: AppliedOffset) -> Id:
    """The last entry of the copy that has been applied."""
    done = offset.copy_id
    return done if done is not None and done[0] == state.copy_lsn else (state.copy_lsn, 0)


def _loss(view: TableView, state: TableState, offset: AppliedOffset) -> str:
    """The reason why changes can no longer be applied; empty if they can."""
    if view.info is None:
        return f"the stream {view.stream} is missing"
    if view.info.incarnation != state.incarnation:
        return f"the stream {view.stream} was deleted and created again"
    if view.info.max_evicted_id > offset.id:
        return (
            f"entries of {view.stream} after {id_text(offset.id)} were evicted before they were"
            " applied"
        )
    return ""


# ------------------------------------------------------------ counting


@dataclass(frozen=True)
class Pending:
    """A stream with changes that are to be applied after an offset."""

    key: TableKey
    stream: str
    after: Id


def count(server: ServerConnection, pending: Sequence[Pending], cut: int) -> list[int]:
    """The numbers of the streams' entries that are not above a cut."""
    commands: list[tuple[str, str, str, int]] = []
    for one in pending:
        commands.append(("TSEEK", one.stream, id_text(one.after), ALL))
        commands.append(("TSEEK", one.stream, id_text(max(one.after, end_of(cut))), ALL))
    counts = [server.checked(reply)[0] for reply in server.pipeline(commands)]
    return [counts[at] - counts[at + 1] for at in range(0, len(counts), 2)]


def end_of(cut: int) -> Id:
    """The last ID that the source transaction of a cut can have."""
    return cut, LARGEST


def choose_cut(
    server: ServerConnection, cuts: str, pending: Sequence[Pending], newest: int, rows_max: int
) -> int:
    """The newest cut with at most `rows_max` entries before it. If a single source transaction is
    longer, the cut after it."""

    def entries(cut: int) -> int:
        return sum(count(server, pending, cut))

    if not pending or entries(newest) <= rows_max:
        return newest
    lowest = min(one.after[0] for one in pending)
    start = before((lowest, 0)) or (0, 0)
    (total, _) = server.call("TSEEK", cuts, id_text(start), ALL)

    def nth(number: int) -> int:
        _, found = server.call("TSEEK", cuts, id_text(start), number)
        return newest if found is None else id_from_text(found)[0]

    # The cuts are numbered from 1. `low` has few enough entries before it, `high` too many.
    low, high = 0, total
    while high - low > 1:
        middle = (low + high) // 2
        if entries(nth(middle)) <= rows_max:
            low = middle
        else:
            high = middle
    if low and entries(nth(low)) > 0:
        return nth(low)
    return _first_with_entries(entries, nth, low + 1, total)


def _first_with_entries(
    entries: Callable[[int], int], nth: Callable[[int], int], low: int, high: int
) -> int:
    while low < high:
        middle = (low + high) // 2
        if entries(nth(middle)) > 0:
            high = middle
        else:
            low = middle + 1
    return nth(max(1, low))


# ------------------------------------------------------------ jobs


def copy_job(
    server: ServerConnection, view: TableView, offset: AppliedOffset, is_shared: bool
) -> ApplyJob | None:
    """The next entries of a copy; None if there are none."""
    assert view.state is not None
    assert view.copy_info is not None
    done = copy_offset(view.state, offset)
    number, last = server.call("TSEEK", view.copy_stream, id_text(done), COPY_ENTRIES_MAX)
    if last is None:
        return None
    return ApplyJob(
        view.key,
        view.copy_stream,
        done,
        id_from_text(last),
        number,
        view.copy_info.incarnation,
        view.state.columns,
        view.state.identity,
        view.state.copy_lsn,
        is_copy=True,
        is_alone=True,
        is_shared=is_shared,
    )


def change_job(
    view: TableView,
    offset: AppliedOffset,
    until: int,
    entries: int,
    is_alone: bool,
    is_shared: bool,
) -> ApplyJob:
    """The changes of a table up to a cut."""
    assert view.state is not None
    return ApplyJob(
        view.key,
        view.stream,
        offset.id,
        end_of(until),
        entries,
        view.state.incarnation,
        view.state.columns,
        view.state.identity,
        view.state.copy_lsn,
        is_alone=is_alone,
        is_shared=is_shared,
    )


def parts(
    jobs: Sequence[ApplyJob], workers: int, groups: Mapping[TableKey, str] | None = None
) -> list[list[ApplyJob]]:
    """The jobs by worker: all those of a table have the same one, and all those of a group."""
    found: Mapping[int, list[ApplyJob]] = {number: [] for number in range(workers)}
    for job in jobs:
        name = (groups or {}).get(job.key) or ":".join(job.key)
        found[crc32(name.encode()) % workers].append(job)
    return [part for part in found.values() if part]


class PlannedCut(NamedTuple):
    """The cut up to which a batch applies a source; `is_whole`: all of its tables."""

    lsn: int
    is_whole: bool


@dataclass
class Batch:
    """`offsets` are those before the batch. With `is_full`, further changes are waiting. `cuts` are
    by source, and leave out tables that have to catch up."""

    server: ServerConnection
    configured: Mapping[TableKey, ConfiguredTable]
    offsets: dict[TableKey, AppliedOffset]
    retries: Retries
    rows_max: int
    jobs: list[ApplyJob] = field(default_factory=list)
    is_full: bool = False
    cuts: dict[str, PlannedCut] = field(default_factory=dict)
    stops: dict[TableKey, str] = field(default_factory=dict)
    """The tables that have to stop, and why."""
    continued: list[TableKey] = field(default_factory=list)
    """Stopped tables whose reason no longer exists, and that have nothing to apply."""

    @property
    def entries(self) -> int:
        return sum(job.entries for job in self.jobs)

    def plan(self, view: SourceView, known_cut: int) -> None:
        """Plan a source, whose tables were applied up to `known_cut` by earlier batches."""
        streaming: list[Pending] = []
        for key, table in view.tables.items():
            configured, offset = self.configured[key], self.offsets[key]
            if self._is_resting(offset, table):
                continue
            judgement = judge(table, offset, configured.table_config)
            if judgement.need is Need.STOP:
                self.stops[key] = _advice(judgement, configured)
            elif judgement.need is Need.COPY:
                job = copy_job(self.server, table, offset, configured.is_shared)
                if job is not None:
                    self.jobs.append(job)
                    self.is_full = True
            elif judgement.need is Need.CHANGES:
                streaming.append(Pending(key, table.stream, offset.id))
        self._plan_changes(view, streaming, known_cut)

    def _is_resting(self, offset: AppliedOffset, table: TableView) -> bool:
        """True if a table has been stopped and its next retry is not due."""
        self.retries.saw_copy(table.key, 0 if table.state is None else table.state.copy_lsn)
        return offset.state == "stopped" and not self.retries.is_due(table.key, time.monotonic())

    def _plan_changes(self, view: SourceView, streaming: list[Pending], known_cut: int) -> None:
        if (
            known_cut > view.newest_cut
        ):  # all tables were copied again, from a cluster with lower LSNs
            known_cut = 0
        # A table that was stopped, or was copied just now, catches up without the others.
        older = count(self.server, streaming, known_cut) if known_cut else [0] * len(streaming)
        together = [one for one, waiting in zip(streaming, older, strict=True) if not waiting]
        if together:
            cut = self._plan_group(view, together, is_alone=False)
            self.cuts[view.source.name] = PlannedCut(cut, len(streaming) == len(view.tables))
        for one, waiting in zip(streaming, older, strict=True):
            if waiting:
                self._plan_group(view, [one], is_alone=True)

    def _plan_group(self, view: SourceView, group: Sequence[Pending], is_alone: bool) -> int:
        """Plan the changes of tables that are applied up to the same cut, and return it."""
        cut = choose_cut(self.server, view.cuts, group, view.newest_cut, self.rows_max)
        self.is_full |= cut < view.newest_cut
        for one, entries in zip(group, count(self.server, group, cut), strict=True):
            key, offset = one.key, self.offsets[one.key]
            is_stopped = offset.state == "stopped"
            if entries:
                is_shared = self.configured[key].is_shared
                job = change_job(
                    view.tables[key], offset, cut, entries, is_stopped or is_alone, is_shared
                )
                self.jobs.append(job)
            elif is_stopped:
                self.offsets[key] = replace(offset, state="streaming", error=None, error_id=None)
                self.continued.append(key)
        return cut


def _advice(judgement: Judgement, configured: ConfiguredTable) -> str:
    table = f"{configured.source.name} {configured.table.full_name}"
    return f"{judgement.reason}: millstream cdc resync {table}"
