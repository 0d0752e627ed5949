"""Starts and ends Spark: its settings, its log, and which signals reach its JVM."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.cdc.applier.driver import ApplyError
from millstream.cdc.config import CdcConfig

if TYPE_CHECKING:
    from pyspark import SparkContext

log = logging.getLogger("millstream.cdc.apply")

APPLICATION = "millstream cdc apply"
# Overridden by [apply] spark. The console shows a line for each event, not Spark's progress bar.
SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    # The JVM has little work, so its optimizing compiler would cost more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.python.daemon.module": "millstream.cdc.applier.spark_daemon",
}
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")
LOOPBACK = "127.0.0.1"


def start(config: CdcConfig, master: str | None) -> SparkContext:
    """A Spark context with the settings of [apply]. ApplyError if Spark cannot be started."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    chosen = master or config.apply.master
    if chosen.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # All of Spark is in one process. Otherwise it looks for an address that others can reach.
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    settings = SparkConf().setAppName(APPLICATION).setMaster(chosen)
    for name, value in {**SETTINGS, **_log_settings(), **config.apply.spark}.items():
        settings.set(name, str(value).lower() if isinstance(value, bool) else str(value))
    try:
        with no_signals_for_children():
            gateway = launch_gateway(settings)  # type: ignore[no-untyped-call]
        context = SparkContext(conf=settings, gateway=gateway)
    except Exception as error:  # of Spark or Py4J: both have many classes
        raise ApplyError(
            f"Spark cannot be started: {in_a_line(error).rstrip('.')}. It needs Java 17 or 21 in"
            " JAVA_HOME or PATH"
        ) from error
    context.setLogLevel("FATAL")  # the driver logs each failure in one line
    return context


def _log_settings() -> dict[str, str]:
    """Our configuration of Spark's log, unless the user has one."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (home and f"{home}/conf")
    if folder and any(Path(folder).glob("log4j2*")):
        return {}
    option = f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}"
    return {"spark.driver.defaultJavaOptions": option}


@contextmanager
def no_signals_for_children() -> Iterator[None]:
    """Processes that are started here ignore SIGTERM and SIGINT. This process gets them afterwards.

    A terminal and systemd send them to all processes. `apply` ends after the batch that is running,
    which needs the JVM. The JVM ends when `apply` does.
    """
    numbers = (signal.SIGTERM, signal.SIGINT)
    # A blocked signal stays pending, also while it is ignored.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    handlers = {one: signal.signal(one, signal.SIG_IGN) for one in numbers}
    try:
        yield
    finally:
        for one, handler in handlers.items():
            signal.signal(one, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def has_ended(context: SparkContext) -> bool:
    """True if the JVM is dead, or the application was ended by the cluster."""
    inside: Any = context
    process = getattr(inside._gateway, "proc", None)
    if process is not None and process.poll() is not None:
        return True
    try:
        return bool(inside._jsc.sc().isStopped())
    except Exception:  # the JVM does not answer
        return True


def stop(context: SparkContext) -> None:
    """End Spark, unless it has ended already."""
    if has_ended(context):
        return
    try:
        context.stop()
    except Exception as error:  # the JVM ends at the same moment
        log.debug("Spark could not be ended: %s", in_a_line(error))


def in_a_line(error: Exception) -> str:
    """The first line of an error's text."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:500] if lines else type(error).__name__
