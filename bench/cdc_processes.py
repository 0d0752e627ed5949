"""The processes of `bench.cdc`: two PostgreSQL clusters, programs, and what they cost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.figures import BenchError
from bench.postgres import Postgres, PostgresError
from bench.server import _children, _stat_ticks

POLL_S = 0.05
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
SETTINGS = {"max_wal_size": "4GB", "shared_buffers": "512MB", "autovacuum": "off"}


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


@dataclass(frozen=True)
class Clusters:
    """The source's and the destination's."""

    source: Postgres
    destination: Postgres

    def cpu_s(self) -> dict[str, float]:
        """The CPU time so far of each cluster."""
        return {
            "source": family_cpu_s(self.source.pid),
            "destination": family_cpu_s(self.destination.pid),
        }


@contextlib.contextmanager
def clusters() -> Iterator[Clusters]:
    """Two empty clusters, which are removed in the end."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-postgres-") as name:
        made = [
            Postgres(Path(name) / level, {**SETTINGS, "wal_level": level})
            for level in ("logical", "replica")
        ]
        try:
            for one in made:
                one.start()
            yield Clusters(*made)
        except PostgresError as error:
            raise BenchError(str(error)) from None
        finally:
            for one in made:
                one.kill()


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
