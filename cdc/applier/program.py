"""`millstream cdc apply`: the Spark program as a process, from its start to its exit code."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from millstream.cdc.applier import spark_start
from millstream.cdc.applier.apply_jobs import ApplyJob, WorkerAnswer, answer_from_json, jobs_to_json
from millstream.cdc.applier.apply_status import ApplyStatus, Reporter
from millstream.cdc.applier.apply_worker import run_part
from millstream.cdc.applier.driver import ApplyError, Driver, RunError
from millstream.cdc.applier.spark_start import has_ended, in_a_line
from millstream.cdc.config import CdcConfig
from millstream.cdc.logs import Secrets, open_log
from millstream.cdc.metrics import Served, serve_registry
from millstream.cdc.streams.stream_appender import address_of

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("millstream.cdc.apply")


def apply(config: CdcConfig, once: bool = False, master: str | None = None) -> int:
    """Apply until SIGTERM or SIGINT, or with `once` until everything has been applied. The exit
    code. ApplyError if something is missing, MetricsError if metrics cannot be served."""
    text = config.path.read_text()
    status = ApplyStatus()
    open_log("apply", Secrets(config))
    served: list[Served] = []

    def serve() -> None:
        """Called late, because the previous `apply` may have used the same address."""
        if config.apply.metrics is not None and not served:
            served.append(serve_registry(config.apply.metrics, status.registry))

    context = spark_start.start(config, master)
    run = SparkRun(context, str(config.path), text, config.apply.workers)
    stop = threading.Event()
    driver = Driver(config, run, status, serve)
    try:
        with _stopped_by_signals(stop):
            run.warm_up()
            with Reporter(address_of(config.millstream), config.millstream.prefix, status):
                log.info("applying to the destination, pid %d", os.getpid())
                return driver.apply(stop, once)
    finally:
        driver.close()
        spark_start.stop(context)
        for one in served:
            one.close()


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT end the program after the batch that is running."""

    def handle(number: int, frame: object) -> None:
        stop.set()

    before = {one: signal.signal(one, handle) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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
