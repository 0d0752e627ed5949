"""Timers: waits that time out, retries and expiries that become due, groups that end.

There is no polling. All moments are in one heap, and the executor keeps one timer for the earliest.
A moment may be too early (a group was used meanwhile); the action then has nothing to do and
schedules the next moment. A cancelled alarm stays in the heap without its action until half of the
heap consists of such alarms; otherwise a wait with a timeout of a day that is served at once would
use memory for a day.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]

_SWEEP_MIN = 64


class Alarm:
    """One scheduled moment; its action is None after it was cancelled or done."""

    __slots__ = ("action", "moment_ms", "number")

    def __init__(self, moment_ms: int, number: int, action: Action) -> None:
        self.moment_ms = moment_ms
        self.number = number
        self.action: Action | None = action

    def __lt__(self, other: Alarm) -> bool:
        return (self.moment_ms, self.number) < (other.moment_ms, other.number)


class Timers:
    """Actions by the time at which they are due, in milliseconds of the steady clock."""

    def __init__(self) -> None:
        self._heap: list[Alarm] = []
        self._number = 0
        self._empty = 0

    def at(self, moment_ms: int, action: Action) -> Alarm:
        """Schedule an action; actions with the same time run in the order in which they were
        scheduled."""
        self._number += 1
        alarm = Alarm(moment_ms, self._number, action)
        heapq.heappush(self._heap, alarm)
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Cancel an alarm; no effect if its action was already done."""
        if alarm.action is None:
            return
        alarm.action = None
        self._empty += 1
        if self._empty > _SWEEP_MIN and self._empty * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept.action is not None]
            heapq.heapify(self._heap)
            self._empty = 0

    @property
    def next_ms(self) -> int | None:
        """The earliest scheduled time."""
        return self._heap[0].moment_ms if self._heap else None

    def due(self, now_ms: int, limit: int) -> list[Action]:
        """Remove and return up to `limit` actions that are due."""
        found: list[Action] = []
        while self._heap and self._heap[0].moment_ms <= now_ms and len(found) < limit:
            alarm = heapq.heappop(self._heap)
            if alarm.action is None:
                self._empty -= 1
            else:
                found.append(alarm.action)
                alarm.action = None
        return found

    def __len__(self) -> int:
        """The number of alarms that are not cancelled."""
        return len(self._heap) - self._empty
