"""Runs batches with Spark: a collection with one element, a part of the plan, for each worker.

Spark only schedules. Entries go directly from millstream to the worker; only the plan and the
answers pass through the JVM, so neither SQL's planner nor Arrow is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from millstream.cdc.applier.apply_jobs import ApplyJob, WorkerAnswer, answer_from_json, jobs_to_json
from millstream.cdc.applier.apply_worker import run_part
from millstream.cdc.applier.driver import ApplyError, RunError
from millstream.cdc.applier.spark_start import has_ended, in_a_line

if TYPE_CHECKING:
    from pyspark import SparkContext


class SparkRun:
    """Runs the parts of a batch in Spark's tasks.

    `text` is that of the configuration file: the executors replace the environment variables in it,
    so that no password is in a task.
    """

    def __init__(self, context: SparkContext, path: str, text: str, workers: int) -> None:
        self._context = context
        self._workers = workers
        self._path = path
        self._text = text

    def warm_up(self) -> None:
        """Start the Python workers, so that the first batch does not wait for them. RunError if
        Spark cannot start them."""
        self([[] for _ in range(self._workers)])

    def __call__(self, parts: Sequence[Sequence[ApplyJob]]) -> list[WorkerAnswer]:
        plans = [jobs_to_json(part) for part in parts]
        try:
            tasks = self._context.parallelize(plans, len(plans))
            answers = tasks.map(partial(run_part, self._path, self._text)).collect()
        except Exception as error:  # of Spark, Py4J or the Python worker: all have many classes
            if has_ended(self._context):
                raise ApplyError("Spark has ended: start apply again") from error
            raise RunError(f"Spark could not run the batch: {in_a_line(error)}") from error
        return [answer_from_json(answer) for answer in answers]
