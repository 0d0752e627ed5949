"""`millstream cdc run`: one process for each source, started again when it dies."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, TypeAlias

from millstream.backoff import Backoff
from millstream.cdc.config import CdcConfig, Source
from millstream.cdc.logs import Secrets, open_log

LOOK_S = 0.1
STEADY_S = 10.0
STOP_S = 10.0

Take: TypeAlias = Callable[[str, dict[str, Any]], None]
"""Gets the name of a source, and each of its reports."""


class Child:
    """The process of one source."""

    def __init__(self, config: CdcConfig, source: Source, take: Take) -> None:
        self.source = source
        self.report: dict[str, Any] = {}
        self._command = [
            sys.executable,
            "-m",
            "millstream.cdc.reader.source_process",
            str(config.path),
            source.name,
        ]
        self._take = take
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._backoff = Backoff()
        self._start_at = 0.0

    @property
    def is_refused(self) -> bool:
        return self.report.get("reader") == "refused"

    def start_if_ended(self, log: logging.Logger) -> None:
        """Start the process if it does not run."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._start_at:
                self._start()
            return
        code = self._process.poll()
        if code is None:
            return
        if now - self._started > STEADY_S:
            self._backoff.reset()
        cause = f"signal {-code}" if code < 0 else f"exit code {code}"
        log.error("%s: the process ended with %s; it is restarted", self.source.name, cause)
        self._process, self._start_at = None, now + self._backoff.next_s()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        threading.Thread(target=self._listen, args=[self._process], daemon=True).start()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # the process was killed while it wrote
            self.report = json.loads(line)
            self._take(self.source.name, self.report)

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run(config: CdcConfig, sources: Sequence[Source]) -> int:
    """Read the sources until SIGTERM or SIGINT. The exit code: 0, or 1 when every source was
    refused."""
    log = open_log("run", Secrets(config))
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    serving = _serving(config.read.metrics) if config.read.metrics else nullcontext(_ignored)
    with serving as take:
        return _watch([Child(config, source, take) for source in sources], stop, log)


def _watch(children: Sequence[Child], stop: threading.Event, log: logging.Logger) -> int:
    try:
        while not stop.wait(LOOK_S):
            for child in children:
                child.start_if_ended(log)
            if all(child.is_refused for child in children):
                log.error("every source was refused")
                return 1
        return 0
    finally:
        for child in children:
            child.end()
        for child in children:
            child.wait()


def _ignored(source: str, report: dict[str, Any]) -> None:
    """Takes the reports if metrics are not served."""


@contextmanager
def _serving(address: str) -> Iterator[Take]:
    """Serve metrics; yields the function that receives the reports."""
    from millstream.cdc.metrics import Reports, serve_registry

    reports = Reports()
    served = serve_registry(address, reports.registry)
    try:
        yield reports.set_report
    finally:
        served.close()
