"""Sends and acknowledgements of a link: at once while there are few, under load once a millisecond.

Each send wakes a process and is acknowledged, so under load frames of about a millisecond go
together. A client that waits for each reply is no load.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.durability.workers import Machine

PERIOD_S = 0.001
FEW = 8  # requests in a millisecond that are no load


class Pace:
    """Calls `act` after `soon`: at once for the first FEW requests in a millisecond of the clock, a
    millisecond later for all others. A millisecond with more requests is followed by one in which
    all wait. A timer is only set for requests that wait, because it costs as much as a send.

    "At once" is the next turn of the loop, or, after `soon_in_turn`, the `look` of the same turn.
    """

    def __init__(self, machine: Machine, act: Callable[[], object]) -> None:
        self._loop = machine.scheduler
        self._steady_ms = machine.steady_clock
        self._act = act
        self._is_due = False  # asked for, and not done yet
        self._waits_for_look = False
        self._has_timer = False
        self._now_ms = 0  # the millisecond of the last request
        self._requests = 0  # in this millisecond
        self._few = FEW  # requests of this millisecond that do not wait

    def soon(self, *, without_rest: bool = False) -> None:
        """Ask for a call; several requests before it are one."""
        if self._ask(without_rest):
            self._loop.call_soon(self._call)

    def soon_in_turn(self, *, without_rest: bool = False) -> None:
        """`soon` for a caller that calls `look` at the end of this turn."""
        if self._ask(without_rest):
            self._waits_for_look = True

    def later(self) -> None:
        """Ask for a call a millisecond later."""
        if not self._is_due:
            self._is_due = True
            self._set_timer()

    def look(self) -> None:
        if self._waits_for_look:
            self._call()

    def _ask(self, without_rest: bool) -> bool:
        """True if the call is due at once, and the caller has to make it."""
        now_ms = self._steady_ms()
        if now_ms != self._now_ms:
            was_busy = now_ms == self._now_ms + 1 and self._requests > FEW
            self._few = 0 if was_busy else FEW
            self._now_ms = now_ms
            self._requests = 0
        self._requests += 1
        if self._is_due:
            return False
        self._is_due = True
        if without_rest or self._requests <= self._few:
            return True
        self._set_timer()
        return False

    def _set_timer(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            self._loop.call_later(PERIOD_S, self._on_timer)

    def _on_timer(self) -> None:
        self._has_timer = False
        self._call()

    def _call(self) -> None:
        self._waits_for_look = False
        if self._is_due:  # a timer may have come first
            self._is_due = False
            self._act()
