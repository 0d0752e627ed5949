"""A cluster on one machine: the CPU time of its gateway, with plain clients on three nodes."""

from __future__ import annotations

import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.datasets import SENSOR_ENTRY
from bench.figures import BenchError, Lanes, Reading, alone
from bench.harness import JOURNAL_OFF, Harness
from bench.load import Load
from bench.load import run as run_load
from bench.server import Server, cpu_ns_of
from millstream.server.cluster.unix_sockets import ask_supervisor

NODES = 3
PIPELINE = 16
KEYS = 1000
FIRST_PORT, LAST_PORT = 15_000, 19_000  # below the ports that the system gives to clients


def free_range() -> int:
    """The first of NODES + 1 neighbouring ports that are free at this moment."""
    for first in range(FIRST_PORT, LAST_PORT, NODES + 1):
        try:
            with ExitStack() as probes:
                for port in range(first, first + NODES + 1):
                    probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise BenchError(f"no {NODES + 1} neighbouring ports are free")


class Cluster(Server):
    """`millstream serve --shards 3`. Its CPU time is that of the gateway."""

    def _launch(self) -> subprocess.Popen[bytes]:
        self.port = free_range()
        return super()._launch()

    def state(self) -> dict[str, Any]:
        found = ask_supervisor(self.data_directory)
        if found is None:
            raise BenchError("the supervisor does not answer")
        return found

    @property
    def pid(self) -> int:
        return int(self.state()["gateways"][0]["pid"])

    def _is_ready(self) -> bool:
        found = self.state()
        processes = [*found["gateways"], *found["nodes"].values()]
        return all(one["health"] == "online" for one in processes)

    def nodes_cpu_ns(self) -> int:
        return sum(cpu_ns_of(one["pid"]) for one in self.state()["nodes"].values())


def appends(harness: Harness, full: int, quick: int, *, is_share: bool) -> Lanes:
    """The gateway's CPU time for an append, in nanoseconds; or as a share of that of the nodes."""
    program = Path(harness.ours_command[0]).with_name("millstream")
    command = [str(program), "serve", "--shards", str(NODES)]
    count = quick if harness.plan.quick else full
    cluster = Cluster(command, JOURNAL_OFF, harness.server_core)
    load = Load(count, PIPELINE, random_below=KEYS)
    words = ("XADD", "key:__rand_int__", "*", *SENSOR_ENTRY)
    try:
        readings = []
        for _ in range(harness.plan.rounds):
            cluster.settle()
            before_ns, nodes_before_ns = cluster.cpu_ns(), cluster.nodes_cpu_ns()
            ops_per_s = run_load(cluster.port, load, words)
            cluster.settle()
            spent_ns = cluster.cpu_ns() - before_ns
            by_nodes_ns = cluster.nodes_cpu_ns() - nodes_before_ns
            cost = spent_ns / by_nodes_ns if is_share else spent_ns / count
            readings.append(Reading(cost, ops_per_s))
    finally:
        cluster.stop()
    return alone(readings)
