"""When stopped tables are retried. Without I/O; times are seconds of a steady clock."""

from __future__ import annotations

from collections.abc import Hashable

from millstream.cdc.config import TableKey

FIRST_S = 5.0


class Retries:
    """A stopped table is retried immediately after a start, then after 5 s, 10 s and so on.

    A `version` is that of the table's copy and of its target: a change of either may have removed
    the cause of the stop.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._due: dict[TableKey, float] = {}
        self._waits: dict[TableKey, float] = {}
        self._versions: dict[TableKey, Hashable] = {}

    def is_due(self, key: TableKey, now: float, version: Hashable) -> bool:
        """Whether to retry a stopped table. A version that was not tried yet is due immediately."""
        return self._due.get(key, now) <= now or self._versions.get(key) != version

    def stopped(self, key: TableKey, now: float, version: Hashable) -> float:
        """The table was stopped, or still is; return the seconds until its next retry."""
        self._versions[key] = version
        wait = min(self._waits.get(key, FIRST_S / 2) * 2, self._max_s)
        self._waits[key] = wait
        self._due[key] = now + wait
        return wait

    def resume(self, key: TableKey) -> None:
        """Try the table now."""
        self._due[key] = float("-inf")
        self._waits.pop(key, None)

    def forget(self, key: TableKey) -> None:
        """The table is no longer stopped."""
        self._due.pop(key, None)
        self._waits.pop(key, None)
