"""Timers: waits that time out, retries and expiries that become due, groups that end.

Nothing is polled. Every moment stands in one heap; the executor keeps one timer, to the earliest.
A moment may be noted too early (a group that was used in the meantime lives on); the action then
finds nothing to do and notes the next one. What is called off stays in the heap as an empty alarm
until half of it is empty: a wait with a timeout of a day, served at once, must not be kept a day.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]

_SWEEP_MIN = 64


class Alarm:
    """One moment noted; its action is None once it is called off or done."""

    __slots__ = ("action", "moment_ms", "number")

    def __init__(self, moment_ms: int, number: int, action: Action) -> None:
        self.moment_ms = moment_ms
        self.number = number
        self.action: Action | None = action

    def __lt__(self, other: Alarm) -> bool:
        return (self.moment_ms, self.number) < (other.moment_ms, other.number)


class Ticker:
    """Actions by the moment they are due, in milliseconds of the steady clock."""

    def __init__(self) -> None:
        self._heap: list[Alarm] = []
        self._number = 0
        self._empty = 0

    def at(self, moment_ms: int, action: Action) -> Alarm:
        """Do this at that moment; actions of one moment run in the order they were noted."""
        self._number += 1
        alarm = Alarm(moment_ms, self._number, action)
        heapq.heappush(self._heap, alarm)
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Call an alarm off; nothing happens when it was done already."""
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
        """The earliest moment noted."""
        return self._heap[0].moment_ms if self._heap else None

    def due(self, now_ms: int, limit: int) -> list[Action]:
        """Take up to `limit` actions whose moment has come."""
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
        """Alarms that are not called off."""
        return len(self._heap) - self._empty
