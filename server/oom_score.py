"""oom-score-adj: how likely the kernel ends this process when memory runs out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from millstream.errors import CommandError
from millstream.server.config.directives import Config
from millstream.server.monitor.log import LOGGER

FILE = Path("/proc/self/oom_score_adj")
LOWEST, HIGHEST = -1000, 1000


class OomScore:
    """Sets the score from the directives and the role. Without oom-score-adj, the process keeps the
    one that it was started with."""

    def __init__(self, config: Config, is_replica: Callable[[], bool], file: Path = FILE) -> None:
        self._config = config
        self._is_replica = is_replica
        self._file = file
        self._base: int | None = None  # the score at start, once it is changed
        self._score: int | None = None  # as it was set, or tried, last
        self._is_started = False

    def start(self) -> None:
        """Set the score. As in Redis, a failure is only a warning."""
        self._is_started = True
        self.tick_second()

    def tick_second(self) -> None:
        """The role may have changed."""
        try:
            self._set()
        except OSError as problem:
            LOGGER.warning("%s", _sentence(problem))

    def update(self) -> None:
        """CONFIG SET of a directive. CommandError when the score cannot be set."""
        if not self._is_started:
            return
        self._score = None
        try:
            self._set()
        except OSError as problem:
            raise CommandError(_sentence(problem)) from None

    def _set(self) -> None:
        mode = self._config.oom_score_adj
        if mode == "no" and self._base is None:
            return
        if self._base is None:
            self._base = int(self._file.read_text())
        score = self._base
        if mode != "no":
            values = self._config.oom_score_adj_values.split()
            score = int(values[self._is_replica()]) + (self._base if mode == "yes" else 0)
        score = min(max(score, LOWEST), HIGHEST)
        if score != self._score:
            self._score = score
            self._file.write_text(str(score))


def _sentence(problem: OSError) -> str:
    return (
        f"oom-score-adj cannot be set: {problem.strerror}; only root may lower the score that the"
        " process was started with (OOMScoreAdjust= of systemd sets that one)"
    )
