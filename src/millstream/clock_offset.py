"""Converts times between the wall clock and the steady clock.

The offset is the context's `wall_ahead_ms`, which is constant until a clock jumps. So a time that
is converted there and back stays the same.
"""

from __future__ import annotations


def shifted_ms(moment_ms: int, by_ms: int) -> int:
    """A time of one clock, converted to a clock that is ahead by `by_ms`. 0 and -1 mean no time."""
    return moment_ms if moment_ms <= 0 else max(moment_ms + by_ms, 1)
