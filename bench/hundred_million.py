"""A hundred million entries in one stream: loaded, sought, trimmed, saved and started again.

`python -m bench.hundred_million` tests what the rows of the benchmark cannot test in minutes:
whether our server keeps its performance with a hundred times the data. Every step prints its cost
and its checks, and the figures go to results/hundred-million.json. Exit code 1 when a step had a
wrong result or the memory exceeded the limit.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import report
from bench.__main__ import RESULTS, command
from bench.datasets import KEY, RANDOM_MS, entry_id, milliseconds, ranges_data
from bench.figures import OURS, BenchError
from bench.harness import JOURNAL_OFF, Side, ids_of, version_of
from bench.load import Load
from bench.persistence_rows import (
    START_TIMEOUT_S,
    calm_ping_us,
    check_loaded,
    saving,
    worst_ping_us,
)
from bench.server import Server, pick_cores
from bench.wire import Client, load

ENTRIES = 100_000_000
SMALL = 1_000_000
MEMORY_MAX_GIB = 8.0
SMALL_KEY = "small"
SEEKS = {1: 100_000, 16: 500_000, 100: 1_000_000}
"""The number of requests to send, by the pipeline's depth."""
SEEK_ROUNDS = 5
KEPT_AFTER_TRIM = 1_000_000
TOLD_EVERY = 10_000_000


class Walk:
    """The steps, in order, and their results."""

    def __init__(self, server: Server, entries: int) -> None:
        self.side = Side(server, "T")
        self.entries = entries
        self.figures: dict[str, Any] = {}

    def note(self, name: str, value: float, unit: str) -> None:
        self.figures[name] = {"value": value, "unit": unit}
        print(f"  {name:<44}{value:>14,.2f} {unit}", flush=True)

    def timed(self, name: str, step: Callable[[], object]) -> None:
        began = time.perf_counter()
        step()
        self.note(name, time.perf_counter() - began, "s")

    def run(self) -> None:
        """Run all steps."""
        self.fill(SMALL)
        self.side.call("RENAME", KEY, SMALL_KEY)
        before_bytes = self.side.server.rss_bytes()
        self.timed("load", lambda: self.fill(self.entries))
        self.note_memory("memory", before_bytes)
        for pipeline in SEEKS:
            self.compare_seeks(pipeline)
        self.note("worst PING, calm", calm_ping_us(self.side), "us")
        self.timed("save", self.save)
        self.note("worst PING, saving", worst_ping_us(self.side, saving(self.side)), "us")
        self.note_memory("memory after saving", before_bytes)
        self.note_file()
        self.side.server.kill()
        self.note("start from the snapshot", self.side.server.start(START_TIMEOUT_S), "s")
        check_loaded(self.side, self.entries)
        self.note_memory("memory after the start", before_bytes)
        self.timed("trim to 1 M", self.trim)

    def fill(self, entries: int) -> None:
        with Client(self.side.server.port) as client:
            done = 0
            for chunk in ranges_data(entries):
                load([client], [chunk])
                if (done + chunk.entries) // TOLD_EVERY > done // TOLD_EVERY:
                    print(f"  {(done + chunk.entries) // 1_000_000} M", file=sys.stderr)
                done += chunk.entries
        self.side.server.settle()
        check_loaded(self.side, entries)

    def compare_seeks(self, pipeline: int) -> None:
        """Measure both streams in turns, because the machine's other load varies."""
        for key, entries in ((SMALL_KEY, SMALL), (KEY, self.entries)):
            self.seek(key, entries, pipeline)
        rounds = [
            (self.seek(SMALL_KEY, SMALL, pipeline), self.seek(KEY, self.entries, pipeline))
            for _ in range(SEEK_ROUNDS)
        ]
        small, large = zip(*rounds, strict=True)
        self.note(f"seek in 1 M entries, -P {pipeline}", statistics.median(small), "ns")
        self.note(f"seek in all, -P {pipeline}", statistics.median(large), "ns")
        times = statistics.median(far / near for near, far in rounds)
        self.note(f"seek, all against 1 M, -P {pipeline}", times, "times")

    def seek(self, key: str, entries: int, pipeline: int) -> float:
        """Server CPU time to read one entry at a random millisecond, in nanoseconds."""
        request = Load(SEEKS[pipeline], pipeline, milliseconds(entries))
        return self.side.drive(request, self.side.range(key, RANDOM_MS, 1)).cost

    def save(self) -> None:
        for _ in saving(self.side):
            time.sleep(0.05)

    def trim(self) -> None:
        removed = self.side.call("XTRIM", KEY, "MAXLEN", str(KEPT_AFTER_TRIM))
        first = ids_of(self.side.call(*self.side.range(KEY, "-", 1)))
        if removed != self.entries - KEPT_AFTER_TRIM or first != [entry_id(removed)]:
            raise BenchError(f"the trim removed {removed} and left {first} first")

    def note_file(self) -> None:
        """Record the size of the file, which contains both streams."""
        size_bytes = self.side.server.data_bytes()
        self.note("file", size_bytes / (self.entries + SMALL), "bytes an entry")

    def note_memory(self, name: str, before_bytes: int) -> None:
        held_bytes = self.side.server.rss_bytes()
        self.note(name, held_bytes / 2**30, "GiB")
        self.note(f"{name}, an entry", (held_bytes - before_bytes) / self.entries, "bytes")
        if held_bytes > MEMORY_MAX_GIB * 2**30:
            raise BenchError(f"it takes more than {MEMORY_MAX_GIB:.0f} GiB")


def main() -> int:
    """Run the steps and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.hundred_million", description=__doc__)
    parser.add_argument("--entries", type=int, default=ENTRIES, metavar="N")
    parser.add_argument("--server", default=".venv/bin/millstream-server", metavar="CMD")
    parser.add_argument("--json", type=Path, default=RESULTS / "hundred-million.json")
    options = parser.parse_args()
    server_core, load_core = pick_cores()
    os.sched_setaffinity(0, {load_core})
    try:
        server = Server(command(options.server), JOURNAL_OFF, server_core)
    except BenchError as error:
        parser.error(str(error))
    try:
        walk = Walk(server, options.entries)
        print(f"{options.entries:,} entries in one stream")
        walk.run()
        version = version_of(walk.side, "millstream_version")
        machine = report.machine_facts({OURS: version})
        made = {"entries": options.entries, "machine": machine, "figures": walk.figures}
        report.write_json(made, options.json)
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
