"""Reasons for refusing write commands."""

from __future__ import annotations

from collections.abc import Callable

_BGSAVE_ERROR = (
    b"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to "
    b"disk. Commands that may modify the data set are disabled, because this instance is "
    b"configured to report errors during writes if RDB snapshotting fails "
    b"(stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB "
    b"error."
)


class Refusal:
    """The reasons to refuse writes: MISCONF errors of a failed journal, of a full disk and of files
    that were removed, each None without that reason; and failed saves.

    `error` is the error that clients get, None while writes are accepted. Call `update` after every
    change of a reason.
    """

    def __init__(self, save_failed: Callable[[], bool], on_accepted: Callable[[], None]) -> None:
        """`save_failed()` tells whether writes are refused because of a failed save;
        `on_accepted()` is called when writes are accepted again."""
        self.journal: bytes | None = None
        self.space: bytes | None = None
        self.lost: bytes | None = None
        self.error: bytes | None = None
        self._save_failed = save_failed
        self._on_accepted = on_accepted

    @property
    def is_by_journal(self) -> bool:
        """True if a reason is one of the journal: not a failed save."""
        return bool(self.journal or self.space or self.lost)

    @property
    def allows_removals(self) -> bool:
        """True if commands that only remove may run: the journal, if there is one, still works."""
        return not (self.journal or self.lost)

    def clear(self) -> None:
        """Forget the reasons of the journal."""
        self.journal = self.space = self.lost = None
        self.update()

    def update(self) -> None:
        before = self.error
        self.error = self.lost or self.journal or self.space
        if self.error is None and self._save_failed():
            self.error = _BGSAVE_ERROR
        if before is not None and self.error is None:
            self._on_accepted()
