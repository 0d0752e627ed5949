"""Jumps of the wall clock: the log, INFO and the metrics show them."""

from __future__ import annotations

import time
from collections.abc import Callable

from millstream.server.monitor.log import LOGGER

# Larger than anything by which NTP moves a clock without setting it: half a millisecond a second.
JUMP_MS = 500


class ClockWatch:
    """Compares the wall clock with the machine's monotonic clock once a second."""

    def __init__(
        self, now_ms: Callable[[], int], monotonic_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.jumps = 0
        self.last_jump_ms = 0  # below 0: the clock was set back
        self._now_ms = now_ms
        self._monotonic_ns = monotonic_ns
        self._ahead_ms = self._difference_ms()

    def _difference_ms(self) -> int:
        return self._now_ms() - self._monotonic_ns() // 1_000_000

    def tick_second(self) -> None:
        ahead_ms = self._difference_ms()
        jump_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
        if abs(jump_ms) < JUMP_MS:
            return
        self.jumps += 1
        self.last_jump_ms = jump_ms
        facts = {"jump_ms": jump_ms}
        if jump_ms > 0:
            LOGGER.warning(
                "clock    the wall clock has jumped ahead by %.1f s: new IDs follow it, and stay"
                " ahead if it is set back",
                jump_ms / 1000,
                extra={"facts": facts},
            )
        else:
            LOGGER.warning(
                "clock    the wall clock has jumped back by %.1f s: new IDs have the time of the"
                " last ID of their stream until the clock reaches it again",
                -jump_ms / 1000,
                extra={"facts": facts},
            )
