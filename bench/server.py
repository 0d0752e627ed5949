"""A measured server process: starts it pinned to a core, reads its cost, and always stops it.

Servers run in a separate session, so that Ctrl-C reaches only the benchmark. The kernel kills them
if the benchmark is killed.
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
ALL_CORES = -1  # where the scheduler puts it
ASLEEP = "S"
PARENT_FIELD = 1
"""The index in /proc/PID/stat, counted after the name in brackets."""
UTIME_FIELD = 11
"""stime, cutime and cstime follow it."""

_LIBC = ctypes.CDLL(None)


OWN_TLS_PORT = "a free port"  # the value of --tls-port: each server takes one of its own


class Server:
    """A running server on a free port of 127.0.0.1, with its own, initially empty data
    directory."""

    def __init__(
        self,
        command: Sequence[str],
        directives: Sequence[str],
        core: int,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        """Start `command --port P --dir TMP directives...` on this core, or on ALL_CORES; return
        when it answers PING."""
        self.port = free_port()
        self._command = list(command)
        self.tls_port = free_port() if OWN_TLS_PORT in directives else 0
        self._directives = [
            str(self.tls_port) if word == OWN_TLS_PORT else word for word in directives
        ]
        self._given = directives
        self.core = core
        self._directory = Path(tempfile.mkdtemp(prefix="millstream-bench-"))
        self.data_directory.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start(start_timeout_s)
        except BaseException:
            self.stop()
            raise

    def start(self, timeout_s: float = START_TIMEOUT_S) -> float:
        """Start the process and return the seconds until it answers PING."""
        began = time.monotonic()
        self._process = self._launch()
        self._wait_until_ready(began + timeout_s)
        self.ready_s = time.monotonic() - began
        return self.ready_s

    def another(self, core: int | None = None) -> Server:
        """Another server of the same kind, with an empty directory."""
        return Server(self._command, self._given, self.core if core is None else core)

    def kill(self) -> None:
        """Kill the process like a crash: it saves nothing, and its files remain."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _launch(self) -> subprocess.Popen[bytes]:
        # An installed program has its bytecode. Without it, each start compiles all modules.
        environment = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        }
        with open(self._directory / "log", "ab") as log:
            try:
                return subprocess.Popen(
                    self._words(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    env=environment,
                    preexec_fn=_child_setup(self.core),
                )
            except OSError as error:
                raise BenchError(f"cannot start {self._command[0]}: {error.strerror}") from error

    def _words(self) -> list[str]:
        """The command line of the process."""
        where = ["--port", str(self.port), "--dir", str(self.data_directory)]
        return [*self._command, *where, *self._directives]

    def _is_ready(self) -> bool:
        """True if the server answers PING; while it loads its data it replies with an error."""
        with Client(self.port) as client:
            return bool(client.call("PING") == "PONG")

    def _wait_until_ready(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            if not self.alive():
                raise BenchError(f"the server ended at start-up: {self.log_tail()}")
            with contextlib.suppress(OSError, BenchError):
                if self._is_ready():
                    return
            time.sleep(POLL_S)
        raise BenchError(f"the server did not answer in time: {self.log_tail()}")

    @property
    def data_directory(self) -> Path:
        """The directory of its files, which `stop` removes."""
        return self._directory / "data"

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
        """CPU time of all existing threads, in nanoseconds."""
        return cpu_ns_of(self.pid)

    def children_cpu_ns(self) -> int:
        """CPU time of all children that have ended (a forked save), with the resolution of the
        kernel's ticks, mostly 10 ms."""
        return sum(_stat_ticks(self.pid)[2:]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")

    def family_bytes(self) -> int:
        """Memory of the process and of its children, with shared memory counted once."""
        total_bytes = 0
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in (str(self.pid), *children):
            # A child may end meanwhile.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total_bytes += int(line.split()[1]) * 1024
        return total_bytes

    def data_bytes(self) -> int:
        """The total size of its files."""
        files = self.data_directory.rglob("*")
        return sum(file.stat().st_size for file in files if file.is_file())

    def rss_bytes(self) -> int:
        """Resident memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise BenchError("the server has ended")

    def wait_until_asleep(self, seen_ns: int) -> None:
        """Return when the server has run since its CPU time was `seen_ns` and sleeps again, a few
        microseconds after it does."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while self.cpu_ns() == seen_ns or _stat_fields(self.pid)[0] != ASLEEP:
            if time.monotonic() > deadline:
                raise BenchError(f"the server did not fall asleep in {SETTLE_TIMEOUT_S:.0f} s")

    def settle(self) -> None:
        """Return when the server is idle, so that deferred work is included in the right
        reading."""
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
        """End the process, if it still runs, and remove its directory."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)


def family_cpu_ticks(pid: int) -> dict[int, int]:
    """CPU time of a process and of each of its descendants, in the kernel's ticks of mostly 10 ms.

    Each process has only its own time, without the time of ended children. Therefore a comparison
    of two readings (`cpu_s_between`) is not wrong when a process ends.
    """
    children = _children()
    ticks: dict[int, int] = {}
    family = [pid]
    while family:
        member = family.pop()
        family += children.get(member, [])
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ticks[member] = sum(_stat_ticks(member)[:2])
    return ticks


def cpu_s_between(before: dict[int, int], after: dict[int, int]) -> float:
    """CPU time of a process family between two readings, without processes that ended meanwhile."""
    spent = sum(ticks - before.get(pid, 0) for pid, ticks in after.items())
    return spent / os.sysconf("SC_CLK_TCK")


def _children() -> dict[int, list[int]]:
    """The children of every process. The files named `children` are not used, because they may omit
    some children while others end."""
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int(_stat_fields(int(directory.name))[PARENT_FIELD])
            children.setdefault(parent, []).append(int(directory.name))
    return children


def _stat_fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _stat_ticks(pid: int) -> list[int]:
    """utime and stime, and cutime and cstime of the children that have ended."""
    return [int(ticks) for ticks in _stat_fields(pid)[UTIME_FIELD : UTIME_FIELD + 4]]


def cpu_ns_of(pid: int) -> int:
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns


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
    """The setup that the new process runs before it executes the server."""

    def setup() -> None:
        if core != ALL_CORES:
            os.sched_setaffinity(0, {core})
        _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    return setup
