"""Snapshots, their effect on other clients, and starts from the disk.

A forked child is included: its CPU time is read from the parent after the child has ended, and its
memory is added to the parent's, with shared memory counted once. A start is measured from the first
instruction to the first PONG. The time of a start of the same server with an empty directory, in
the same round, is subtracted, so that loading is compared and not interpreters. Both servers are
killed before, so that neither saves at its end.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

from bench.datasets import KEY, SENSOR_ENTRY, entry_id
from bench.figures import OURS, BenchError, Lanes, Reading
from bench.harness import Harness, Pair, Side, ids_of
from bench.load import Load
from bench.pauses import at_once, watched_pauses
from bench.server import Server
from bench.wire import Client

LOOK_S = 0.005
MEMORY_LOOK_S = 0.01
PINGS_A_LOOK = 20
SLOW_S = 0.0005
CALM_S = 2.0
LEAST_PERCENT = 0.1
LOADED_STARTS = 7
SAVE_TIMEOUT_S = 600.0
START_TIMEOUT_S = 600.0

JOURNAL = (
    *("--appendonly", "yes", "--save", "", "--auto-aof-rewrite-percentage", "0"),
    *("--appendfsync", "no"),
)
"""The journal is on, and is not rewritten during a measurement."""


def journal_of(mode: str) -> tuple[str, ...]:
    """The directives of a journal with this appendfsync."""
    return (*JOURNAL[:-1], mode)


def deliveries(harness: Harness, group_fsync: str, full: int, quick: int) -> Lanes:
    """Group reads of one entry, one at a time, with appendfsync always. `group_fsync` is our
    appendfsync-groups."""

    def prepare(pair: Pair) -> None:
        pair[OURS].call("CONFIG", "SET", "appendfsync-groups", group_fsync)

    pair = harness.pair(f"deliveries {group_fsync}", journal_of("always"), prepare)
    count = harness.plan.size(full, quick)

    def once(side: Side) -> Reading:
        side.empty()
        side.drive(Load(count, 100, connections=1), side.append(KEY, SENSOR_ENTRY))
        side.call("XGROUP", "CREATE", KEY, "g", "0")
        words = ("XREADGROUP", "GROUP", "g", "c", "COUNT", "1", "STREAMS", KEY, ">")
        return side.drive(Load(count, 1, connections=1), words)

    return harness.alternate_sides(pair, once)


# ---------------------------------------------------------------- saving


def snapshots(harness: Harness, entries: int) -> Lanes:
    """CPU time of BGSAVE per entry, including a child's; entries per second."""
    return background_writes(harness, harness.loaded_pair(entries), entries, saving)


def background_writes(
    harness: Harness, pair: Pair, items: int, begin: Callable[[Side], Iterator[None]]
) -> Lanes:
    """CPU time per item of a `saving` or `rewriting`, including a child's; items per second."""

    def once(side: Side) -> Reading:
        side.server.settle()
        before_ns = spent_ns(side.server)
        began = time.perf_counter()
        for _ in begin(side):
            time.sleep(LOOK_S)
        seconds = time.perf_counter() - began
        side.server.settle()
        return Reading((spent_ns(side.server) - before_ns) / items, items / seconds)

    return harness.alternate_sides(pair, once)


def spent_ns(server: Server) -> int:
    """CPU time of the server and of the children that have ended."""
    return server.cpu_ns() + server.children_cpu_ns()


def stalls(harness: Harness, entries: int) -> Lanes:
    """The worst PING of one client during a snapshot, in microseconds."""
    return harness.alternate_sides(
        harness.loaded_pair(entries), lambda side: Reading(worst_ping_us(side, saving(side)))
    )


def calm(harness: Harness, entries: int) -> Lanes:
    """The worst PING of one client without a snapshot, over the same time as a snapshot takes."""

    def once(side: Side) -> Reading:
        began = time.perf_counter()
        for _ in saving(side):
            time.sleep(LOOK_S)
        end = time.perf_counter() + time.perf_counter() - began
        side.server.settle()
        return Reading(worst_ping_us(side, looks_until(end)))

    return harness.alternate_sides(harness.loaded_pair(entries), once)


def calm_ping_us(side: Side) -> float:
    """The worst PING of one client alone, during CALM_S."""
    return worst_ping_us(side, looks_until(time.perf_counter() + CALM_S))


def looks_until(end: float) -> Iterator[None]:
    while time.perf_counter() < end:
        yield


def worst_ping_us(side: Side, looks: Iterator[None]) -> float:
    """Ping the server until `looks` ends; the longest response time, in microseconds, without the
    pauses of the whole machine. The client has priority on its core over the load."""
    slow = [(0.0, 0.0)]
    cores = {side.server.core, *os.sched_getaffinity(0)}
    with watched_pauses(cores) as pauses, at_once(), Client(side.server.port) as client:
        client.call("PING")
        for _ in looks:
            for _ in range(PINGS_A_LOOK):
                began = time.perf_counter()
                client.call("PING")
                ended = time.perf_counter()
                if ended - began > min(SLOW_S, slow[-1][1] - slow[-1][0]):
                    slow.append((began, ended))
    return max(ended - began - pauses.within(began, ended) for began, ended in slow) * 1e6


def growth(harness: Harness, entries: int) -> Lanes:
    """The maximum growth of memory during a snapshot in percent, including a child's memory."""

    def once(side: Side) -> Reading:
        side.server.settle()
        before_bytes = most_bytes = side.server.family_bytes()
        for _ in saving(side):
            most_bytes = max(most_bytes, side.server.family_bytes())
            time.sleep(MEMORY_LOOK_S)
        return Reading(max(100 * (most_bytes - before_bytes) / before_bytes, LEAST_PERCENT))

    return harness.alternate_sides(harness.loaded_pair(entries), once)


def saving(side: Side) -> Iterator[None]:
    """Begin a snapshot, and yield repeatedly until it is written."""
    return _writing(side, "BGSAVE", "rdb_bgsave_in_progress", "rdb_last_bgsave_status")


def rewriting(side: Side) -> Iterator[None]:
    """Begin a rewrite of the journal, and yield repeatedly until it is written."""
    return _writing(side, "BGREWRITEAOF", "aof_rewrite_in_progress", "aof_last_bgrewrite_status")


def _writing(side: Side, command: str, runs: str, status: str) -> Iterator[None]:
    deadline = time.monotonic() + SAVE_TIMEOUT_S
    with Client(side.server.port) as client:
        client.call(command)
        while f"{runs}:1" in (info := str(client.call("INFO", "persistence"))):
            if time.monotonic() > deadline:
                raise BenchError(f"{command} was not done within {SAVE_TIMEOUT_S:.0f} s")
            yield
    if f"{status}:ok" not in info:
        raise BenchError(f"{command} failed: {side.server.log_tail()}")


# ---------------------------------------------------------------- starting


def loads(harness: Harness, entries: int) -> Lanes:
    """CPU time per entry of a start from a snapshot; entries per second."""
    pair = harness.loaded_pair(entries)
    for side in pair.values():
        for _ in saving(side):
            time.sleep(LOOK_S)
    return starts(harness, pair, entries, LOADED_STARTS, lambda side: check_loaded(side, entries))


def replays(harness: Harness, entries: int) -> Lanes:
    """CPU time per entry of a start from a journal that was never rewritten; entries per second."""
    pair = harness.loaded_pair(entries, JOURNAL)
    return starts(harness, pair, entries, 1, lambda side: check_loaded(side, entries))


def restart(side: Side) -> tuple[float, int]:
    """Kill the server and start it again from its directory; the seconds, and its CPU time in
    nanoseconds, without those of a start from an empty directory just before."""
    side.server.kill()
    empty = side.server.another()
    empty_ns, empty_s = empty.cpu_ns(), empty.ready_s
    empty.stop()
    took_s = side.server.start(START_TIMEOUT_S) - empty_s
    return took_s, side.server.cpu_ns() - empty_ns


def starts(
    harness: Harness, pair: Pair, items: int, times: int, check: Callable[[Side], None]
) -> Lanes:
    """Start both servers again from their directories, `times` per round, each time after a start
    from an empty directory, whose time is subtracted. Returns medians of the differences, divided
    by the number of items. `check` raises BenchError when something is missing."""

    def once(side: Side) -> Reading:
        costs_ns, seconds = [], []
        for _ in range(times):
            took_s, cost_ns = restart(side)
            seconds.append(took_s)
            costs_ns.append(cost_ns)
        took_s, cost_ns = statistics.median(seconds), statistics.median(costs_ns)
        if took_s <= 0 or cost_ns <= 0:
            raise BenchError(f"{items} items load too quickly to tell from an empty start")
        check(side)
        return Reading(cost_ns / items, items / took_s)

    return harness.alternate_sides(pair, once)


def check_loaded(side: Side, entries: int) -> None:
    """Check the number of entries after a start, and the first and the last entry."""
    ends = [ids_of(side.call(*side.range(KEY, entry_id(at), 1))) for at in (0, entries - 1)]
    if side.call("XLEN", KEY) != entries or ends != [[entry_id(0)], [entry_id(entries - 1)]]:
        raise BenchError(f"a start from {entries} entries left {side.call('XLEN', KEY)}, {ends}")
