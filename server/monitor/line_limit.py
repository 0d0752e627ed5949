"""A limit on how often one kind of line is logged, for lines whose number a client or a fault
decides."""

from __future__ import annotations

import time
from collections.abc import Callable


class LineLimit:
    """Lets one line through in `pause_s` seconds, and counts the others in `left_out`."""

    def __init__(self, pause_s: float = 1.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self.pause_s = pause_s
        self.left_out = 0
        self._now_s = now_s
        self._next_s = 0.0

    def more(self) -> str | None:
        """The end of a line that may be logged now: it says how many were left out since the last
        one. None for a line that is left out."""
        now_s = self._now_s()
        if now_s < self._next_s:
            self.left_out += 1
            return None
        self._next_s = now_s + self.pause_s
        left_out, self.left_out = self.left_out, 0
        return f" ({left_out} more since the last such line)" if left_out else ""
