"""A circuit breaker: after some failures in a row, a worker waits before it takes another job.

During an outage of something that the handler needs, every job fails. Without a pause, the outage
would use up the deliveries of a whole stream.
"""

from __future__ import annotations

WAIT_FIRST_S = 1.0
WAIT_MOST_S = 60.0
DOUBLINGS_MAX = 16


class Breaker:
    """Counts failures in a row. After a wait, one job at a time is tried; its failure begins a wait
    of twice the time, and a success ends all of this."""

    def __init__(self, failures: int) -> None:
        """With 0 it never waits."""
        self._most = failures
        self._in_a_row = 0
        self._waits = 0
        """The number of waits since the last success."""
        self.until_s = float("-inf")
        """The end of the wait."""

    def failed(self, now_s: float) -> bool:
        """A job has failed. True if a wait begins: jobs that fail during a wait began before it."""
        self._in_a_row += 1
        if not self._most or self._in_a_row < self._most or now_s < self.until_s:
            return False
        self.until_s = now_s + min(WAIT_FIRST_S * 2**self._waits, WAIT_MOST_S)
        self._waits = min(self._waits + 1, DOUBLINGS_MAX)
        return True

    def succeeded(self) -> None:
        self._in_a_row = self._waits = 0
        self.until_s = float("-inf")

    def slots(self, now_s: float, slots: int) -> int:
        """The number of jobs that may run, of `slots`."""
        if now_s < self.until_s:
            return 0
        return min(slots, 1) if self._waits else slots
