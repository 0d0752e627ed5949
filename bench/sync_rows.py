"""The effect of a full sync on a primary, and the time until the replica has the primary's data.

In the rows about a full sync, another client appends all the time to a stream of 1,000 entries, so
that the data does not grow, and the replica runs on the core of the load at a low priority.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import time
from collections.abc import Iterator

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import OURS, BenchError, Lanes, Reading, alone
from bench.harness import Harness, Side
from bench.load import Load, command_line
from bench.persistence_rows import MEMORY_LOOK_S, journal_of, worst_ping_us
from bench.replica_rows import (
    PIPELINE,
    TIMEOUT_S,
    follow,
    replicas_of,
    rewrite_all,
    wait_for_entries,
)
from bench.server import Server
from bench.wire import Client

ENDLESS = 1_600_000_000
LOW_PRIORITY = 10
MEGABYTE = 1 << 20


@contextlib.contextmanager
def busy(side: Side) -> Iterator[None]:
    """The server has a load on one connection."""
    words = ("XADD", "load", "MAXLEN", "1000", "*", *SENSOR_ENTRY)
    line = command_line(side.server.port, Load(ENDLESS, PIPELINE, connections=1), words)
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        side.server.wait_until_asleep(side.server.cpu_ns())
        yield
        if process.poll() is not None:
            raise BenchError("redis-benchmark ended during a full sync")
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def syncing(side: Side) -> Iterator[Iterator[None]]:
    """A new replica; the iterator begins the full sync and ends with it."""
    core = min(os.sched_getaffinity(0))
    replica = side.server.another(core)
    os.setpriority(os.PRIO_PROCESS, replica.pid, LOW_PRIORITY)
    try:
        yield _until_synced(replica, side.server)
    finally:
        replica.stop()


def _until_synced(replica: Server, primary: Server) -> Iterator[None]:
    deadline = time.monotonic() + TIMEOUT_S
    with Client(replica.port) as client:
        client.call("REPLICAOF", "127.0.0.1", str(primary.port))
        while not _is_up(client):
            if time.monotonic() > deadline:
                raise BenchError(f"a full sync took longer than {TIMEOUT_S:.0f} s")
            yield


def _is_up(client: Client) -> bool:
    return "master_link_status:up" in str(client.call("INFO", "replication"))


def pings_during_full_sync(harness: Harness, entries: int) -> Lanes:
    """The worst PING of a client of the primary, in microseconds."""
    pair = harness.loaded_pair(entries, journal_of("everysec"))
    rewrite_all(pair)

    def once(side: Side) -> Reading:
        side.server.settle()
        with syncing(side) as looks, busy(side):
            return Reading(worst_ping_us(side, looks))

    return harness.alternate_sides(pair, once)


def growth_during_full_sync(harness: Harness, entries: int) -> Lanes:
    """The greatest growth of the primary's memory, with that of a child, in MB."""
    pair = harness.loaded_pair(entries, journal_of("everysec"))
    rewrite_all(pair)

    def once(side: Side) -> Reading:
        side.server.settle()
        with syncing(side) as looks, busy(side):
            before_bytes = most_bytes = side.server.family_bytes()
            for _ in looks:
                most_bytes = max(most_bytes, side.server.family_bytes())
                time.sleep(MEMORY_LOOK_S)
        return Reading(max((most_bytes - before_bytes) / MEGABYTE, 0.1))

    return harness.alternate_sides(pair, once)


def seen_on_replica(harness: Harness, full: int, quick: int) -> Lanes:
    """The median time from an append until a reader that waits on the replica has the entry, in
    microseconds."""
    pair = harness.pair("replicas", journal_of("everysec"))
    times = harness.plan.size(full, quick)

    def once(side: Side) -> Reading:
        side.empty()
        with replicas_of(side, 1) as (replica,):
            side.call("XADD", KEY, "*", *SENSOR_ENTRY)
            wait_for_entries(replica, 1)
            return Reading(statistics.median(_delays_us(side, replica, times)))

    return harness.alternate_sides(pair, once)


def _delays_us(side: Side, replica: Server, times: int) -> Iterator[float]:
    with Client(replica.port) as reader, Client(side.server.port) as writer:
        for _ in range(times):
            seen_ns = replica.cpu_ns()
            reader.send_call("XREAD", "BLOCK", "0", "STREAMS", KEY, "$")
            replica.wait_until_asleep(seen_ns)
            began = time.perf_counter()
            writer.send_call("XADD", KEY, "*", *SENSOR_ENTRY)
            reader.receive("XREAD")
            yield (time.perf_counter() - began) * 1e6
            writer.receive("XADD")


def catching_up(harness: Harness, full: int, quick: int) -> Lanes:
    """Microseconds per entry that a replica missed while it was down, from REPLICAOF until it has
    them all. Our replica needs a partial sync."""
    pair = harness.pair("replicas", journal_of("everysec"))
    request = Load(harness.plan.size(full, quick), PIPELINE)

    def once(side: Side) -> Reading:
        side.empty()
        with replicas_of(side, 1) as (replica,):
            side.call("XADD", KEY, "*", *SENSOR_ENTRY)
            wait_for_entries(replica, 1)
            replica.kill()
            side.drive(request, side.append(KEY, SENSOR_ENTRY))
            replica.start()
            began = time.perf_counter()
            follow(replica, side.server)
            wait_for_entries(replica, request.requests + 1)
            seconds = time.perf_counter() - began
            if side is pair[OURS] and "sync_partial_ok:0" in str(side.call("INFO", "stats")):
                raise BenchError("the replica did not get a partial sync")
        return Reading(seconds * 1e6 / request.requests, request.requests / seconds)

    return harness.alternate_sides(pair, once)


def waiting_for_replica(harness: Harness, full: int, quick: int) -> Lanes:
    """The time of an append whose reply waits for a replica's disk, as a multiple of one that waits
    for the primary's disk only. The replica is there in both cases."""
    side = harness.pair("durable", journal_of("always"))[OURS]
    request = Load(harness.plan.size(full, quick), PIPELINE)
    found = []

    def rate(replicas: str) -> float:
        side.call("CONFIG", "SET", "replicas-durable", replicas)
        measured = side.drive(request, side.append(KEY, SENSOR_ENTRY)).ops_per_s
        side.call("CONFIG", "SET", "replicas-durable", "0")
        assert measured
        return measured

    with replicas_of(side, 1):
        rate("1")
        for _ in range(harness.plan.rounds):
            found.append(Reading(rate("0") / rate("1")))
    side.empty()
    return alone(found)
