"""Rows of single connections: a blocked reader and the append that wakes it, accepting a
connection, and a start from an empty directory.

The cost of a wake-up is that of the read that blocks, the append and both replies, one after the
other: before each append, the server has executed the read and sleeps again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from bench.datasets import KEY, SEED, SENSOR_ENTRY
from bench.figures import Lanes, Reading
from bench.harness import Harness, Side
from bench.server import START_TIMEOUT_S
from bench.wire import Client

Words = tuple[str, ...]

GROUP = "g"
STREAMS = 1000


def append(key: str = KEY) -> Words:
    return ("XADD", key, "*", *SENSOR_ENTRY)


def woken(
    read: Words, full: int, quick: int, prepare: Sequence[Words] = (), keys: Sequence[str] = (KEY,)
) -> Callable[[Harness], Lanes]:
    """CPU time of a blocking read and of the append to one of `keys` that wakes it."""

    def once(side: Side, times: int) -> Reading:
        side.empty()
        for words in prepare:
            side.call(*words)
        source = random.Random(SEED)
        before_ns, began = side.server.cpu_ns(), time.perf_counter()
        with Client(side.server.port) as reader, Client(side.server.port) as writer:
            for _ in range(times):
                seen_ns = side.server.cpu_ns()
                reader.send_call(*read)
                side.server.wait_until_asleep(seen_ns)
                writer.call(*append(source.choice(keys)))
                reader.receive(read[0])
        seconds = time.perf_counter() - began
        side.server.settle()
        return Reading((side.server.cpu_ns() - before_ns) / times, times / seconds)

    def measure(harness: Harness) -> Lanes:
        times = harness.plan.size(full, quick)
        pair = harness.pair("commands")
        for side in pair.values():
            once(side, times // 10)
        return harness.alternate_sides(pair, lambda side: once(side, times))

    return measure


woken_reader = woken(("XREAD", "BLOCK", "0", "STREAMS", KEY, "$"), 20_000, 4_000, [append()])

woken_worker = woken(
    ("XREADGROUP", "GROUP", GROUP, "c", "BLOCK", "0", "STREAMS", KEY, ">"),
    20_000,
    4_000,
    [append(), ("XGROUP", "CREATE", KEY, GROUP, "$")],
)

STREAM_KEYS = [f"{KEY}:{number}" for number in range(STREAMS)]
woken_reader_of_many = woken(
    ("XREAD", "BLOCK", "0", "STREAMS", *STREAM_KEYS, *["$"] * STREAMS),
    1_000,
    200,
    [append(key) for key in STREAM_KEYS],
    STREAM_KEYS,
)


def accepted(harness: Harness) -> Lanes:
    """CPU time of a connection: accepting it, one PING, and its end."""

    def once(side: Side, times: int) -> Reading:
        before_ns, began = side.server.cpu_ns(), time.perf_counter()
        for _ in range(times):
            side.call("PING")
        seconds = time.perf_counter() - began
        side.server.settle()
        return Reading((side.server.cpu_ns() - before_ns) / times, times / seconds)

    times, pair = harness.plan.size(4_000, 1_000), harness.pair("commands")
    for side in pair.values():
        once(side, times // 10)
    return harness.alternate_sides(pair, lambda side: once(side, times))


def empty_start(harness: Harness) -> Lanes:
    """Time in microseconds from the launch with an empty directory until the first PONG."""

    def once(side: Side) -> Reading:
        side.server.kill()
        return Reading(side.server.start(START_TIMEOUT_S) * 1e6)

    pair = harness.fresh_pair()
    for side in pair.values():
        once(side)
    return harness.alternate_sides(pair, once)
