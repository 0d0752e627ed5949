"""Appends on a primary with replicas, what the replicas need for them, and a full sync.

The journal is on, because a primary needs one. The replicas run on the core of the servers, and
their CPU time is counted separately. A reading ends when all replicas have everything.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import BenchError, Lanes, Reading
from bench.harness import Harness, Pair, Side
from bench.load import Load
from bench.persistence_rows import LOOK_S, journal_of, rewriting, spent_ns
from bench.server import Server
from bench.wire import Client

PIPELINE = 16
TIMEOUT_S = 300.0
YOUNG_S = 2  # in whole seconds, so at least one has passed
REDIS_SERVER = ("redis-server",)


@contextlib.contextmanager
def replicas_of(side: Side, count: int) -> Iterator[list[Server]]:
    """New servers that follow this one, in sync with it."""
    made: list[Server] = []
    try:
        for _ in range(count):
            made.append(side.server.another())
            follow(made[-1], side.server)
        yield made
    finally:
        for server in made:
            server.stop()


def follow(replica: Server, primary: Server) -> None:
    with Client(replica.port) as client:
        client.call("REPLICAOF", "127.0.0.1", str(primary.port))
        wait_for(lambda: "master_link_status:up" in str(client.call("INFO", "replication")))


def outgrow_start(server: Server) -> None:
    """Ours loads some modules a second after its start: they are no cost of the appends."""
    with Client(server.port) as client:
        wait_for(lambda: age_s(str(client.call("INFO", "server"))) >= YOUNG_S)
    server.settle()


def age_s(info: str) -> int:
    [seconds] = re.findall(r"uptime_in_seconds:(\d+)", info)
    return int(seconds)


def wait_for(is_over: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_over():
        if time.monotonic() > deadline:
            raise BenchError(f"a replica did not catch up within {TIMEOUT_S:.0f} s")
        time.sleep(LOOK_S)


def catch_up(side: Side, replicas: list[Server]) -> None:
    """Wait until the replicas have all entries, and everything is idle."""
    expected = side.call("XLEN", KEY)
    for server in replicas:
        wait_for_entries(server, expected)
        server.settle()
    side.server.settle()


def wait_for_entries(replica: Server, expected: object) -> None:
    with Client(replica.port) as client:
        wait_for(lambda: client.call("XLEN", KEY) == expected)


def appends(
    harness: Harness, count: int, full: int, quick: int, *, of_replica: bool = False
) -> Lanes:
    """CPU time of an append on a primary with `count` replicas, or of the first replica."""
    pair = harness.pair("replicas", journal_of("everysec"))
    request = Load(harness.plan.size(full, quick), PIPELINE)

    def once(side: Side, request: Load) -> Reading:
        side.empty()
        with replicas_of(side, count) as replicas:
            counted = replicas[0] if of_replica else side.server
            if of_replica:
                outgrow_start(counted)
            before_ns = counted.cpu_ns()
            rate = side.drive(request, side.append(KEY, SENSOR_ENTRY)).ops_per_s
            catch_up(side, replicas)
            return Reading((counted.cpu_ns() - before_ns) / request.requests, rate)

    return harness.in_turns(once, request, pair)


def appends_with_redis(harness: Harness, full: int, quick: int) -> Lanes:
    """CPU time of an append on a primary that a redis-server follows, as a multiple of one on a
    primary without a replica. Each is measured on a new server."""
    pair = harness.pair("replicas", journal_of("everysec"))
    request = Load(harness.plan.size(full, quick), PIPELINE)

    def cost(side: Side, *, is_followed: bool) -> float:
        primary = side.server.another()
        replica = Server(REDIS_SERVER, journal_of("everysec"), primary.core)
        try:
            new = Side(primary, side.dialect)
            if is_followed:
                follow(replica, primary)
                primary.settle()
            before_ns = primary.cpu_ns()
            new.drive(request, new.append(KEY, SENSOR_ENTRY))
            if is_followed:
                catch_up(new, [replica])
            return (primary.cpu_ns() - before_ns) / request.requests
        finally:
            replica.stop()
            primary.stop()

    def once(side: Side) -> Reading:
        alone_ns = cost(side, is_followed=False)
        return Reading(cost(side, is_followed=True) / alone_ns)

    return harness.alternate_sides(pair, once)


def rewrite_all(pair: Pair) -> None:
    """The data of both servers is in their newest bases."""
    for side in pair.values():
        for _ in rewriting(side):
            time.sleep(LOOK_S)


def full_syncs(harness: Harness, entries: int) -> Lanes:
    """CPU time of the primary for a full sync, with that of a child, per entry."""
    pair = harness.loaded_pair(entries, journal_of("everysec"))
    rewrite_all(pair)

    def once(side: Side) -> Reading:
        side.server.settle()
        before_ns = spent_ns(side.server)
        began = time.perf_counter()
        with replicas_of(side, 1) as replicas:
            seconds = time.perf_counter() - began
            catch_up(side, replicas)
            return Reading((spent_ns(side.server) - before_ns) / entries, entries / seconds)

    return harness.alternate_sides(pair, once)
