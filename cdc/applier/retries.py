"""The times at which stopped tables are retried. Without I/O; times are seconds of a steady
clock."""

from __future__ import annotations

from collections.abc import Hashable

from millstream.backoff import Backoff
from millstream.cdc.config import TableKey

FIRST_S = 5.0


class Retries:
    """A stopped table is retried immediately after a start, then after 5 s, 10 s and so on.

    A change of the table's copy or of its target may have removed the cause of the stop, so it is
    then retried, too.
    """

    def __init__(self, max_s: float) -> None:
        self._max_s = max_s
        self._due: dict[TableKey, float] = {}
        self._backoffs: dict[TableKey, Backoff] = {}
        self._copies: dict[TableKey, int] = {}
        self._targets: dict[TableKey, Hashable] = {}
        self._tried: dict[TableKey, Hashable] = {}

    def saw_copy(self, key: TableKey, copy_lsn: int) -> None:
        """The table's latest copy."""
        self._copies[key] = copy_lsn

    def saw_target(self, key: TableKey, shape: Hashable) -> None:
        """The table's target; None if there is none."""
        self._targets[key] = shape

    def _version(self, key: TableKey) -> Hashable:
        return self._copies.get(key), self._targets.get(key)

    def is_due(self, key: TableKey, now: float) -> bool:
        """True if a stopped table is to be retried."""
        return self._due.get(key, now) <= now or self._tried.get(key) != self._version(key)

    def stopped(self, key: TableKey, now: float) -> float:
        """The table was stopped, or still is; return the seconds until its next retry."""
        self._tried[key] = self._version(key)
        first_s = min(FIRST_S, self._max_s)
        wait_s = self._backoffs.setdefault(key, Backoff(first_s, self._max_s)).next_s()
        self._due[key] = now + wait_s
        return wait_s

    def resume(self, key: TableKey) -> None:
        """Try the table now."""
        self._due[key] = float("-inf")
        self._backoffs.pop(key, None)

    def forget(self, key: TableKey) -> None:
        """The table is no longer stopped."""
        self._due.pop(key, None)
        self._backoffs.pop(key, None)
