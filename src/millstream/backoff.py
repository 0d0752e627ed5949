"""Pauses between attempts, each twice as long as the one before."""

from __future__ import annotations

FIRST_S = 0.2
MAX_S = 5.0


class Backoff:
    """Seconds to wait after each attempt that failed.

    >>> backoff = Backoff(0.2, 0.5)
    >>> [backoff.next_s() for _ in range(4)]
    [0.2, 0.4, 0.5, 0.5]
    >>> backoff.reset()
    >>> backoff.next_s()
    0.2
    """

    def __init__(self, first_s: float = FIRST_S, max_s: float = MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._next_s = first_s

    def next_s(self) -> float:
        """The pause before the next attempt."""
        pause_s, self._next_s = self._next_s, min(2 * self._next_s, self._max_s)
        return pause_s

    def reset(self) -> None:
        """An attempt has succeeded."""
        self._next_s = self._first_s
