"""The driver of `millstream cdc apply`: plans batches, has workers apply them, trims the streams.

Every start begins with the positions at the destination, which are its only state. Failed work is
planned again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import psycopg

from millstream.cdc.applier.jobs import Answer, Job, Outcome
from millstream.cdc.applier.planning import (
    Need,
    Pending,
    Verdict,
    View,
    change_job,
    choose_cut,
    copy_job,
    count,
    judge,
    parts,
)
from millstream.cdc.applier.retries import Retries
from millstream.cdc.applier.status import Status
from millstream.cdc.applier.survey import (
    ConfiguredTable,
    SourceView,
    configured_tables,
    read_sources,
    trim,
    trim_copy,
)
from millstream.cdc.config import Config, TableKey, target_name, target_of
from millstream.cdc.destination.connection import Connections, in_one_line
from millstream.cdc.destination.foreign_keys import connected, read_references
from millstream.cdc.destination.positions import NAME, Position, Positions
from millstream.cdc.destination.target import read_targets
from millstream.cdc.errors import CdcError
from millstream.cdc.pauses import Backoff
from millstream.cdc.sql import table_name
from millstream.cdc.streams.source_state import StateError
from millstream.pipeline.server import Server, ServerError

log = logging.getLogger("millstream.cdc.apply")

LOCK_PAUSE_S = 1.0
# After a batch with less than this share of `max_rows`, there is little to do.
LITTLE = 0.25

Run = Callable[[Sequence[Sequence[Job]]], list[Answer]]
"""Runs the parts of a batch, each in one worker. RunError if a worker or Spark failed."""


class RunError(CdcError):
    """A batch could not be run; its parts may have been applied or not."""


class ApplyError(CdcError):
    """`apply` cannot continue; the text says what to do."""


@dataclass
class Plan:
    """The jobs of a batch, and whether further changes are waiting."""

    jobs: list[Job]
    is_full: bool = False
    cuts: dict[str, int] = field(default_factory=dict)
    """By source: the cut up to which this batch applies the tables that are not stopped."""

    @property
    def entries(self) -> int:
        return sum(job.entries for job in self.jobs)


class Driver:
    """Applies the changes in millstream until it is stopped. For one thread."""

    def __init__(
        self,
        config: Config,
        run: Run,
        status: Status,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """`begin` is called when this `apply` has the destination's lock; again after each lost
        connection."""
        self._config = config
        self._run = run
        self._status = status
        self._begin = begin
        self._configured = {one.key: one for one in configured_tables(config)}
        self._retries = Retries(config.apply.retry_max)
        self._cuts: dict[str, int] = {}
        self._copies: dict[TableKey, int] = {}
        self._shapes: dict[TableKey, Hashable] = {}
        self._connections = Connections(config, "millstream cdc apply (driver)")
        self._positions: Positions  # over the connection that has the lock

    def close(self) -> None:
        self._connections.close()

    def apply(self, stop: threading.Event, once: bool = False) -> int:
        """Apply until `stop` is set; with `once`, until everything has been applied. The exit
        code. ApplyError if that is impossible."""
        backoff = Backoff()
        while not stop.is_set():
            started = time.monotonic()
            try:
                if not self._is_alone(stop):
                    continue
                plan = self._step()
            except (psycopg.Error, ServerError, RunError, StateError, OSError) as error:
                self._failed(error)
                stop.wait(backoff.next_s())
                continue
            backoff.reset()
            if once and not plan.jobs:
                return 1 if self._status.stopped else 0
            if not plan.is_full and plan.entries < self._config.apply.max_rows * LITTLE:
                spent = time.monotonic() - started
                stop.wait(0 if once else max(0.0, self._config.apply.commit_delay - spent))
        return 0

    def _failed(self, error: BaseException) -> None:
        text = in_one_line(error)
        if self._status.problem != text:
            log.warning("%s; the batch is retried", text)
        self._status.problem = text
        self.close()

    # ------------------------------------------------------------ connections

    def _is_alone(self, stop: threading.Event) -> bool:
        """Whether this `apply` has the destination's lock; waits a moment if another one has it."""
        if self._connections.is_open:
            return True
        schema = self._config.destination.schema
        self._positions = Positions(self._connections.destination, schema)
        if not self._positions.exists():
            raise ApplyError(
                f"the destination has no table {table_name(schema, NAME)}: millstream cdc setup"
            )
        said = ""
        while not self._positions.try_lock_all():
            self._status.locked(False)
            text = f"another apply is running: {self._positions.lock_holder()}; waiting for its end"
            if text != said:
                log.warning("%s", text)
            said = text
            if stop.wait(LOCK_PAUSE_S):
                return False
        self._begin()
        self._status.locked(True)
        return True

    # ------------------------------------------------------------ a batch

    def _step(self) -> Plan:
        found = self._positions.read()
        server = self._connections.server
        views = read_sources(server, list(self._configured.values()))
        positions = self._complete(found, server, views)
        self._resume(server, views)
        self._trim(server, views, positions)
        self._look_at_targets([key for key, one in positions.items() if one.state == "stopped"])
        plan = Plan([])
        stops: dict[TableKey, str] = {}
        for view in views:
            self._plan(server, view, positions, plan, stops)
        self._stop(positions, stops)
        self._status.saw(positions, stops)
        if plan.jobs:
            started = time.monotonic()
            answers = self._run(self._parts(plan.jobs))
            self._status.batch(time.monotonic() - started)
            self._take(answers)
        self._status.problem = None
        self._cuts.update(plan.cuts)
        self._status.reached()
        return plan

    def _parts(self, jobs: Sequence[Job]) -> list[list[Job]]:
        """The jobs by worker. Targets that foreign keys connect have the same one."""
        workers = self._config.apply.workers
        if workers == 1 or len(jobs) == 1:
            return parts(jobs, workers)
        names = {key: target_of(one.table, self._config) for key, one in self._configured.items()}
        first = connected(read_references(self._connections.destination, names.values()))
        groups = {key: table_name(*first[name]) for key, name in names.items() if name in first}
        return parts(jobs, workers, groups)

    def _complete(
        self,
        found: dict[TableKey, Position],
        server: Server,
        views: Sequence[SourceView],
    ) -> dict[TableKey, Position]:
        """The positions of all configured tables. Those of tables that millstream has a record of
        are added if they are missing; others may be those of a source that is being dropped."""
        new = [
            key
            for view in views
            for key, table in view.tables.items()
            if key not in found and table.state is not None
        ]
        if new:
            with self._connections.destination.transaction():
                self._positions.lock_set()
                self._positions.add(
                    self._new_position(key) for key in new if self._is_recorded(server, key)
                )
            found = self._positions.read()
        return {key: found.get(key) or self._new_position(key) for key in self._configured}

    def _new_position(self, key: TableKey) -> Position:
        return Position(key, target_name(self._configured[key].table, self._config))

    def _is_recorded(self, server: Server, key: TableKey) -> bool:
        configured = self._configured[key]
        return bool(server.call("EXISTS", configured.keys.table_state(configured.table)))

    def _resume(self, server: Server, views: Sequence[SourceView]) -> None:
        for view in views:
            for key in view.resumed:
                configured = self._configured[key]
                server.call("DEL", configured.keys.resume(configured.table))
                log.info("%s %s: resumed", configured.source.name, configured.table.full_name)
                self._retries.resume(key)

    def _plan(
        self,
        server: Server,
        view: SourceView,
        positions: dict[TableKey, Position],
        plan: Plan,
        stops: dict[TableKey, str],
    ) -> None:
        """Add a source's jobs to the plan."""
        streaming: list[Pending] = []
        for key, table in view.tables.items():
            configured, position = self._configured[key], positions[key]
            if self._is_resting(position, table):
                continue
            verdict = judge(table, position, configured.table_config)
            if verdict.need is Need.STOP:
                stops[key] = _advice(verdict, configured)
            elif verdict.need is Need.COPY:
                job = copy_job(server, table, position, configured.is_shared)
                if job is not None:
                    plan.jobs.append(job)
                    plan.is_full = True
            elif verdict.need is Need.CHANGES:
                streaming.append(Pending(key, table.stream, position.id))
        self._plan_changes(server, view, positions, plan, streaming)

    def _look_at_targets(self, keys: Sequence[TableKey]) -> None:
        """Remember what the targets of stopped tables are like: a stopped table is retried when its
        target was altered."""
        if not keys:
            return
        names = {key: target_of(self._configured[key].table, self._config) for key in keys}
        found = read_targets(self._connections.destination, list(names.values()))
        for key, name in names.items():
            self._shapes[key] = found[name].shape if name in found else None

    def _version(self, key: TableKey) -> Hashable:
        return self._copies[key], self._shapes.get(key)

    def _is_resting(self, position: Position, table: View) -> bool:
        """Whether a table has been stopped and its next retry is not due."""
        copy_lsn = table.state.copy_lsn if table.state is not None else 0
        self._copies[table.key] = copy_lsn
        return position.state == "stopped" and not self._retries.is_due(
            table.key, time.monotonic(), self._version(table.key)
        )

    def _plan_changes(
        self,
        server: Server,
        view: SourceView,
        positions: dict[TableKey, Position],
        plan: Plan,
        streaming: list[Pending],
    ) -> None:
        newest, rows_max = view.newest_cut, self._config.apply.max_rows
        known = self._cuts.get(view.source.name, 0)
        if known > newest:  # all tables were copied again, from a cluster with lower LSNs
            known = 0
        # A table that was stopped, or was copied just now, catches up without the others.
        older = count(server, streaming, known) if known else [0] * len(streaming)
        together = [one for one, waiting in zip(streaming, older, strict=True) if not waiting]
        groups = [together] + [
            [one] for one, waiting in zip(streaming, older, strict=True) if waiting
        ]
        for group in groups:
            if not group:
                continue
            cut = choose_cut(server, view.cuts, group, newest, rows_max)
            plan.is_full |= cut < newest
            for one, entries in zip(group, count(server, group, cut), strict=True):
                is_stopped = positions[one.key].state == "stopped"
                if entries:
                    plan.jobs.append(
                        change_job(
                            view.tables[one.key],
                            positions[one.key],
                            cut,
                            entries,
                            is_stopped or group is not together,
                            self._configured[one.key].is_shared,
                        )
                    )
                elif is_stopped:
                    self._continue(positions, one.key)
            if group is together:
                plan.cuts[view.source.name] = cut
                self._status.planned(view, cut, len(streaming) == len(view.tables))

    # ------------------------------------------------------------ stopping and continuing

    def _stop(self, positions: dict[TableKey, Position], stops: dict[TableKey, str]) -> None:
        """Mark tables as stopped, for reasons that were found in millstream."""
        for key, text in stops.items():
            position = positions[key]
            if position.state != "stopped" or position.error != text:
                self._log_stop(key, text)
                positions[key] = replace(position, state="stopped", error=text, error_id=None)
                self._positions.mark(key, "stopped", text)
                self._look_at_targets([key])
            self._retries.stopped(key, time.monotonic(), self._version(key))

    def _continue(self, positions: dict[TableKey, Position], key: TableKey) -> None:
        """Continue a stopped table whose reason no longer exists and that has nothing to apply."""
        positions[key] = replace(positions[key], state="streaming", error=None, error_id=None)
        self._positions.mark(key, "streaming", None)
        self._retries.forget(key)

    def _take(self, answers: Sequence[Answer]) -> None:
        problems = []
        for answer in answers:
            for outcome in answer.outcomes:
                self._outcome(outcome)
            if answer.problem is not None:
                problems.append(answer.problem)
        if problems:
            raise RunError(problems[0])

    def _outcome(self, outcome: Outcome) -> None:
        key = outcome.key
        self._status.applied(outcome)
        if outcome.error is not None:
            self._look_at_targets([key])
            wait_s = self._retries.stopped(key, time.monotonic(), self._version(key))
            entry = f" at the entry {outcome.error_id}" if outcome.error_id else ""
            self._log_stop(key, f"{outcome.error}{entry}; next try in {wait_s:.0f} s")
        elif not outcome.is_stale:
            self._retries.forget(key)

    def _log_stop(self, key: TableKey, text: str) -> None:
        log.error("%s:%s %s: stopped: %s", *key, text)

    # ------------------------------------------------------------ trimming

    def _trim(
        self, server: Server, views: Sequence[SourceView], positions: dict[TableKey, Position]
    ) -> None:
        keep = self._config.millstream.keep_entries
        for view in views:
            needed = view.newest_cut
            for key, table in view.tables.items():
                state, position = table.state, positions[key]
                trim_copy(server, self._configured[key], table, position)
                if state is None or position.copied_lsn != state.copy_lsn:
                    continue
                if state.phase not in ("copied", "wanted"):
                    continue
                trim(server, table.stream, table.info, position.id, keep)
                if table.info is not None and table.info.last_id > position.id:
                    needed = min(needed, position.id[0])
            if needed:
                trim(server, view.cuts, view.cuts_info, (needed - 1, 0), keep)


def _advice(verdict: Verdict, configured: ConfiguredTable) -> str:
    table = f"{configured.source.name} {configured.table.full_name}"
    return f"{verdict.reason}: millstream cdc resync {table}"
