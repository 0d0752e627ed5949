"""Sends and acknowledgements of a link: at once while there are few, under load once a millisecond.

Each send wakes a process and is acknowledged, so under load frames of about a millisecond go
together. A client that waits for each reply is no load.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

PERIOD_S = 0.001
FEW = 8  # requests in a period that are no load


class Loop(Protocol):
    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_later(self, delay_s: float, callback: Callable[..., object], /) -> object: ...


class Pace:
    """Calls `act` after `soon`: at once for the first FEW requests in a period, at the end of the
    period for all others. A period with more requests is followed by one in which all wait."""

    def __init__(self, loop: Loop, act: Callable[[], object]) -> None:
        self._loop = loop
        self._act = act
        self._is_due = False  # asked for, and not done yet
        self._in_period = False
        self._requests = 0  # in this period
        self._few = FEW  # requests of this period that do not wait

    def soon(self, *, without_rest: bool = False) -> None:
        """Ask for a call; several requests before it are one."""
        self._requests += 1
        if self._is_due:
            return
        self._is_due = True
        if without_rest or not self._in_period or self._requests <= self._few:
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        if not self._is_due:  # the period has ended since then
            return
        self._is_due = False
        self._act()
        if not self._in_period:
            self._begin_period(FEW)

    def _begin_period(self, few: int) -> None:
        self._in_period = True
        self._requests = 0
        self._few = few
        self._loop.call_later(PERIOD_S, self._end_period)

    def _end_period(self) -> None:
        self._in_period = False
        if self._is_due:
            few = FEW if self._requests <= FEW else 0
            self._is_due = False
            self._act()
            self._begin_period(few)
