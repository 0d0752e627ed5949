"""The arithmetic of the benchmark: readings, medians, ratios and goals.

This module starts no process and reads no clock, so tests can check exact numbers. A ratio is
always "Redis / ours" of a cost (CPU time or bytes), so above 1 is better. It is computed per round,
from two readings made directly after each other, so a disturbance of a minute affects both.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class BenchError(Exception):
    """The benchmark cannot continue with this row (or at all); the message says why."""


@dataclass(frozen=True)
class Reading:
    """One measurement of one side. `cost` is in the row's unit; lower is better."""

    cost: float
    ops_per_s: float | None = None


REDIS = "redis"
OURS = "ours"
Lanes = Mapping[str, Sequence[Reading]]
"""Readings of each lane, one per round. Every row has the lanes REDIS and OURS; others are
extra."""


def alone(found: Sequence[Reading]) -> Lanes:
    """The lanes of a row that measures only our server."""
    return {REDIS: [Reading(1.0)] * len(found), OURS: found}


@dataclass(frozen=True)
class Spread:
    """A median with its extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


def costs(readings: Sequence[Reading]) -> Spread:
    """The spread of the costs over the rounds."""
    return Spread.of([reading.cost for reading in readings])


def rates(readings: Sequence[Reading]) -> Spread | None:
    """The spread of operations per second, or None for a row that has none (memory)."""
    values = [reading.ops_per_s for reading in readings if reading.ops_per_s is not None]
    return Spread.of(values) if values else None


def cost_ratio(lanes: Lanes, lane: str = OURS) -> Spread:
    """Redis' cost divided by the lane's, paired by round."""
    pairs = zip(lanes[REDIS], lanes[lane], strict=True)
    return Spread.of([redis.cost / ours.cost for redis, ours in pairs])


def rate_ratio(lanes: Lanes, lane: str = OURS) -> Spread | None:
    """The lane's operations per second divided by Redis', paired by round; None without rates."""
    pairs = zip(lanes[REDIS], lanes[lane], strict=True)
    values = [o.ops_per_s / r.ops_per_s for r, o in pairs if o.ops_per_s and r.ops_per_s]
    return Spread.of(values) if values else None


@dataclass(frozen=True)
class Goal:
    """The goal of a row. All given parts must be met; a goal without parts is no goal.

    `ratio`: minimum of Redis / ours of the cost. `rate_ratio`: minimum of ours / Redis of
    operations per second. `cost_max`: maximum cost of our side, for rows that compare our server
    with itself.
    """

    ratio: float | None = None
    rate_ratio: float | None = None
    cost_max: float | None = None

    def met(self, lanes: Lanes) -> bool | None:
        """True if the medians reach the goal; None if there is no goal."""
        checks: list[bool] = []
        if self.ratio is not None:
            checks.append(cost_ratio(lanes).median >= self.ratio)
        if self.rate_ratio is not None:
            rate = rate_ratio(lanes)
            checks.append(rate is not None and rate.median >= self.rate_ratio)
        if self.cost_max is not None:
            checks.append(costs(lanes[OURS]).median <= self.cost_max)
        return all(checks) if checks else None

    def text(self) -> str:
        """The goal as the table prints it, for example `>= 2.00`."""
        parts: list[str] = []
        if self.ratio is not None:
            parts.append(f">= {self.ratio:.2f}")
        if self.rate_ratio is not None:
            parts.append(f"ops >= {self.rate_ratio:.2f}")
        if self.cost_max is not None:
            parts.append(f"ours <= {self.cost_max:.2f}")
        return ", ".join(parts) or "-"


NO_GOAL = Goal()
SAME_LOW, SAME_HIGH = 0.9, 1.1
"""A self-check (Redis against Redis) should land between these."""


EARLIER_LOW = 0.98
"""The lowest ratio of a build to an earlier one that counts as no slower."""


def no_slower(lanes: Lanes) -> bool | None:
    """True if ours costs no more than an earlier build; None in rows that measure only ours, where
    the cost of the other side is 1."""
    if all(reading.cost == 1.0 for reading in lanes[REDIS]):
        return None
    return cost_ratio(lanes).median >= EARLIER_LOW


def same(lanes: Lanes) -> bool:
    """True if both sides cost about the same, which is the goal of a self-check."""
    return SAME_LOW <= cost_ratio(lanes).median <= SAME_HIGH
