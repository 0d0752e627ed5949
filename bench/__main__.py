"""The command line of the benchmark: `python -m bench [--quick] [--chart] ...`.

Exit code 0 when every row could be measured, whether or not it meets its goal; 1 when something
broke.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from bench import load, report
from bench.figures import OURS, REDIS, BenchError
from bench.harness import FULL_ROUNDS, QUICK_ROUNDS, Harness, Plan, Row
from bench.nats_logs import find_nats
from bench.nats_rows import NATS_ROWS, NatsHarness
from bench.report import Compared
from bench.rows import ROWS
from bench.server import pick_cores

TOP = Path(__file__).resolve().parent.parent
RESULTS = TOP / "bench" / "results"
RESULT_FILES = {
    Compared.REDIS: "latest.json",
    Compared.SELF: "self-check.json",
    Compared.EARLIER: "earlier.json",
    Compared.NATS: "nats.json",
}
MINIMUM_LARGE = 2_000_000
BUSY_LOAD = 0.8


def main(words: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    options = parse(words)
    if options.list:
        print("\n".join(listed(choose(options))))
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        return redraw(options) if options.redraw else measure(options)
    except KeyboardInterrupt:
        print("\nstopped; the servers are gone", file=sys.stderr)
        return 130
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1


def listed(rows: Sequence[Row]) -> list[str]:
    """Name, section and title of each row, in columns."""
    names = max(len(row.name) for row in rows)
    sections = max(len(row.section) for row in rows)
    return [f"{row.name:<{names}}  {row.section:<{sections}}  {row.title}" for row in rows]


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="about 15 minutes: small loads, no large stream")
    add("--rounds", type=int, help=f"rounds a row ({FULL_ROUNDS}, quick {QUICK_ROUNDS})")
    add(
        "--only",
        metavar="TEXT",
        help="only the row TEXT, else all rows with TEXT in their name (several: a,b)",
    )
    add("--list", action="store_true", help="list the rows and stop")
    add("--large", type=int, default=20_000_000, metavar="N", help="entries of the large stream")
    add("--server", default=".venv/bin/millstream-server", metavar="CMD", help="our server")
    add("--redis", default="redis-server", metavar="CMD", help="the Redis server")
    peers = parser.add_mutually_exclusive_group()
    peers.add_argument(
        "--self-check",
        action="store_true",
        help="compare Redis with itself: ratios of about 1",
    )
    peers.add_argument(
        "--earlier",
        metavar="CMD",
        help="compare with an earlier build of millstream: no ratio below 0.98",
    )
    peers.add_argument(
        "--peer",
        choices=("redis", "nats"),
        default="redis",
        help="nats: the rows that compare with NATS JetStream instead",
    )
    add("--nats", default="", metavar="CMD", help="the NATS server (found in .venv or on the PATH)")
    add("--json", type=Path, metavar="PATH", help="where the JSON goes (bench/results/latest.json)")
    add("--chart", action="store_true", help="also draw the chart")
    add("--chart-dir", type=Path, default=TOP / "docs", metavar="DIR", help="where to (docs)")
    add(
        "--redraw",
        type=Path,
        metavar="JSON",
        help="draw the chart of an earlier run; measure nothing",
    )
    options = parser.parse_args(words)
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.large < MINIMUM_LARGE or options.large % 10:
        parser.error(f"--large must be a multiple of 10, at least {MINIMUM_LARGE:,}")
    if options.earlier and options.chart:
        parser.error("the chart compares millstream with Redis: --earlier has none")
    if options.peer == "nats" and options.chart:
        parser.error("the chart compares millstream with Redis: --peer nats has none")
    if options.self_check and options.chart and options.chart_dir == TOP / "docs":
        parser.error("a self-check's chart needs a --chart-dir: the one in docs shows millstream")
    return options


def measure(options: argparse.Namespace) -> int:
    """Measure the chosen rows, print and keep the report."""
    rows = choose(options)
    compared = compared_in(options)
    if compared is Compared.NATS:
        peer_command = [find_nats(options.nats)]
    else:
        peer_command = command(options.earlier or options.redis)
    ours_command = peer_command if compared is Compared.SELF else command(options.server)
    if compared is not Compared.NATS and shutil.which("redis-benchmark") is None:
        raise BenchError("redis-benchmark is missing; on Debian: apt-get install redis-tools")
    server_core, load_core = pick_cores()
    warn(server_core, load_core)
    os.sched_setaffinity(0, {load_core})
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else FULL_ROUNDS)
    plan = Plan(options.quick, rounds, options.large)
    dialects = {
        REDIS: "T" if compared is Compared.EARLIER else "X",
        OURS: "X" if compared is Compared.SELF else "T",
    }
    load_at_start = round(os.getloadavg()[0], 2)
    started = time.monotonic()
    kind = NatsHarness if compared is Compared.NATS else Harness
    with kind(peer_command, ours_command, dialects, server_core, plan) as harness:
        outcomes = measure_rows(harness, rows, compared)
    seconds = time.monotonic() - started
    method = {
        "quick": options.quick,
        "rounds": rounds,
        "connections": load.CONNECTIONS,
        "server_core": server_core,
        "load_core": load_core,
        "large_entries": options.large,
    }
    machine = {**report.machine_facts(harness.versions), "load_average": load_at_start}
    made = report.as_json(outcomes, machine, method, compared, seconds)
    print(f"\n{report.summary(outcomes, compared, seconds)}\n{report.machine_line(made)}")
    finish(options, made)
    return 1 if any(outcome.failure for outcome in outcomes) else 0


def compared_in(options: argparse.Namespace) -> Compared:
    """The server that these options compare ours with."""
    if options.self_check:
        return Compared.SELF
    if options.peer == "nats":
        return Compared.NATS
    return Compared.EARLIER if options.earlier else Compared.REDIS


def measure_rows(harness: Harness, rows: Sequence[Row], compared: Compared) -> list[report.Outcome]:
    """Measure one row after the other; a row that breaks does not stop the others."""
    print(report.header(compared))
    outcomes: list[report.Outcome] = []
    for row in rows:
        if not outcomes or outcomes[-1].row.section != row.section:
            print(row.section)
        try:
            outcomes.append(report.Outcome(row, harness.measured(row)))
        except (BenchError, OSError) as error:
            outcomes.append(report.Outcome(row, failure=str(error)))
        print("  " + report.table_line(outcomes[-1], compared), flush=True)
    return outcomes


def choose(options: argparse.Namespace) -> list[Row]:
    """The rows this run measures."""
    wanted = options.only.split(",") if options.only else [""]
    offered = NATS_ROWS if options.peer == "nats" else ROWS
    names = {row.name for row in offered}
    rows = [
        row
        for row in offered
        # A whole name means that row alone: append-p1 is also a part of append-p16.
        if any(text == row.name or (text not in names and text in row.name) for text in wanted)
    ]
    rows = [row for row in rows if not (options.quick and row.full_only)]
    if not rows:
        raise BenchError("no row has that name; --list shows them")
    plan = Plan(options.quick, 1, options.large)
    sizes = {"large": millions(plan.large_entries), "kept": millions(plan.kept_entries)}
    return [
        dataclasses.replace(
            row, section=row.section.format(**sizes), title=row.title.format(**sizes)
        )
        for row in rows
    ]


def millions(entries: int) -> str:
    return f"{entries / 1_000_000:g} M"


def command(text: str) -> list[str]:
    """A server's command line as words; a relative path counts from the top of the repository."""
    words = shlex.split(text)
    if not words:
        raise BenchError("an empty server command")
    program = str(TOP / words[0]) if "/" in words[0] else words[0]
    if shutil.which(program) is None:
        raise BenchError(f"there is no program {words[0]}; run `make build`, or name another one")
    return [program, *words[1:]]


def warn(server_core: int, load_core: int) -> None:
    """Say what makes the figures doubtful."""
    if server_core == load_core:
        print(
            "note: only one core; servers and load share it, the figures are rough", file=sys.stderr
        )
    if os.getloadavg()[0] > BUSY_LOAD:
        print(f"note: the machine is busy (load {os.getloadavg()[0]:.1f})", file=sys.stderr)


def finish(options: argparse.Namespace, made: dict[str, Any]) -> None:
    """Keep the JSON, and the chart if it was asked for."""
    path = options.json or RESULTS / RESULT_FILES[compared_in(options)]
    report.write_json(made, path)
    print(f"written: {os.path.relpath(path)}")
    if options.chart:
        draw(made, options.chart_dir)


def redraw(options: argparse.Namespace) -> int:
    """Draw the chart of a kept report."""
    draw(json.loads(options.redraw.read_text()), options.chart_dir)
    return 0


def draw(made: dict[str, Any], directory: Path) -> None:
    from bench import chart  # matplotlib is only needed here

    for path in chart.write(made, directory):
        print(f"written: {os.path.relpath(path)}")


def leave(number: int, _frame: FrameType | None) -> None:
    """Turn a signal into an orderly exit, so that the servers are stopped."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
