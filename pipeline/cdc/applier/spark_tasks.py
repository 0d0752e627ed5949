"""Runs batches with Spark: a collection with one element, a part of the plan, for each worker.

Spark only schedules. Entries go directly from millstream to the worker; only the plan and the
answers pass through the JVM, so neither SQL's planner nor Arrow is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from millstream.pipeline.cdc.applier.driver import ApplyError, RunError
from millstream.pipeline.cdc.applier.jobs import Answer, Job, answer_from_json, jobs_to_json
from millstream.pipeline.cdc.applier.worker import run_part
from millstream.pipeline.cdc.config import Config

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

APPLICATION = "millstream cdc apply"
# Overridden by [apply] spark. The console shows a line for each event, not Spark's progress bar.
SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # The JVM has little work, so its optimizing compiler would cost more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "millstream.pipeline.cdc.applier.spark_daemon",
}


def start(config: Config, master: str | None) -> SparkSession:
    """A Spark session with the settings of [apply]. ApplyError if Spark cannot be started."""
    from pyspark.sql import SparkSession

    chosen = master or config.apply.master
    if chosen.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(APPLICATION).master(chosen)
    for name, value in {**SETTINGS, **config.apply.spark}.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        builder = builder.config(name, text)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # of Spark or Py4J: both have many classes
        raise ApplyError(
            f"Spark cannot be started: {_shown(error).rstrip('.')}. It needs Java 17 or 21 in"
            " JAVA_HOME or PATH"
        ) from error
    session.sparkContext.setLogLevel("FATAL")  # the driver logs each failure in one line
    return session


class SparkRun:
    """Runs the parts of a batch in Spark's tasks.

    `text` is that of the configuration file: the executors replace the environment variables in it,
    so that no password is in a task.
    """

    def __init__(self, session: SparkSession, path: str, text: str, workers: int) -> None:
        self._session = session
        self._workers = workers
        self._path = path
        self._text = text

    def warm_up(self) -> None:
        """Start the Python workers, so that the first batch does not wait for them. RunError if
        Spark cannot start them."""
        self([[] for _ in range(self._workers)])

    def __call__(self, parts: Sequence[Sequence[Job]]) -> list[Answer]:
        plans = [jobs_to_json(part) for part in parts]
        try:
            tasks = self._session.sparkContext.parallelize(plans, len(plans))
            answers = tasks.map(partial(run_part, self._path, self._text)).collect()
        except Exception as error:  # of Spark, Py4J or the Python worker: all have many classes
            if self._has_ended():
                raise ApplyError("Spark has ended: start apply again") from error
            raise RunError(f"Spark could not run the batch: {_shown(error)}") from error
        return [answer_from_json(answer) for answer in answers]

    def _has_ended(self) -> bool:
        """Whether the JVM is dead, or the application was ended by the cluster."""
        context: Any = self._session.sparkContext
        process = getattr(context._gateway, "proc", None)
        if process is not None and process.poll() is not None:
            return True
        try:
            return bool(context._jsc.sc().isStopped())
        except Exception:  # the JVM does not answer
            return True


def _shown(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
