"""Rests between the pieces of a backup, so that clients hardly notice one under full load.

The worker that reads a piece and the event loop that sends it hold the interpreter's lock in turn
with the requests. While there are many requests, a rest of many times the work follows each piece;
otherwise the backup is as fast as it can be.
"""

from __future__ import annotations

import time
from collections.abc import Callable

_BUSY = 10  # commands in a millisecond; fewer leave the loop enough time
# The rest, in comparison with the worker's time: a piece then takes about 3 % of a core.
_TIMES = 30
_REST_MAX_S = 0.25


class Rests:
    """The rests of one backup. `commands()` counts all commands so far, and `steady_ms()` is the
    steady clock."""

    def __init__(self, commands: Callable[[], int], steady_ms: Callable[[], int]) -> None:
        self._commands = commands
        self._steady_ms = steady_ms
        self._counted = commands()
        self._counted_ms = steady_ms()
        self._work_s = 0.0
        self._begun_s = 0.0

    def begin_work(self) -> None:
        """On the worker: a piece is read."""
        self._begun_s = time.thread_time()

    def end_work(self) -> None:
        self._work_s = time.thread_time() - self._begun_s

    def next_s(self) -> float:
        """The rest after the last piece; 0 if the server is not busy."""
        count, now_ms = self._commands(), self._steady_ms()
        is_busy = count - self._counted > _BUSY * max(1, now_ms - self._counted_ms)
        self._counted, self._counted_ms = count, now_ms
        return min(self._work_s * _TIMES, _REST_MAX_S) if is_busy else 0.0
