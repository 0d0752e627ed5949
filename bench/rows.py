"""What is measured: one small function a row.

To add a row, write a function that returns lanes (readings of REDIS and OURS, one a round) and put
`@row(...)` on it. `Stand` has the kinds of measurement most rows are made of; for anything else
take `stand.pair(name, directives)`, write a function that makes one `Reading` of a side, and hand
both sides to `stand.alternate`. Titles may say `{large}` for the size of the large stream. The
order here is the order of the report; rows that share a pair of servers should stand together.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.datasets import IOT, LOG, PAYLOAD, SENSOR_ENTRY, TEN_FIELD_ENTRY
from bench.figures import NO_GOAL, OURS, REDIS, Goal, Lanes, Reading
from bench.stand import Row, Stand

MILLION = 1_000_000
APPEND = "Append"
RANGE = "Range, 1 M entries"
RANGE_LARGE = "Range, {large} entries"
MEMORY = "Memory"
SEEK = "Seek"

ROWS: list[Row] = []


def row(
    name: str,
    section: str,
    title: str,
    goal: Goal = NO_GOAL,
    unit: str = "ns/op",
    full_only: bool = False,
) -> Callable[[Callable[[Stand], Lanes]], Row]:
    """Turn a measuring function into a row of the report."""

    def register(measure: Callable[[Stand], Lanes]) -> Row:
        made = Row(name, section, title, measure, goal, unit, full_only)
        ROWS.append(made)
        return made

    return register


# Append


@row("append-p1", APPEND, "append, -P 1", Goal(ratio=1.0, rate_ratio=1.0))
def append_p1(stand: Stand) -> Lanes:
    return stand.appends(SENSOR_ENTRY, pipeline=1, full=400_000, quick=40_000)


@row("append-p16", APPEND, "append, -P 16", Goal(ratio=2.0))
def append_p16(stand: Stand) -> Lanes:
    return stand.appends(SENSOR_ENTRY, pipeline=16, full=3_200_000, quick=320_000)


@row("append-p100", APPEND, "append, -P 100", Goal(ratio=5.0))
def append_p100(stand: Stand) -> Lanes:
    return stand.appends(SENSOR_ENTRY, pipeline=100, full=5_000_000, quick=500_000)


@row("append-keys-p16", APPEND, "append to 10,000 keys, -P 16", Goal(ratio=1.6))
def append_keys(stand: Stand) -> Lanes:
    return stand.appends(SENSOR_ENTRY, pipeline=16, full=3_200_000, quick=320_000, keys=10_000)


@row("append-10-fields-p16", APPEND, "append 10 fields, -P 16", Goal(ratio=1.6))
def append_ten_fields(stand: Stand) -> Lanes:
    return stand.appends(TEN_FIELD_ENTRY, pipeline=16, full=1_600_000, quick=160_000)


@row("append-10-fields-p100", APPEND, "append 10 fields, -P 100")
def append_ten_fields_p100(stand: Stand) -> Lanes:
    return stand.appends(TEN_FIELD_ENTRY, pipeline=100, full=1_600_000, quick=160_000)


# Memory


def memory_goal(share_of_redis: float) -> Goal:
    """At most that share of Redis' bytes."""
    return Goal(ratio=1 / share_of_redis)


@row("memory-iot", MEMORY, "memory, IoT entry", memory_goal(0.60), unit="bytes/entry")
def memory_iot(stand: Stand) -> Lanes:
    return stand.memory(IOT)


@row("memory-log", MEMORY, "memory, 10-field log entry", memory_goal(0.86), unit="bytes/entry")
def memory_log(stand: Stand) -> Lanes:
    return stand.memory(LOG)


@row("memory-payload", MEMORY, "memory, 200-byte value", memory_goal(0.92), unit="bytes/entry")
def memory_payload(stand: Stand) -> Lanes:
    return stand.memory(PAYLOAD)


# Range and seek: on the small stream, then on the large one

RANGE_GOALS = {10: 1.3, 100: 4.0, 1000: 4.5}
RANGE_REQUESTS = {10: (200_000, 20_000), 100: (40_000, 4_000), 1000: (5_000, 1_000)}
POSITIONS = ("head", "middle", "tail")


def add_ranges(section: str, prefix: str, large: bool) -> None:
    """The nine range rows of one stream."""
    for count, ratio in RANGE_GOALS.items():
        for position in POSITIONS:
            title = f"range, COUNT {count}, {position}"
            name = f"{prefix}-{count}-{position}"
            measure = range_measure(position, count, large)
            row(name, section, title, Goal(ratio=ratio), full_only=large)(measure)


def range_measure(position: str, count: int, large: bool) -> Callable[[Stand], Lanes]:
    """A measuring function for one place and one count."""
    full, quick = RANGE_REQUESTS[count]

    def measure(stand: Stand) -> Lanes:
        entries = stand.plan.large_entries if large else MILLION
        return stand.ranges(entries, position, count, full, quick)

    return measure


add_ranges(RANGE, "range", large=False)


@row("seek", SEEK, "seek in 1 M entries, -P 100")
def seek_small(stand: Stand) -> Lanes:
    return stand.seeks(MILLION, pipeline=100, full=2_000_000, quick=200_000)


@row("seek-large", SEEK, "seek in {large} entries, -P 100", full_only=True)
def seek_large(stand: Stand) -> Lanes:
    return stand.seeks(stand.plan.large_entries, pipeline=100, full=2_000_000, quick=200_000)


@row(
    "seek-growth",
    SEEK,
    "seek, {large} against 1 M entries",
    Goal(cost_max=1.5),
    unit="times",
    full_only=True,
)
def seek_growth(stand: Stand) -> Lanes:
    """How many times as long a seek takes in the large stream, each side against itself."""
    small, large = stand.measured(seek_small), stand.measured(seek_large)
    return {
        lane: [
            Reading(far.cost / near.cost)
            for near, far in zip(small[lane], large[lane], strict=True)
        ]
        for lane in (REDIS, OURS)
    }


add_ranges(RANGE_LARGE, "range-large", large=True)
