"""Scheduled entries against plain appends. Redis has no such command, so these rows compare our
server with itself, as `writer_rows` does."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import OURS, BenchError, Lanes, Reading
from bench.harness import Harness, Side
from bench.load import Load
from bench.persistence_rows import worst_ping_us
from bench.writer_rows import ours, times_as_long

PIPELINE = 16
# Long enough to schedule a million entries; the second one is for a busy machine.
LATER_MS = (60_000, 300_000)
# From the last TSCHEDULE to the firing at least; and the first PING before the firing.
SPARE_MS = 500
FIRST_PING_MS = 100
POLL_S = 0.02


def schedule_and_fire(harness: Harness, full: int, quick: int) -> Lanes:
    """TSCHEDULE and the firing of its entry against two appends, -P 16."""
    side = ours(harness)
    entries = harness.plan.size(full, quick)

    def appends() -> float:
        side.empty()
        return side.drive(Load(2 * entries, PIPELINE), side.append(KEY, SENSOR_ENTRY)).cost * 2

    def scheduled() -> float:
        side.empty()
        before_ns = side.server.cpu_ns()
        side.drive(Load(entries, PIPELINE), ("TSCHEDULE", KEY, "IN", "300", "", *SENSOR_ENTRY))
        while due_count(side):
            time.sleep(POLL_S)
        side.server.settle()
        check_fired(side, entries)
        return (side.server.cpu_ns() - before_ns) / entries

    return times_as_long(harness, appends, scheduled)


def firing_stall(harness: Harness, full: int, quick: int) -> Lanes:
    """The worst PING while entries that are due together are appended."""
    side = ours(harness)
    entries = harness.plan.size(full, quick)

    def once() -> Reading:
        due_ms = schedule_later(side, entries)
        while time.time() * 1000 < due_ms - FIRST_PING_MS:
            time.sleep(POLL_S)
        worst_us = worst_ping_us(side, firing(side, entries))
        check_fired(side, entries)
        return Reading(worst_us)

    return harness.repeat(once)


def schedule_later(side: Side, entries: int) -> int:
    """Schedule entries that are due together, and return when. If this took so long that they are
    due, or soon will be, they are scheduled again for a later time."""
    for later_ms in LATER_MS:
        side.empty()
        due_ms = int(time.time() * 1000) + later_ms
        request = ("TSCHEDULE", KEY, "AT", str(due_ms), "", *SENSOR_ENTRY)
        side.drive(Load(entries, PIPELINE), request)
        if time.time() * 1000 < due_ms - SPARE_MS:
            return due_ms
    raise BenchError(f"scheduling took longer than {LATER_MS[-1] // 1000} s: entries are due")


def firing(side: Side, entries: int) -> Iterator[None]:
    """Yield until the entries are in the stream."""
    while side.call("XLEN", KEY) != entries:
        yield


def schedule_memory(harness: Harness, full: int, quick: int) -> Lanes:
    """The memory of a scheduled entry besides its fields, in bytes."""
    entries = harness.plan.size(full, quick)
    fields = sum(map(len, SENSOR_ENTRY))

    def once() -> Reading:
        side = harness.fresh_pair()[OURS]
        request = ("TSCHEDULE", KEY, "IN", "86400000", "", *SENSOR_ENTRY)
        side.call(*request)
        before = side.server.rss_bytes()
        side.drive(Load(entries, PIPELINE), request)
        return Reading((side.server.rss_bytes() - before) / entries - fields)

    return harness.repeat(once)


def due_count(side: Side) -> int:
    """The number of scheduled entries."""
    info = side.call("TINFO", KEY)
    return int(dict(zip(info[::2], info[1::2], strict=True))["scheduled"])


def check_fired(side: Side, entries: int) -> None:
    if side.call("XLEN", KEY) != entries:
        raise BenchError(f"{entries} entries were scheduled, {side.call('XLEN', KEY)} were fired")
