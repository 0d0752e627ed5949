"""The driver of `millstream cdc apply`: plans batches, has workers apply them, trims the streams.

Every start begins with the offsets at the destination, which are its only state. Failed work is
planned again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import psycopg

from millstream.backoff import Backoff
from millstream.cdc import CdcError
from millstream.cdc.applier.apply_jobs import ApplyJob, JobOutcome, WorkerAnswer
from millstream.cdc.applier.apply_status import ApplyStatus
from millstream.cdc.applier.planning import Batch, parts
from millstream.cdc.applier.retries import Retries
from millstream.cdc.applier.source_views import (
    SourceView,
    configured_tables,
    read_sources,
    trim,
    trim_copy,
)
from millstream.cdc.config import CdcConfig, TableKey, target_name, target_of
from millstream.cdc.destination.connections import ApplyConnections, in_one_line
from millstream.cdc.destination.foreign_keys import connected, read_references
from millstream.cdc.destination.offsets import NAME, AppliedOffset, OffsetTable
from millstream.cdc.destination.target import read_targets
from millstream.cdc.sql import table_name
from millstream.cdc.streams.source_state import StateError
from millstream.pipeline.server_connection import ServerConnection, ServerError

log = logging.getLogger("millstream.cdc.apply")

LOCK_PAUSE_S = 1.0
# After a batch with less than this share of `max_rows`, there is little to do.
LITTLE = 0.25

Run = Callable[[Sequence[Sequence[ApplyJob]]], list[WorkerAnswer]]
"""Runs the parts of a batch, each in one worker. RunError if a worker or Spark failed."""


class RunError(CdcError):
    """A batch could not be run; its parts may have been applied or not."""


class ApplyError(CdcError):
    """`apply` cannot continue; the text says what to do."""


class Driver:
    """Applies the changes in millstream until it is stopped. For one thread."""

    def __init__(
        self,
        config: CdcConfig,
        run: Run,
        status: ApplyStatus,
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
        self._connections = ApplyConnections(config, "millstream cdc apply (driver)")
        self._offsets: OffsetTable  # over the connection that has the lock

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
                batch = self._step()
            except (psycopg.Error, ServerError, RunError, StateError, OSError) as error:
                self._failed(error)
                stop.wait(backoff.next_s())
                continue
            backoff.reset()
            if once and not batch.jobs:
                return 1 if self._status.stopped else 0
            if not batch.is_full and batch.entries < self._config.apply.max_rows * LITTLE:
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
        """True if this `apply` has the destination's lock; waits a moment if another one has it."""
        if self._connections.is_open:
            return True
        schema = self._config.destination.schema
        self._offsets = OffsetTable(self._connections.destination, schema)
        if not self._offsets.exists():
            raise ApplyError(
                f"the destination has no table {table_name(schema, NAME)}: millstream cdc setup"
            )
        logged = ""
        while not self._offsets.try_lock_all():
            self._status.locked(False)
            text = f"another apply is running: {self._offsets.lock_holder()}; waiting for its end"
            if text != logged:
                log.warning("%s", text)
            logged = text
            if stop.wait(LOCK_PAUSE_S):
                return False
        self._begin()
        self._status.locked(True)
        return True

    # ------------------------------------------------------------ a batch

    def _step(self) -> Batch:
        found = self._offsets.read()
        server = self._connections.server
        views = read_sources(server, list(self._configured.values()))
        offsets = self._complete(found, server, views)
        self._resume(server, views)
        self._trim(server, views, offsets)
        self._look_at_targets([key for key, one in offsets.items() if one.state == "stopped"])
        rows_max = self._config.apply.max_rows
        batch = Batch(server, self._configured, offsets, self._retries, rows_max)
        for view in views:
            batch.plan(view, self._cuts.get(view.source.name, 0))
        for key in batch.continued:
            self._offsets.mark(key, "streaming", None)
            self._retries.forget(key)
        self._stop(batch)
        self._status.planned(views, batch)
        if batch.jobs:
            started = time.monotonic()
            answers = self._run(self._parts(batch.jobs))
            self._status.batch(time.monotonic() - started)
            self._take(answers)
        self._status.problem = None
        self._cuts.update({name: cut.lsn for name, cut in batch.cuts.items()})
        self._status.reached()
        return batch

    def _parts(self, jobs: Sequence[ApplyJob]) -> list[list[ApplyJob]]:
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
        found: dict[TableKey, AppliedOffset],
        server: ServerConnection,
        views: Sequence[SourceView],
    ) -> dict[TableKey, AppliedOffset]:
        """The offsets of all configured tables. Those of tables that millstream has a record of
        are added if they are missing; others may be those of a source that is being dropped."""
        new = [
            key
            for view in views
            for key, table in view.tables.items()
            if key not in found and table.state is not None
        ]
        if new:
            with self._connections.destination.transaction():
                self._offsets.lock_set()
                self._offsets.add(
                    self._new_offset(key) for key in new if self._is_recorded(server, key)
                )
            found = self._offsets.read()
        return {key: found.get(key) or self._new_offset(key) for key in self._configured}

    def _new_offset(self, key: TableKey) -> AppliedOffset:
        return AppliedOffset(key, target_name(self._configured[key].table, self._config))

    def _is_recorded(self, server: ServerConnection, key: TableKey) -> bool:
        configured = self._configured[key]
        return bool(server.call("EXISTS", configured.keys.table_state(configured.table)))

    def _resume(self, server: ServerConnection, views: Sequence[SourceView]) -> None:
        for view in views:
            for key in view.resumed:
                configured = self._configured[key]
                server.call("DEL", configured.keys.resume(configured.table))
                log.info("%s %s: resumed", configured.source.name, configured.table.full_name)
                self._retries.resume(key)

    def _look_at_targets(self, keys: Sequence[TableKey]) -> None:
        """Remember what the targets of stopped tables are like: a stopped table is retried when its
        target was altered."""
        if not keys:
            return
        names = {key: target_of(self._configured[key].table, self._config) for key in keys}
        found = read_targets(self._connections.destination, list(names.values()))
        for key, name in names.items():
            self._retries.saw_target(key, found[name].shape if name in found else None)

    # ------------------------------------------------------------ stopping and continuing

    def _stop(self, batch: Batch) -> None:
        """Mark tables as stopped, for reasons that were found in millstream."""
        for key, text in batch.stops.items():
            offset = batch.offsets[key]
            if offset.state != "stopped" or offset.error != text:
                self._log_stop(key, text)
                batch.offsets[key] = replace(offset, state="stopped", error=text, error_id=None)
                self._offsets.mark(key, "stopped", text)
                self._look_at_targets([key])
            self._retries.stopped(key, time.monotonic())

    def _take(self, answers: Sequence[WorkerAnswer]) -> None:
        problems = []
        for answer in answers:
            for outcome in answer.outcomes:
                self._outcome(outcome)
            if answer.problem is not None:
                problems.append(answer.problem)
        if problems:
            raise RunError(problems[0])

    def _outcome(self, outcome: JobOutcome) -> None:
        key = outcome.key
        self._status.applied(outcome)
        if outcome.error is not None:
            self._look_at_targets([key])
            wait_s = self._retries.stopped(key, time.monotonic())
            entry = f" at the entry {outcome.error_id}" if outcome.error_id else ""
            self._log_stop(key, f"{outcome.error}{entry}; next try in {wait_s:.0f} s")
        elif not outcome.is_stale:
            self._retries.forget(key)

    def _log_stop(self, key: TableKey, text: str) -> None:
        log.error("%s:%s %s: stopped: %s", *key, text)

    # ------------------------------------------------------------ trimming

    def _trim(
        self,
        server: ServerConnection,
        views: Sequence[SourceView],
        offsets: dict[TableKey, AppliedOffset],
    ) -> None:
        keep = self._config.millstream.keep_entries
        for view in views:
            needed = view.newest_cut
            for key, table in view.tables.items():
                state, offset = table.state, offsets[key]
                trim_copy(server, self._configured[key], table, offset)
                if state is None or offset.copied_lsn != state.copy_lsn:
                    continue
                if state.phase not in ("copied", "wanted"):
                    continue
                trim(server, table.stream, table.info, offset.id, keep)
                if table.info is not None and table.info.last_id > offset.id:
                    needed = min(needed, offset.id[0])
            if needed:
                trim(server, view.cuts, view.cuts_info, (needed - 1, 0), keep)
