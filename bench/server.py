"""One server process under measurement: start it pinned to a core, read what it costs, always stop
it.

The servers get a session of their own, so that Ctrl-C reaches the benchmark and not them, and the
kernel is asked to kill them should the benchmark itself be killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.figures import BenchError
from bench.wire import Client

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.01
SETTLE_TIMEOUT_S = 30.0
IDLE_SHARE_MAX = 0.05
PR_SET_PDEATHSIG = 1

_LIBC = ctypes.CDLL(None)


class Server:
    """A running server on a free port of 127.0.0.1, with an empty data directory of its own."""

    def __init__(self, command: Sequence[str], directives: Sequence[str], core: int) -> None:
        """Start `command --port P --dir TMP directives...`; returns when it answers PING."""
        self.port = free_port()
        self._directory = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
        (self._directory / "data").mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = self._start(command, directives, core)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise

    def _start(
        self, command: Sequence[str], directives: Sequence[str], core: int
    ) -> subprocess.Popen[bytes]:
        where = ["--port", str(self.port), "--dir", str(self._directory / "data")]
        with open(self._directory / "log", "wb") as log:
            try:
                return subprocess.Popen(
                    [*command, *where, *directives],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_child_setup(core),
                )
            except OSError as error:
                raise BenchError(f"cannot start {command[0]}: {error.strerror}") from error

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if not self.alive():
                raise BenchError(f"the server ended at start-up: {self.log_tail()}")
            with contextlib.suppress(OSError, BenchError), Client(self.port) as client:
                if client.call("PING") == "PONG":
                    return
            time.sleep(POLL_S)
        raise BenchError(
            f"the server did not answer within {START_TIMEOUT_S:.0f} s: {self.log_tail()}"
        )

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BenchError("the server is not running")
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> str:
        """The last lines the server wrote, for error messages."""
        lines = (self._directory / "log").read_text(errors="replace").splitlines()
        return " | ".join(lines[-5:]) or "(it wrote nothing)"

    def cpu_ns(self) -> int:
        """CPU time of all threads in nanoseconds. A thread that has ended no longer counts."""
        total_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                total_ns += int((task / "schedstat").read_text().split()[0])
        return total_ns

    def rss_bytes(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BenchError("the server has ended")

    def settle(self) -> None:
        """Return when the server is idle, so that work it put off is counted where it belongs."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        cpu_ns, seen_at = self.cpu_ns(), time.monotonic()
        while time.monotonic() < deadline:
            time.sleep(POLL_S)
            now_ns, now = self.cpu_ns(), time.monotonic()
            if now_ns - cpu_ns < IDLE_SHARE_MAX * (now - seen_at) * 1e9:
                return
            cpu_ns, seen_at = now_ns, now
        raise BenchError(f"the server did not become idle within {SETTLE_TIMEOUT_S:.0f} s")

    def stop(self) -> None:
        """End the process and remove its directory. Harmless when it has ended already."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def pick_cores() -> tuple[int, int]:
    """The core for the servers and the core for the load; the same one if there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[0], cores[min(1, len(cores) - 1)]


def _child_setup(core: int) -> Callable[[], None]:
    """What the new process does before it becomes the server."""

    def setup() -> None:
        os.sched_setaffinity(0, {core})
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return setup
