"""What happens by itself: waits that time out, retries and expiries that fall due, groups that end.

Nothing is polled. Every moment stands in one heap; the executor keeps one timer, to the earliest.
A moment may be noted too early (a group that was used in the meantime lives on); the action then
finds nothing to do and notes the next one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Ticker:
    """Actions by the moment they are due, in unix milliseconds."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._number = 0

    def at(self, moment_ms: int, action: Action) -> None:
        """Do this at that moment; actions of one moment run in the order they were noted."""
        self._number += 1
        heapq.heappush(self._heap, (moment_ms, self._number, action))

    @property
    def next_ms(self) -> int | None:
        """The earliest moment noted."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int, limit: int) -> list[Action]:
        """Take up to `limit` actions whose moment has come."""
        found: list[Action] = []
        while self._heap and self._heap[0][0] <= now_ms and len(found) < limit:
            found.append(heapq.heappop(self._heap)[2])
        return found

    def __len__(self) -> int:
        return len(self._heap)
