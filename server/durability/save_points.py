"""Times of automatic snapshots: save points, the growth of the files, and retries."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from millstream.server.config.kinds import SAVE_POINTS_DEFAULT
from millstream.server.durability.commits import Commits

# A failed automatic snapshot is retried after increasing delays, because each attempt leaves a
# journal with the data written since. While writes are refused because of a failed save, no journal
# grows, and the server should soon detect that saving works again.
_AUTO_RETRY_MS = 5_000
_AUTO_RETRY_MS_MAX = 3_600_000
_REFUSING_RETRY_MS_MAX = 60_000


if TYPE_CHECKING:

    class Config(Protocol):
        """The directives used here; read each time, so that CONFIG SET works.

        `save` is Redis' text ("3600 1 300 100"), "" for none, None for the default: Redis' points
        when appendonly is off, none when it is on."""

        save: str | None
        auto_aof_rewrite_percentage: int
        auto_aof_rewrite_min_size: int

    class JournalState(Protocol):
        """The part of the journal's owner that decides which snapshots are possible."""

        appendonly: bool
        commits: Commits


class SavePoints:
    """The automatic snapshot that is due. The times are those of the steady clock."""

    def __init__(
        self, config: Config, keeper: JournalState, steady_clock: Callable[[], int]
    ) -> None:
        self.changes_at_save = 0
        self._config = config
        self._keeper = keeper
        self._steady_clock = steady_clock
        self._saved_ms = steady_clock()
        self._after_ms = 0
        self._retry_ms = _AUTO_RETRY_MS

    def due(self, changes: int, current_bytes: int, base_bytes: int) -> str | None:
        """The kind of snapshot to start now, None for none. `changes` is the keyspace's change
        counter; the sizes are those of all files and of the base."""
        if self._steady_clock() < self._after_ms:
            return None
        keeper = self._keeper
        if keeper.commits.attached and self._has_grown(current_bytes, base_bytes):
            return "rewrite"
        if (keeper.commits.attached or not keeper.appendonly) and self._is_reached(changes):
            return "save"
        return None

    def _has_grown(self, current_bytes: int, base_bytes: int) -> bool:
        percentage = self._config.auto_aof_rewrite_percentage
        if not percentage or current_bytes < self._config.auto_aof_rewrite_min_size:
            return False
        return current_bytes * 100 // max(base_bytes, 1) - 100 >= percentage

    def points(self) -> list[tuple[int, int]]:
        """(seconds, changes) of the directive `save`."""
        text = self._config.save
        if text is None:
            text = "" if self._keeper.appendonly else SAVE_POINTS_DEFAULT
        numbers = [int(word) for word in re.findall(r"\d+", text)]
        return list(zip(numbers[::2], numbers[1::2], strict=False))

    def _is_reached(self, changes: int) -> bool:
        since_s = (self._steady_clock() - self._saved_ms) // 1000
        new = changes - self.changes_at_save
        return any(since_s >= seconds and new >= least for seconds, least in self.points())

    def note_success(self, changes: int) -> None:
        """A snapshot is written that has the first `changes` changes."""
        self._retry_ms = _AUTO_RETRY_MS
        self._saved_ms = self._steady_clock()
        self.changes_at_save = changes

    def note_failure(self, *, refuses: bool) -> None:
        """Start none for a while; `refuses` tells whether writes are refused meanwhile."""
        most_ms = _REFUSING_RETRY_MS_MAX if refuses else _AUTO_RETRY_MS_MAX
        retry_ms = min(self._retry_ms, most_ms)
        self._after_ms = self._steady_clock() + retry_ms
        self._retry_ms = retry_ms * 2
