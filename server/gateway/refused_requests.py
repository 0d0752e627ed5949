"""Requests of a client that were refused, until they are sent again.

They are sent after a short pause, and as soon as the map has changed. While some wait, the client's
later requests are not looked at, so those for one stream keep their order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

FIRST_S, LONGEST_S = 0.02, 0.2  # pauses

Again = Callable[[float], None]


class Repeats:
    """Each is called with the time until which the gateway tries."""

    def __init__(self, resume: Callable[[], None]) -> None:
        """`resume` is called after each attempt."""
        self._resume = resume
        self._waiting: list[tuple[Again, float]] = []
        self._pause_s = FIRST_S
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0  # of attempts

    def __bool__(self) -> bool:
        """True if some wait."""
        return bool(self._waiting)

    def add(self, again: Again, until_s: float, *, is_first: bool) -> None:
        if is_first:
            self._pause_s = FIRST_S
        self._waiting.append((again, until_s))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self.send)
            self._pause_s = min(2 * self._pause_s, LONGEST_S)

    def send(self) -> None:
        """Send all of them now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        self.count += len(waiting)
        for again, until_s in waiting:
            again(until_s)
        if waiting:
            self._resume()

    def clear(self) -> None:
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
