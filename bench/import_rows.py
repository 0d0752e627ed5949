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

from bench.figures import OURS, REDIS, BenchError, Lanes, Reading
from bench.harness import Harness, Side
from bench.persistence_rows import LOADED_STARTS, LOOK_S, check_loaded, restart, saving

EMPTY_FILE = b"REDIS0009\xff" + bytes(8)


def imports(harness: Harness, entries: int) -> Lanes:
    """CPU time per entry of an import, or of Redis' start; entries per second."""
    pair = harness.loaded_pair(entries)
    for _ in saving(pair[REDIS]):
        time.sleep(LOOK_S)
    file = pair[REDIS].server.data_directory / "dump.rdb"

    def once(side: Side) -> Reading:
        costs_ns, seconds = [], []
        for _ in range(LOADED_STARTS):
            took_s, cost_ns = import_file(file) if side is pair[OURS] else restart(side)
            seconds.append(took_s)
            costs_ns.append(cost_ns)
        check_loaded(side, entries)
        return Reading(statistics.median(costs_ns) / entries, entries / statistics.median(seconds))

    return harness.alternate_sides(pair, once)


def import_file(file: Path) -> tuple[float, int]:
    """Import a file; the seconds and the CPU time in nanoseconds, without those of an empty one."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-") as folder:
        empty = Path(folder) / "empty.rdb"
        empty.write_bytes(EMPTY_FILE)
        nothing_s, nothing_ns = _run(empty, Path(folder) / "nothing")
        took_s, cost_ns = _run(file, Path(folder) / "data")
    return took_s - nothing_s, cost_ns - nothing_ns


def _run(file: Path, directory: Path) -> tuple[float, int]:
    words = [sys.executable, "-m", "millstream", "import", str(file), "--dir", str(directory)]
    began = time.monotonic()
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise BenchError(f"the import of {file} failed")
    return time.monotonic() - began, int((usage.ru_utime + usage.ru_stime) * 1e9)
