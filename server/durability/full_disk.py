"""The way out of a full disk: space that is held for a rewrite, and when to try one.

While the disk is full, commands that only remove still run. What they remove frees no space on the
disk before a rewrite has replaced the files, and a rewrite needs space for a second base. Therefore
some space is held from the start; it is released for a rewrite or snapshot on a full disk, and held
again afterwards, before the journal reserves more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from millstream.storage.files.disk import Disk
from millstream.storage.files.journal_file import RESERVE_LEAST

log = logging.getLogger("millstream.persistence")

_SHARE = 4  # the space is this part of journal-reserve-size, if that is more than RESERVE_LEAST
_RETRY_MS = 1_000
_RETRY_MS_MAX = 60_000


if TYPE_CHECKING:

    class Config(Protocol):
        """The directives used here; read each time, so that CONFIG SET works."""

        journal_reserve_size: int


class FullDisk:
    """`hold` and `release` are called at the start and on the snapshots' worker, everything else on
    the loop."""

    def __init__(self, config: Config, disk: Disk, steady_clock: Callable[[], int]) -> None:
        self._config = config
        self._disk = disk
        self._steady_clock = steady_clock
        self._is_held = False
        self._has_removed = False
        self._after_ms = 0
        self._retry_ms = _RETRY_MS

    def hold(self) -> None:
        """Hold space, if none is held: less on a small disk, none on a full one."""
        reserve_bytes = self._config.journal_reserve_size
        least_bytes = min(reserve_bytes, RESERVE_LEAST)
        size_bytes = max(reserve_bytes // _SHARE, least_bytes)
        while not self._is_held and size_bytes >= least_bytes > 0:
            try:
                self._disk.hold_space(size_bytes)
            except OSError:
                size_bytes //= 2
            else:
                self._is_held = True

    def release(self) -> None:
        """Give the space to a rewrite or snapshot."""
        self._is_held = False
        self._disk.release_space()

    def note_removal(self) -> None:
        """A command has removed something although the disk is full."""
        self._has_removed = True

    def is_due(self) -> bool:
        """True if a rewrite or snapshot may fit now, because something was removed since the last
        one. True only once for each attempt; the pauses between attempts increase."""
        if not self._has_removed or self._steady_clock() < self._after_ms:
            return False
        self._has_removed = False
        self._after_ms = self._steady_clock() + self._retry_ms
        self._retry_ms = min(self._retry_ms * 2, _RETRY_MS_MAX)
        return True

    def recovered(self) -> None:
        """A rewrite or snapshot has succeeded."""
        self._has_removed = False
        self._after_ms = 0
        self._retry_ms = _RETRY_MS
