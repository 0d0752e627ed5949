"""Warnings about nodes that do not accept each other, each at most once a minute."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("millstream.cluster")

AGAIN_S = 60.0
SUBJECTS_MAX = 64


class RareWarnings:
    """A warning is repeated after AGAIN_S at the earliest, unless it has another subject."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._due_s: dict[object, float] = {}  # the oldest first

    def warn(self, subject: object, text: str, *words: object) -> None:
        now_s = self._now_s()
        if now_s < self._due_s.get(subject, now_s):
            return
        self._due_s.pop(subject, None)
        if len(self._due_s) >= SUBJECTS_MAX:
            del self._due_s[next(iter(self._due_s))]
        self._due_s[subject] = now_s + AGAIN_S
        log.warning(text, *words)
