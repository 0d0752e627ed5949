"""Servers and other programs, forked from a process that has imported them: the side of the tests.

`start` returns what tests use of `subprocess.Popen`. One fork server of each kind belongs to each
process of the test run, and starts with the first process that it is asked for.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

FOLDER = Path(__file__).parent
# Kinds of processes: the program that forks them, and its arguments.
SERVERS = ("fork_server.py",)
CDC = ("program_fork_server.py", "cdc")
DASHBOARD = ("program_fork_server.py", "dashboard")
# pytest sets variables for each test, and a Spark session sets some for its workers. A server does
# not read them.
IGNORED_VARIABLES = ("PYTEST_", "SPARK_", "PYSPARK_", "JAVA_", "MILLSTREAM_SPARK_")


class Process(Protocol):
    """The part of a process that tests use."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int, /) -> None: ...
    def kill(self) -> None: ...


class ForkedProcess:
    """A process whose exit code the fork server reports."""

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        self._received = b""
        self._lock = threading.Lock()  # tests wait in one thread and stop the server in another
        while self._received.count(b"\n") < 1:
            self._receive()
        self.pid = int(self._received.split(b"\n")[0])
        self.returncode: int | None = None

    def _receive(self) -> None:
        received = self._report.recv(64)
        assert received, "the fork server ended"
        self._received += received

    def poll(self) -> int | None:
        """The exit code as `subprocess.Popen` gives it; None while the process runs."""
        return self._ended_within(0)

    def _ended_within(self, timeout_s: float | None) -> int | None:
        with self._lock:
            while self.returncode is None:
                timeout_ms = None if timeout_s is None else timeout_s * 1000
                waiting = select.poll()
                waiting.register(self._report, select.POLLIN)
                if not waiting.poll(timeout_ms):
                    break
                self._receive()
                _, *ends = self._received.split(b"\n")[:-1]
                if ends:
                    self.returncode = int(ends[0])
                    self._report.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; subprocess.TimeoutExpired when the process still runs after `timeout`."""
        code = self._ended_within(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class _ForkServer:
    """The running program, and the environment that it was started with."""

    def __init__(self, environment: Mapping[str, str], kind: tuple[str, ...]) -> None:
        program, *options = kind
        self.environment = _read_by_servers(environment)
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._program = subprocess.Popen(
                # -P: the modules in this folder are not the standard library's of the same name.
                [sys.executable, "-P", str(FOLDER / program), str(theirs.fileno()), *options],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=dict(environment),
            )

    def start(self, arguments: Sequence[str], log: BinaryIO, directory: Path) -> ForkedProcess:
        request = {"arguments": list(arguments), "directory": str(directory)}
        report, theirs = socket.socketpair()
        with theirs, self._lock:
            fds = [log.fileno(), theirs.fileno()]
            socket.send_fds(self._control, [json.dumps(request).encode()], fds)
        return ForkedProcess(report)


_running: dict[tuple[str, ...], _ForkServer] = {}
_starting = threading.Lock()


def start(
    arguments: Sequence[str],
    log: BinaryIO,
    directory: Path,
    environment: Mapping[str, str],
    usual: Mapping[str, str],
    kind: tuple[str, ...] = SERVERS,
) -> Process | None:
    """A process with this command line; None when `environment` is not the usual one, which the
    fork server has, because some variables take effect only when a program starts."""
    with _starting:
        if kind not in _running:
            _running[kind] = _ForkServer(usual, kind)
    if _running[kind].environment != _read_by_servers(environment):
        return None
    return _running[kind].start(arguments, log, directory)


def _read_by_servers(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if not name.startswith(IGNORED_VARIABLES)
    }
