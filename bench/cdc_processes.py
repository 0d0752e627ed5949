"""The processes of `bench.cdc`: two PostgreSQL clusters, programs, and what they cost."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from bench.figures import BenchError
from bench.server import _children, _stat_ticks

USER = "postgres"
START_TIMEOUT_S = 60.0
POLL_S = 0.05
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SETTINGS = {
    "fsync": "off",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
    "max_wal_size": "4GB",
    "shared_buffers": "512MB",
    "autovacuum": "off",
    # A subscription that is enabled again does not wait for seconds.
    "wal_retrieve_retry_interval": "100ms",
}


def family_cpu_s(pid: int) -> float:
    """The CPU time of a process and of all that it started, also of those that have ended."""
    children = _children()
    family, ticks = [pid], 0
    while family:
        member = family.pop()
        family += children.get(member, [])
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            ticks += sum(_stat_ticks(member))
    return ticks / TICKS_PER_S


def wait_until(look: Callable[[], Any], what: str, timeout_s: float) -> Any:
    """The first true result of `look`; BenchError after the timeout."""
    end = time.monotonic() + timeout_s
    while not (seen := look()):
        if time.monotonic() > end:
            raise BenchError(f"{what} did not come within {timeout_s:.0f} s")
        time.sleep(POLL_S)
    return seen


def programs() -> Path:
    """Where PostgreSQL's programs are."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not found:
        raise BenchError("PostgreSQL is missing: apt-get install postgresql")
    return found[-1].parent


def as_user() -> list[str]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]


class Cluster:
    """A running cluster in a directory of its own."""

    def __init__(self, directory: Path, wal_level: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        data = directory / wal_level
        data.mkdir()
        if as_user():
            directory.chmod(0o755)
            shutil.chown(data, USER, USER)
        initdb = [*as_user(), programs() / "initdb", "-D", data, "-U", USER, "-A", "trust"]
        subprocess.run([*initdb, "--no-sync"], check=True, capture_output=True, cwd="/")
        settings = {"port": str(self.port), "wal_level": wal_level, **SETTINGS}
        words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (directory / f"{wal_level}.log").open("wb") as log:
            self.process = subprocess.Popen(
                [*as_user(), programs() / "postgres", "-D", data, *words],
                stdout=log,
                stderr=log,
                cwd="/",
            )
        wait_until(self._answers, "PostgreSQL's start", START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            self.connect("postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait()


@dataclass(frozen=True)
class Clusters:
    """The source's and the destination's."""

    source: Cluster
    destination: Cluster

    def cpu_s(self) -> dict[str, float]:
        """The CPU time so far of each cluster."""
        return {
            "source": family_cpu_s(self.source.process.pid),
            "destination": family_cpu_s(self.destination.process.pid),
        }


@contextlib.contextmanager
def clusters() -> Iterator[Clusters]:
    """Two empty clusters, which are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-postgres-") as name:
        made: list[Cluster] = []
        try:
            for wal_level in ("logical", "replica"):
                made.append(Cluster(Path(name), wal_level))
            yield Clusters(*made)
        finally:
            for one in made:
                one.stop()


class Program:
    """A program in a process group of its own."""

    def __init__(self, command: Sequence[object], log: Path) -> None:
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [str(word) for word in command],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def cpu_s(self) -> float:
        return family_cpu_s(self.process.pid)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what is left."""
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
