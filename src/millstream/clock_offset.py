"""Converts times between the wall clock and the steady clock."""

from __future__ import annotations

# A smaller difference is not a step of the wall clock: the clocks are read one after the other.
STEP_MIN_MS = 100


def shifted_ms(moment_ms: int, by_ms: int) -> int:
    """A time of one clock, converted to a clock that is ahead by `by_ms`. 0 and -1 mean no time."""
    return moment_ms if moment_ms <= 0 else max(moment_ms + by_ms, 1)


def ahead_ms(wall_ms: int, steady_ms: int) -> int:
    """How far the wall clock is ahead of the steady clock; 0 for less than STEP_MIN_MS, because
    otherwise the same time would vary by a millisecond from one call to the next."""
    ahead = wall_ms - steady_ms
    return ahead if abs(ahead) >= STEP_MIN_MS else 0
