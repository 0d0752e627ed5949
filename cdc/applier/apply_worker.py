"""One worker's part of a batch: a transaction at the destination that applies entries and moves
offsets.

A change that cannot be applied stops its table: the transaction is rolled back, and each table gets
one of its own. The table with the error is then applied up to just before the change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import psycopg

from millstream.cdc.applier.apply_jobs import (
    ApplyJob,
    JobOutcome,
    WorkerAnswer,
    answer_to_json,
    jobs_from_json,
)
from millstream.cdc.applier.failure_search import STOPPING, Failure, FailureSearch, stops
from millstream.cdc.applier.source_order import SourceOrder
from millstream.cdc.applier.table_applier import StreamChanged, TableApplier, lost
from millstream.cdc.config import CdcConfig, Table, TableKey, target_of
from millstream.cdc.config_file import parse
from millstream.cdc.destination.connections import ApplyConnections, TargetSession, in_one_line
from millstream.cdc.destination.foreign_keys import connected, parents_first, read_references
from millstream.cdc.destination.offsets import AppliedOffset, OffsetTable
from millstream.cdc.destination.route import Route, route
from millstream.cdc.destination.table_kinds import kind_of
from millstream.cdc.destination.target import TargetError, TargetName, TargetTable, read_targets
from millstream.cdc.sql import table_name
from millstream.cdc.streams.column_record import ColumnRecord
from millstream.cdc.streams.key_names import columns_key
from millstream.cdc.streams.source_state import SourceColumn
from millstream.pipeline.server_connection import ServerError

log = logging.getLogger("millstream.cdc.apply")

RETRIED = (psycopg.Error, ServerError, OSError)

Outcome = TypeVar("Outcome")


class ApplyWorker:
    """Applies parts of batches. Its connections stay open between them."""

    def __init__(self, config: CdcConfig) -> None:
        self.config = config
        self._tables: dict[TableKey, Table] = {
            source.key_of(table): table for source in config.sources for table in source.tables
        }
        self.connections = ApplyConnections(config, "millstream cdc apply")

    def close(self) -> None:
        self.connections.close()

    def run(self, jobs: Sequence[ApplyJob]) -> WorkerAnswer:
        """Apply the jobs. Errors that may pass are the answer's problem."""
        started = time.monotonic()
        outcomes: list[JobOutcome] = []
        problem = None
        try:
            for outcome in self._apply(jobs):
                outcomes.append(outcome)
        except RETRIED as error:
            problem = in_one_line(error)
            self.close()
        return WorkerAnswer(tuple(outcomes), problem, time.monotonic() - started)

    # ------------------------------------------------------------ transactions

    def _apply(self, jobs: Sequence[ApplyJob]) -> Iterator[JobOutcome]:
        """The outcome of each job, after its transaction has ended."""
        together = [job for job in jobs if not job.is_alone]
        outcomes = None
        if len(together) > 1:
            outcomes = self._together(together, _ApplyTransaction.apply_all)
            if outcomes is None:
                outcomes = self._together(together, _ApplyTransaction.apply_in_order)
        if outcomes is None:
            yield from self._by_group(together)
        else:
            yield from outcomes
        yield from (self._alone(job) for job in jobs if job.is_alone)

    def _by_group(self, jobs: Sequence[ApplyJob]) -> Iterator[JobOutcome]:
        """Apply the jobs in one transaction for each group of targets that foreign keys connect. A
        violation that only COMMIT finds then stops no table of another group."""
        names = {job.key: target_of(self.table(job.key), self.config) for job in jobs}
        first = connected(read_references(self.connections.destination, names.values()))
        groups: dict[TargetName, list[ApplyJob]] = {}
        for job in jobs:
            name = names[job.key]
            groups.setdefault(first.get(name, name), []).append(job)
        for own in groups.values():
            outcomes = None
            if 1 < len(own) < len(jobs):
                outcomes = self._together(own, _ApplyTransaction.apply_in_order)
            yield from map(self._alone, own) if outcomes is None else outcomes

    def _together(
        self,
        jobs: Sequence[ApplyJob],
        apply: Callable[[_ApplyTransaction, Sequence[ApplyJob]], list[JobOutcome]],
    ) -> list[JobOutcome] | None:
        """Apply the jobs in one transaction; None if one of them cannot be applied."""
        try:
            return self._committed(jobs, lambda part: apply(part, jobs))
        except (*STOPPING, StreamChanged) as error:
            if not stops(error) and not isinstance(error, StreamChanged):
                raise
        return None

    def _alone(self, job: ApplyJob) -> JobOutcome:
        try:
            try:
                return self._committed([job], lambda part: part.apply(job))
            except STOPPING as error:
                if not stops(error):
                    raise
                log.debug("%s %s: %s", job.source, job.key[2], in_one_line(error))
            return self._committed([job], lambda part: part.apply_up_to_error(job))
        except StreamChanged:
            return JobOutcome(job.key, is_stale=True)

    def _committed(
        self, jobs: Sequence[ApplyJob], apply: Callable[[_ApplyTransaction], Outcome]
    ) -> Outcome:
        """The outcome of a transaction."""
        with self.connections.destination.transaction():
            part = _ApplyTransaction(self, jobs)
            outcome = apply(part)
            part.commit()
        return outcome

    def table(self, key: TableKey) -> Table:
        return self._tables[key]


class _ApplyTransaction:
    """A transaction: offsets that are locked, targets, and what is done with them."""

    def __init__(self, worker: ApplyWorker, jobs: Sequence[ApplyJob]) -> None:
        self._worker = worker
        self._config = worker.config
        connection = worker.connections.destination
        self._session = TargetSession(connection)
        self._offsets = OffsetTable(connection, worker.config.destination.schema)
        self._locked = self._offsets.lock([job.key for job in jobs])
        names = {job.key: self._target_name(job.key) for job in jobs}
        self._targets: dict[TableKey, TargetTable | None] = {}
        found = read_targets(connection, list(names.values()))
        for key, name in names.items():
            self._targets[key] = found.get(name)
        places = parents_first(list(found), read_references(connection, found))
        self._places = {key: places.get(name, 0) for key, name in names.items()}
        self._moved: list[AppliedOffset] = []
        # As at COMMIT of the source: in between, a transaction may violate what is deferrable.
        self._session.run("SET CONSTRAINTS ALL DEFERRED")

    def apply_all(self, jobs: Sequence[ApplyJob]) -> list[JobOutcome]:
        """Apply jobs as a whole, one after the other."""
        return [self.apply(job) for job in sorted(jobs, key=lambda job: self._places[job.key])]

    def apply_in_order(self, jobs: Sequence[ApplyJob]) -> list[JobOutcome]:
        """Apply jobs in the order of the source, each up to just before the first change that
        cannot be applied."""
        outcomes: list[JobOutcome] = []
        begun: list[tuple[ApplyJob, TableApplier]] = []
        for job in jobs:
            applier = self._begin(job)
            if isinstance(applier, JobOutcome):
                outcomes.append(applier)
            else:
                begun.append((job, applier))
        appliers = [applier for _, applier in begun]
        order = SourceOrder(self._session, appliers, lambda one: self._places[one.job.key])
        for (job, applier), failure in zip(begun, order.run(), strict=True):
            outcomes.append(self._end(job, applier, failure))
        return outcomes

    def apply(self, job: ApplyJob) -> JobOutcome:
        """Apply a job as a whole."""
        offset = self._locked.get(job.key)
        if not is_valid(job, offset):
            return JobOutcome(job.key, is_stale=True)
        assert offset is not None
        applier = self._applier(job, offset)
        applier.run()
        self._moved.append(applier.offset)
        return JobOutcome(job.key, applier.applied, applier.rows, warnings=tuple(applier.warnings))

    def apply_up_to_error(self, job: ApplyJob) -> JobOutcome:
        """Apply a job up to just before the first change that cannot be applied."""
        applier = self._begin(job)
        if isinstance(applier, JobOutcome):
            return applier
        return self._end(job, applier, FailureSearch(self._session, applier).run())

    def _begin(self, job: ApplyJob) -> TableApplier | JobOutcome:
        """The applier of a job; its outcome if it cannot begin."""
        offset = self._locked.get(job.key)
        if not is_valid(job, offset):
            return JobOutcome(job.key, is_stale=True)
        assert offset is not None
        try:
            return self._applier(job, offset)
        except STOPPING as error:
            if not stops(error):
                raise
            stopped = replace(offset, state="stopped", error=in_one_line(error), error_id=None)
            self._moved.append(stopped)
            return JobOutcome(job.key, error=stopped.error)

    def _end(self, job: ApplyJob, applier: TableApplier, failure: Failure | None) -> JobOutcome:
        """The outcome of an applier that was applied up to a failure."""
        reached = applier.offset
        if failure is not None:
            text = failure.text
            if failure.is_lost:
                text = lost(job, text)
            reached = replace(reached, state="stopped", error=text, error_id=failure.id_text)
        self._moved.append(reached)
        warnings = tuple(applier.warnings)
        return JobOutcome(
            job.key, applier.applied, applier.rows, reached.error, reached.error_id, False, warnings
        )

    def commit(self) -> None:
        self._offsets.write(self._moved)

    def _applier(self, job: ApplyJob, offset: AppliedOffset) -> TableApplier:
        server = self._worker.connections.server
        new_names = self._new_names(job)
        columns = tuple(
            replace(column, name=new_names.get(column.name, column.name)) for column in job.columns
        )
        to = self._route(job, columns)
        return TableApplier(self._session, server, job, to, offset, new_names)

    def _new_names(self, job: ApplyJob) -> dict[str, str]:
        """The target's names of columns that were renamed at both sides since the copy."""
        target, rename = self._targets[job.key], self._worker.table(job.key).rename
        if target is None or job.is_copy:
            return {}
        names = target.columns
        missing = [one.name for one in job.columns if rename.get(one.name, one.name) not in names]
        missing = [name for name in missing if name not in rename]
        if not missing:
            return {}
        text = self._worker.connections.server.call("GET", columns_key(job.changes))
        record = ColumnRecord.from_json(text).with_copied(job.columns)
        missing += [one.name for one in record.columns if one.name not in {*names, *rename}]
        found = {
            name: record.other_name(name, lambda other: other in names and other not in rename)
            for name in missing
        }
        return {name: other for name, other in found.items() if other is not None}

    def _target_name(self, key: TableKey) -> tuple[str, str]:
        return target_of(self._worker.table(key), self._config)

    def _route(self, job: ApplyJob, columns: Sequence[SourceColumn]) -> Route:
        target = self._targets[job.key]
        if target is None:
            name = table_name(*self._target_name(job.key))
            raise TargetError(
                f"the target {name} does not exist: millstream cdc setup --create-targets"
            )
        return route(
            kind_of(self._worker.table(job.key)),
            target,
            job.key[1],
            self._config.destination.sid_column,
            columns,
            job.identity,
            job.is_shared,
        )


def is_valid(job: ApplyJob, offset: AppliedOffset | None) -> bool:
    """True if the offset is of the copy for which the job was planned. A copy that has been applied
    completely is not applied again: Spark may run a task twice."""
    if offset is None:
        return False
    return job.is_copy != (offset.copied_lsn == job.copy_lsn)


WORKERS: dict[tuple[str, str], ApplyWorker] = {}


def run_part(path: str, text: str, part: str) -> str:
    """Apply a part, in a process that may have applied others; all arguments and the result are
    texts. `text` is that of the configuration file, with the names of environment variables."""
    worker = WORKERS.get((path, text))
    if worker is None:
        import os

        worker = ApplyWorker(parse(text, Path(path), os.environ))
        WORKERS[path, text] = worker
    return answer_to_json(worker.run(jobs_from_json(part)))
