"""The jobs that the driver sends to a worker, and the worker's answer. Without I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from millstream.cdc.config import TableKey
from millstream.cdc.streams.changes import Id
from millstream.cdc.streams.source_state import Identity, SourceColumn


@dataclass(frozen=True)
class ApplyJob:
    """Entries of one table: those with after < ID <= until of its changes, or of its copy.

    `copy_lsn` is C of the copy that the entries belong to, or that was applied before them. With
    `is_alone`, they have a transaction of their own.
    """

    key: TableKey
    stream: str
    after: Id
    until: Id
    entries: int
    incarnation: int
    columns: tuple[SourceColumn, ...]
    identity: Identity
    copy_lsn: int
    is_copy: bool = False
    is_alone: bool = False
    is_shared: bool = False

    @property
    def changes(self) -> str:
        """The key of the table's changes, also if the entries are those of a copy."""
        return self.stream.removesuffix(":copy") if self.is_copy else self.stream

    @property
    def source(self) -> str:
        return f"{self.key[0]}:{self.key[1]}"


@dataclass(frozen=True)
class JobOutcome:
    """The result of a job. `error`: its table has been stopped. `is_stale`: the plan was out of
    date, and no change was made."""

    key: TableKey
    applied: int = 0
    rows: int = 0
    error: str | None = None
    error_id: str | None = None
    is_stale: bool = False
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class WorkerAnswer:
    """A worker's results. `problem`: why some jobs were not done; they must be repeated."""

    outcomes: tuple[JobOutcome, ...] = ()
    problem: str | None = None
    seconds: float = 0.0


def jobs_to_json(jobs: Sequence[ApplyJob]) -> str:
    return json.dumps([asdict(job) for job in jobs], ensure_ascii=False)


def jobs_from_json(text: str) -> list[ApplyJob]:
    return [
        ApplyJob(
            **{
                **values,
                "key": tuple(values["key"]),
                "after": tuple(values["after"]),
                "until": tuple(values["until"]),
                "columns": tuple(SourceColumn(**column) for column in values["columns"]),
            }
        )
        for values in json.loads(text)
    ]


def answer_to_json(answer: WorkerAnswer) -> str:
    return json.dumps(asdict(answer), ensure_ascii=False)


def answer_from_json(text: str) -> WorkerAnswer:
    values = json.loads(text)
    outcomes = tuple(
        JobOutcome(**{**one, "key": tuple(one["key"]), "warnings": tuple(one["warnings"])})
        for one in values.pop("outcomes")
    )
    return WorkerAnswer(outcomes=outcomes, **values)
