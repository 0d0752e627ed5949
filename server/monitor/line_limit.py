"""A limit on how often one kind of line is logged, for lines whose number a client or a fault
decides."""

from __future__ import annotations

import time
from collections.abc import Callable


class LineLimit:
    """Lets `lines` lines through in `pause_s` seconds, and counts the others in `left_out`."""

    def __init__(
        self,
        pause_s: float = 1.0,
        now_s: Callable[[], float] = time.monotonic,
        *,
        lines: int = 1,
    ) -> None:
        self.pause_s = pause_s
        self.left_out = 0
        self._lines = lines
        self._now_s = now_s
        self._begun_s = float("-inf")
        self._logged = 0

    def more(self) -> str | None:
        """The end of a line that may be logged now: it says how many were left out since the last
        one. None for a line that is left out."""
        if self._is_over():
            self._begun_s = self._now_s()
            self._logged = 0
        if self._logged >= self._lines:
            self.left_out += 1
            return None
        self._logged += 1
        left_out, self.left_out = self.left_out, 0
        return f" (and {left_out} more since the last such line)" if left_out else ""

    def rest(self) -> int:
        """The number of lines that were left out, when no further line has told it in time; they
        count as told."""
        if not self.left_out or not self._is_over():
            return 0
        left_out, self.left_out = self.left_out, 0
        return left_out

    def _is_over(self) -> bool:
        return self._now_s() - self._begun_s >= self.pause_s
