"""Waiting for a condition instead of for a time.

Every wait in the tests uses `wait_until`: it polls, and after the deadline it fails with the last
result, so a hang is reported as a failed test and not as a test run that never ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

DEADLINE_S = 10.0
POLL_S = 0.01


def wait_until(
    look: Callable[[], Seen],
    good: Callable[[Seen], bool] = bool,
    what: str = "the condition",
    deadline_s: float = DEADLINE_S,
) -> Seen:
    """Call `look` until `good(result)`; return that result. AssertionError after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while True:
        seen = look()
        if good(seen):
            return seen
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come within {deadline_s} s; last seen: {seen!r}")
        time.sleep(POLL_S)
