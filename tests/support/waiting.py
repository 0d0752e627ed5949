"""Waiting for a condition instead of for a time.

Every wait in the tests uses `wait_until`: it polls, and after the deadline it fails with the last
result, so a hang is reported as a failed test and not as a test run that never ends. The longer it
has waited, the less often it polls: what it waits for needs the processor, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")

DEADLINE_S = 10.0
POLL_S = 0.01
SLOW_POLL_S = 0.05
POLL_PART = 0.05  # of the time waited so far


def wait_until(
    look: Callable[[], Seen],
    good: Callable[[Seen], bool] = bool,
    what: str = "the condition",
    deadline_s: float = DEADLINE_S,
) -> Seen:
    """Call `look` until `good(result)`; return that result. AssertionError after `deadline_s`."""
    start_s = time.monotonic()
    while True:
        seen = look()
        if good(seen):
            return seen
        waited_s = time.monotonic() - start_s
        if waited_s > deadline_s:
            raise AssertionError(f"{what} did not come within {deadline_s} s; last seen: {seen!r}")
        time.sleep(min(max(POLL_S, waited_s * POLL_PART), SLOW_POLL_S))
