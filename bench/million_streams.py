"""A million small streams on both servers: saved, started again, and pinged meanwhile.

`python -m bench.million_streams` fills our server and redis-server with 1 M streams of 20 entries
and a group each, which takes a few minutes. The rows of the benchmark do the same with a tenth of
the streams. The figures go to results/million-streams.json. Exit code 1 when a server has not kept
what it was given.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from bench import report
from bench.__main__ import RESULTS, command
from bench.figures import OURS, REDIS, BenchError
from bench.harness import JOURNAL_OFF, Pair, Side, fill, version_of
from bench.persistence_rows import calm_ping_us, restart, saving, worst_ping_us
from bench.server import Server, pick_cores
from bench.small_rows import ENTRIES, appends_of, check_streams, make_group, send_to_each
from bench.wire import Client

STREAMS = 1_000_000

Figures = dict[str, float]


def measure(side: Side, streams: int) -> Figures:
    """The figures of one filled server, in the order of its life. The load is a start without the
    time of one from an empty directory."""
    figures = {
        "memory, GiB": side.server.rss_bytes() / 2**30,
        "worst PING without a snapshot, ms": calm_ping_us(side) / 1000,
        "worst PING during BGSAVE, ms": worst_ping_us(side, saving(side)) / 1000,
        "SAVE, s": save_s(side),
        "file, MiB": side.server.data_bytes() / 2**20,
    }
    figures["load of the snapshot, s"], _ = restart(side)
    check_streams(side, streams, ENTRIES)
    side.server.settle()
    figures["memory after the start, GiB"] = side.server.rss_bytes() / 2**30
    return figures


def save_s(side: Side) -> float:
    began = time.perf_counter()
    with Client(side.server.port) as client:
        client.call("SAVE")
    return time.perf_counter() - began


def show(figures: dict[str, Figures]) -> None:
    print(f"  {'':<36}{'Redis':>12}{'millstream':>12}{'Redis / ours':>14}")
    for name, ours in figures[OURS].items():
        redis = figures[REDIS][name]
        print(f"  {name:<36}{redis:>12,.2f}{ours:>12,.2f}{redis / ours:>14.2f}")


def run(pair: Pair, streams: int) -> dict[str, Figures]:
    """Fill both servers, then measure one after the other."""
    fill(pair, appends_of(streams, ENTRIES))
    for side in pair.values():
        send_to_each(side, streams, 1, make_group)
        check_streams(side, streams, ENTRIES)
    return {name: measure(side, streams) for name, side in pair.items()}


def main() -> int:
    """Measure both servers and write the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench.million_streams", description=__doc__)
    parser.add_argument("--streams", type=int, default=STREAMS, metavar="N")
    parser.add_argument("--server", default=".venv/bin/millstream-server", metavar="CMD")
    parser.add_argument("--redis", default="redis-server", metavar="CMD")
    parser.add_argument("--json", type=Path, default=RESULTS / "million-streams.json")
    options = parser.parse_args()
    server_core, load_core = pick_cores()
    os.sched_setaffinity(0, {load_core})
    servers: list[Server] = []
    try:
        for words in (options.redis, options.server):
            servers.append(Server(command(words), JOURNAL_OFF, server_core))
        pair = {REDIS: Side(servers[0], "X"), OURS: Side(servers[1], "X")}
        versions = {
            REDIS: version_of(pair[REDIS], "redis_version"),
            OURS: version_of(pair[OURS], "millstream_version"),
        }
        print(f"{options.streams:,} streams of {ENTRIES} entries and a group each")
        figures = run(pair, options.streams)
        show(figures)
        machine = report.machine_facts(versions)
        report.write_json(
            {"streams": options.streams, "machine": machine, "figures": figures}, options.json
        )
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    finally:
        for server in servers:
            server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
