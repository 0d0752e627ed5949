"""The cost of a user's rules: our server against itself, with the same appends.

The rules of `default` change between the readings, so both readings come from one process.
"""

from __future__ import annotations

from bench.datasets import KEY, SENSOR_ENTRY
from bench.figures import OURS, BenchError, Lanes
from bench.harness import Harness, Side
from bench.load import Load
from bench.writer_rows import times_as_long

PIPELINE = 100
# The last of ten patterns matches; one of the others needs the glob matcher.
PATTERNS = (*(f"~other{number}:*" for number in range(8)), "~o?h*r", f"~{KEY}*")


def ten_patterns(harness: Harness, full: int, quick: int) -> Lanes:
    """Appends at -P 100 by a user of ten key patterns, as a multiple of the cost of the same
    appends by a user who may do everything."""
    side = harness.pair("users")[OURS]
    request = Load(harness.plan.size(full, quick), PIPELINE)
    return times_as_long(
        harness,
        lambda: appended(side, request, ("~*",)),
        lambda: appended(side, request, PATTERNS),
    )


def appended(side: Side, request: Load, patterns: tuple[str, ...]) -> float:
    """The server's CPU time per append, in nanoseconds."""
    side.call("ACL", "SETUSER", "default", "resetkeys", *patterns)
    side.empty()
    reading = side.drive(request, side.append(KEY, SENSOR_ENTRY))
    if side.call("XLEN", KEY) != request.requests:
        raise BenchError("appends are missing")
    return reading.cost
