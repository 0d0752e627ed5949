"""Change data capture compared with PostgreSQL's own subscription: `python -m bench.cdc [--quick]`.

The figures are rows or changes per second of CPU time of all processes: both clusters, millstream,
`run`, and `apply` with its JVM and its Python workers. Both lanes of a row make the same changes in
fresh databases of the same clusters. `apply` is running before a measurement begins, as in
operation, but its JVM has not done anything yet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.__main__ import RESULTS
from bench.cdc_lanes import Cdc, Lane, Subscription
from bench.cdc_processes import Clusters, clusters
from bench.figures import BenchError

COPY_ROWS, QUICK_COPY_ROWS = 1_000_000, 100_000
TRANSACTIONS, QUICK_TRANSACTIONS = 20_000, 2_000
CHANGES_PER_TRANSACTION = 4
LAG_S, QUICK_LAG_S = 30, 10
LAG_RATE = 1000
"""Transactions per second."""


@dataclass(frozen=True)
class Figure:
    """A measurement: what was done, in how many seconds, with how much CPU time."""

    done: int
    seconds: float
    cpu_s: Mapping[str, float]

    @property
    def per_cpu_s(self) -> float:
        return self.done / sum(self.cpu_s.values())

    def __str__(self) -> str:
        """The CPU time of each part."""
        return ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.cpu_s.items())

    @property
    def per_s(self) -> float:
        return self.done / self.seconds


def measured(lane: Lane, done: int, work: Callable[[], object]) -> Figure:
    """The cost of work that ends when the destination has everything."""
    before, began = lane.cpu_s(), time.monotonic()
    work()
    seconds, after = time.monotonic() - began, lane.cpu_s()
    return Figure(done, seconds, {name: after[name] - before[name] for name in after})


# ------------------------------------------------------------ rows


def first_copy(lane: Lane, rows: int) -> Figure:
    """A table of 6 columns is copied."""
    columns = "id int PRIMARY KEY, a int, b bigint, c text, d timestamptz, e numeric"
    lane.execute("both", f"CREATE TABLE copied ({columns})")
    lane.execute(
        "source",
        "INSERT INTO copied SELECT n, n % 1000, n * 7919::bigint, md5(n::text),"
        " '2026-01-01'::timestamptz + n * interval '1 s', n / 8.0"
        f" FROM generate_series(1, {rows}) n",
    )
    lane.execute("source", "VACUUM ANALYZE copied; CHECKPOINT")
    lane.prepare(["copied"])

    def work() -> None:
        lane.start()
        lane.wait("SELECT count(*) FROM copied", rows)
        lane.wait_steady()

    return measured(lane, rows, work)


def backlog(lane: Lane, transactions: int) -> Figure:
    """pgbench has run while neither lane was working."""
    ready(lane)
    lane.pause()
    lane.pgbench("-n", "-c", "4", "-t", str(transactions // 4))

    def work() -> None:
        lane.start()
        lane.wait("SELECT count(*) FROM pgbench_history", transactions)
        lane.wait_steady()

    figure = measured(lane, transactions * CHANGES_PER_TRANSACTION, work)
    lane.check_same(["pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history"])
    return figure


def ready(lane: Lane) -> None:
    """pgbench's tables are at both ends and followed."""
    lane.pgbench("-i", "-q", "-s", "10")
    lane.pgbench("-i", "-q", "-I", "dtp", at="destination")
    lane.execute("source", "ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
    tables = ["pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history"]
    lane.prepare(tables)
    lane.start()
    lane.wait("SELECT count(*) FROM pgbench_accounts", 1_000_000)
    lane.wait_steady()


def lag(lane: Lane, seconds: int) -> list[float]:
    """The ages of rows at the destination when they are seen there first, while pgbench runs."""
    lane.execute("both", "CREATE TABLE probe (id int PRIMARY KEY, sent double precision)")
    lane.probed = True
    ready(lane)
    with lane.pgbench_running("-n", "-c", "4", "-R", str(LAG_RATE), "-T", str(seconds)):
        ages = lane.probe(seconds)
    return ages


# ------------------------------------------------------------ the program


@contextmanager
def fresh(kind: Callable[[Clusters, Path], Lane], made: Clusters) -> Iterator[Lane]:
    """A lane with empty databases."""
    with tempfile.TemporaryDirectory(prefix="millstream-bench-cdc-") as directory:
        lane = kind(made, Path(directory))
        try:
            yield lane
        finally:
            lane.close()


def pair(
    made: Clusters,
    row: Callable[[Lane, int], Figure],
    size: int,
    unit: str,
    goal: tuple[float, float],
) -> dict[str, object]:
    figures = {}
    for kind in (Cdc, Subscription):
        with fresh(kind, made) as lane:
            figures[kind.name] = row(lane, size)
        shown = figures[kind.name]
        print(
            f"  {kind.name:<14}{shown.per_cpu_s:>10,.0f} {unit} per CPU-second"
            f"{shown.per_s:>10,.0f} {unit}/s, {shown.seconds:.1f} s",
            f"\n  {'':<14} CPU seconds: {shown}",
            flush=True,
        )
    ours, theirs = figures[Cdc.name], figures[Subscription.name]
    share = ours.per_s / theirs.per_s
    verdict = "met" if ours.per_cpu_s >= goal[0] and share >= goal[1] else "not met"
    print(
        f"  {share:.2f} of the subscription's {unit}/s; goals {goal[0]:,.0f}, {goal[1]}: {verdict}"
    )
    return {name: {"per_cpu_s": one.per_cpu_s, "per_s": one.per_s} for name, one in figures.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cdc", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rows", default="copy,backlog,lag", help="which rows to measure")
    options = parser.parse_args()
    names = options.rows.split(",")
    results: dict[str, object] = {}
    try:
        with clusters() as made:
            if "copy" in names:
                print("first copy", flush=True)
                size = QUICK_COPY_ROWS if options.quick else COPY_ROWS
                results["copy"] = pair(made, first_copy, size, "rows", (50_000, 0.4))
            if "backlog" in names:
                print("backlog", flush=True)
                size = QUICK_TRANSACTIONS if options.quick else TRANSACTIONS
                results["backlog"] = pair(made, backlog, size, "changes", (10_000, 0.35))
            if "lag" in names:
                print(f"lag at {LAG_RATE * CHANGES_PER_TRANSACTION} changes/s", flush=True)
                with fresh(Cdc, made) as lane:
                    ages = sorted(lag(lane, QUICK_LAG_S if options.quick else LAG_S))
                middle, high = statistics.median(ages), ages[int(len(ages) * 0.99)]
                results["lag"] = {"p50_s": middle, "p99_s": high}
                verdict = "met" if middle <= 1.5 and high <= 3 else "not met"
                print(f"  p50 {middle:.2f} s, p99 {high:.2f} s; goals 1.5, 3: {verdict}")
    except BenchError as error:
        print(f"bench.cdc: {error}", file=sys.stderr)
        return 1
    if not options.quick and len(names) == 3:
        (RESULTS / "cdc.json").write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
