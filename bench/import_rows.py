"""Rows with `millstream import`: making a data directory from a file of Redis, compared with Redis'
own start from it. An import of an empty file, and a start from an empty directory, are subtracted.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench.figures import OURS, REDIS, BenchError, Lanes, Reading
from bench.harness import Harness, Side
from bench.persistence_rows import LOADED_STARTS, LOOK_S, check_loaded, restart, saving

MEGABYTE = 1 << 20
EMPTY_FILE = b"REDIS0009\xff" + bytes(8)


def imports(harness: Harness, entries: int) -> Lanes:
    """CPU time per entry of an import, or of Redis' start; entries per second."""
    pair = harness.loaded_pair(entries)
    file = saved_file(pair[REDIS])

    def once(side: Side) -> Reading:
        costs_ns, seconds = [], []
        for _ in range(LOADED_STARTS):
            took_s, cost_ns = import_file(file) if side is pair[OURS] else restart(side)
            seconds.append(took_s)
            costs_ns.append(cost_ns)
        check_loaded(side, entries)
        return Reading(statistics.median(costs_ns) / entries, entries / statistics.median(seconds))

    return harness.alternate_sides(pair, once)


def peak_memory(harness: Harness, entries: int) -> Lanes:
    """The most memory that an import has needed at a time, in MB."""
    file = saved_file(harness.loaded_pair(entries)[REDIS])

    def once() -> Reading:
        with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
            return Reading(_run(file, Path(folder) / "data").peak_bytes / MEGABYTE)

    return harness.repeat(once)


def saved_file(redis: Side) -> Path:
    """A file with the data of a Redis."""
    for _ in saving(redis):
        time.sleep(LOOK_S)
    return redis.server.data_directory / "dump.rdb"


def import_file(file: Path) -> tuple[float, int]:
    """Import a file; the seconds and the CPU time in nanoseconds, without those of an empty one."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        empty = Path(folder) / "empty.rdb"
        empty.write_bytes(EMPTY_FILE)
        nothing = _run(empty, Path(folder) / "nothing")
        whole = _run(file, Path(folder) / "data")
    return whole.seconds - nothing.seconds, whole.cpu_ns - nothing.cpu_ns


class Needed(NamedTuple):
    """The needs of an import, with its child process."""

    seconds: float
    cpu_ns: int
    peak_bytes: int


def _run(file: Path, directory: Path) -> Needed:
    words = [sys.executable, "-m", "millstream", "import", str(file), "--dir", str(directory)]
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchError(f"the import of {file} failed")
    cpu_ns = int((usage.ru_utime + usage.ru_stime) * 1e9)
    return Needed(time.monotonic() - began, cpu_ns, usage.ru_maxrss * 1024)
