"""A batch of `apply` while it is planned, source by source: its jobs, and the tables that stop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from millstream.cdc.applier.apply_jobs import ApplyJob
from millstream.cdc.applier.planning import (
    Judgement,
    Need,
    Pending,
    TableView,
    change_job,
    choose_cut,
    copy_job,
    count,
    judge,
)
from millstream.cdc.applier.retries import Retries
from millstream.cdc.applier.source_views import ConfiguredTable, SourceView
from millstream.cdc.config import TableKey
from millstream.cdc.destination.offsets import AppliedOffset
from millstream.pipeline.server_connection import ServerConnection


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
