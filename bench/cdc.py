"""Change data capture compared with PostgreSQL's own subscription: `python -m bench.cdc [--quick]`.

The figures are rows or changes per second of CPU time of all processes: both clusters, millstream,
`run`, and `apply` with its JVM and its Python workers. Both lanes of a row make the same changes in
databases of the same clusters, in turns; a figure is the median of the rounds. `apply` is running
before a measurement begins, as in operation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

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
PGBENCH = ["pgbench_accounts", "pgbench_tellers", "pgbench_branches", "pgbench_history"]
KINDS: tuple[type[Lane], ...] = (Cdc, Subscription)


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


Figures: TypeAlias = dict[str, list[Figure]]
"""By lane: a figure for each round."""


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
        lane.wait_steady()

    figure = measured(lane, rows, work)
    lane.check_same(["copied"])
    return figure


def copies(made: Clusters, rows: int, rounds: int) -> Figures:
    """First copies, each into a new database."""
    figures: Figures = {kind.name: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            with fresh(kind, made) as lane:
                figures[kind.name].append(first_copy(lane, rows))
    return figures


def backlog(lane: Lane, number: int, transactions: int) -> Figure:
    """pgbench has run while the lane was not working. What is waited for is the last transaction:
    to count rows again and again would be a part of the cost."""
    lane.start()
    lane.wait_confirmed()  # also what the other lane's turn has left in the WAL
    lane.pause()
    lane.pgbench("-n", "-c", "4", "-t", str(transactions // 4))
    lane.execute("source", f"INSERT INTO ended VALUES ({number})")

    def work() -> None:
        lane.start()
        lane.wait("SELECT count(*) FROM ended", number)
        lane.wait_steady()

    figure = measured(lane, transactions * CHANGES_PER_TRANSACTION, work)
    lane.pause()
    lane.check_same(PGBENCH)
    return figure


def backlogs(made: Clusters, transactions: int, rounds: int) -> Figures:
    """Backlogs of the same two databases."""
    figures: Figures = {kind.name: [] for kind in KINDS}
    with ExitStack() as stack:
        lanes = [stack.enter_context(fresh(kind, made)) for kind in KINDS]
        for lane in lanes:
            lane.execute("both", "CREATE TABLE ended (id int PRIMARY KEY)")
            ready(lane, "ended")
            lane.pause()
        for number in range(1, rounds + 1):
            for lane in lanes:
                figures[lane.name].append(backlog(lane, number, transactions))
    return figures


def ready(lane: Lane, *tables: str) -> None:
    """pgbench's tables and some others are at both ends and followed."""
    lane.pgbench("-i", "-q", "-s", "10")
    lane.pgbench("-i", "-q", "-I", "dtp", at="destination")
    lane.execute("source", "ALTER TABLE pgbench_history REPLICA IDENTITY FULL")
    lane.prepare([*PGBENCH, *tables])
    lane.start()
    lane.wait("SELECT count(*) FROM pgbench_accounts", 1_000_000)
    lane.wait_steady()


def lag(lane: Lane, seconds: int) -> list[float]:
    """The ages of rows at the destination when they are seen there first, while pgbench runs."""
    lane.execute("both", "CREATE TABLE probe (id int PRIMARY KEY, sent double precision)")
    ready(lane, "probe")
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


@dataclass(frozen=True)
class Goal:
    """`per_cpu_s` of our own, and a share of the subscription's figure of the name `of`."""

    per_cpu_s: float
    share: float
    of: str


GOALS = {"copy": Goal(50_000, 0.4, "per_s"), "backlog": Goal(10_000, 0.35, "per_cpu_s")}


def compared(figures: Figures, unit: str, goal: Goal) -> dict[str, object]:
    """Print and return the medians."""
    medians = {}
    for name, listed in figures.items():
        per_cpu_s = statistics.median(one.per_cpu_s for one in listed)
        per_s = statistics.median(one.per_s for one in listed)
        medians[name] = {"per_cpu_s": per_cpu_s, "per_s": per_s}
        print(f"  {name:<14}{per_cpu_s:>10,.0f} {unit} per CPU-second{per_s:>10,.0f} {unit}/s")
        for one in listed:
            print(f"  {'':<14} {one.seconds:.1f} s; CPU seconds: {one}")
    ours, theirs = medians[Cdc.name], medians[Subscription.name]
    shares = {name: ours[name] / theirs[name] for name in ours}
    is_met = ours["per_cpu_s"] >= goal.per_cpu_s and shares[goal.of] >= goal.share
    where = f"{unit} per CPU-second" if goal.of == "per_cpu_s" else f"{unit}/s"
    print(
        f"  {shares['per_cpu_s']:.2f} of the subscription's {unit} per CPU-second,"
        f" {shares['per_s']:.2f} of its {unit}/s; goals {goal.per_cpu_s:,.0f}"
        f" and {goal.share} of its {where}: {'met' if is_met else 'not met'}",
        flush=True,
    )
    return {**medians, "shares": shares}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.cdc", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each lane")
    parser.add_argument("--rows", default="copy,backlog,lag", help="which rows to measure")
    options = parser.parse_args()
    names, rounds = options.rows.split(","), max(1, options.rounds)
    results: dict[str, object] = {}
    try:
        with clusters() as made:
            if "copy" in names:
                print("first copy", flush=True)
                size = QUICK_COPY_ROWS if options.quick else COPY_ROWS
                results["copy"] = compared(copies(made, size, rounds), "rows", GOALS["copy"])
            if "backlog" in names:
                print("backlog", flush=True)
                size = QUICK_TRANSACTIONS if options.quick else TRANSACTIONS
                results["backlog"] = compared(
                    backlogs(made, size, rounds), "changes", GOALS["backlog"]
                )
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
