"""Sends and acknowledgements of a link: at once after a pause, under load once a millisecond.

Each send wakes a process and is acknowledged, so frames of about a millisecond go together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

REST_S = 0.001  # between two calls


class Loop(Protocol):
    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> object: ...

    def call_later(self, delay_s: float, callback: Callable[..., object], /) -> object: ...


class Pace:
    """Calls `act` after `soon`."""

    def __init__(self, loop: Loop, act: Callable[[], object]) -> None:
        self._loop = loop
        self._act = act
        self._is_due = False  # asked for, and not done yet
        self._rests = False  # done less than REST_S ago

    def soon(self, *, without_rest: bool = False) -> None:
        """Ask for a call; several requests before it are one."""
        if self._is_due:
            return
        self._is_due = True
        if without_rest or not self._rests:
            self._loop.call_soon(self._call)

    def _call(self) -> None:
        self._is_due = False
        self._act()
        if not self._rests:
            self._rests = True
            self._loop.call_later(REST_S, self._rested)

    def _rested(self) -> None:
        self._rests = False
        if self._is_due:
            self._call()
