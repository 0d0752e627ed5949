"""Ranges with WHERE: our server against itself, with the range of all entries.

All readings come from one process, whose stream has IoT entries: each number of a sensor is in one
of a hundred.
"""

from __future__ import annotations

from bench.datasets import KEY
from bench.figures import OURS, BenchError, Lanes
from bench.harness import Harness
from bench.load import Load
from bench.writer_rows import times_as_long

ALL = ("XRANGE", KEY, "-", "+")
ONE_SENSOR = ("1", "sensor", "EQ", "07")
ONE_DEGREE = ("1", "temperature", "BETWEEN", "20", "20.8")
NO_SUCH_FIELD = ("1", "humidity", "PREFIX", "")


def filtered(
    harness: Harness, conditions: tuple[str, ...], entries: int, full: int, quick: int
) -> Lanes:
    """The range of what matches, as a multiple of the cost of the range of all."""
    side = harness.loaded_pair(entries)[OURS]
    request = Load(harness.plan.size(full, quick), 1, connections=1)
    where = (*ALL, "WHERE", *conditions)
    found = side.call(*where)
    share = len(found) / entries if isinstance(found, list) else 1
    if not (0.008 < share < 0.012 or (share == 0 and conditions == NO_SUCH_FIELD)):
        raise BenchError(f"WHERE has found {share:.1%} of all entries")
    return times_as_long(
        harness, lambda: side.drive(request, ALL).cost, lambda: side.drive(request, where).cost
    )
