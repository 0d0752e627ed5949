"""Logs exceptions of the event loop's callbacks, which asyncio would write to standard error."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from millstream.memory_reserve import RESERVE
from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER


class LoopErrors:
    """The exception handler of a loop. A callback that fails may run again in each turn of the
    loop, so that only one exception a second is logged, and the number of the others."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = LineLimit()
        self._is_due = False
        self._loop = loop
        loop.set_exception_handler(self._on_error)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, MemoryError):
            RESERVE.give_back()
        with suppress(MemoryError):  # the next exception is logged
            more = self._limit.more()
            if more is not None:
                LOGGER.error("%s%s", context["message"], more, exc_info=error)
            elif not self._is_due:
                loop.call_later(self._limit.pause_s, self._tell_left_out)
                self._is_due = True

    def _tell_left_out(self) -> None:
        self._is_due = False
        left_out = self._limit.left_out
        if left_out and self._limit.more() is not None:
            LOGGER.error("%d more exceptions in the event loop were left out", left_out)
