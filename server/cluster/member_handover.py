"""CLUSTER FAILOVER at the primary: it stops, and waits until the candidate has all frames.

Writes are postponed meanwhile, for half a second at most. Then the primary promises the term of the
candidate, which ends its own one in any case. The clients whose writes were postponed are sent to
the new primary as soon as this server follows it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millstream.server.durability.persistence import Persistence
from millstream.server.execution.executor import Executor
from millstream.server.replication.terms import Terms

PAUSE = "cluster failover"
PAUSE_MS = 500
FORGOTTEN_S = 0.6  # the pause has ended by then, whatever the candidate does


class MemberHandover:
    """`later(seconds, action)` calls an action later."""

    def __init__(
        self,
        terms: Terms,
        persistence: Persistence,
        executor: Executor,
        later: Callable[[float, Callable[[], None]], object],
        steady_ms: Callable[[], int],
    ) -> None:
        self._terms = terms
        self._commits = persistence.commits
        self._executor = executor
        self._later = later
        self._steady_ms = steady_ms
        self._until_ms: int | None = None

    def is_waiting(self, candidate: str) -> bool:
        """True if this primary has frames that the candidate lacks, and may still wait for it."""
        if not self._terms.is_leading:
            return False
        now_ms = self._steady_ms()
        if self._until_ms is None:
            self._until_ms = now_ms + PAUSE_MS
            self._executor.pauses.pause_writes(PAUSE)
            self._later(FORGOTTEN_S, partial(self._forget, self._until_ms))
        self._commits.flush_tick()
        has_all = self._terms.acknowledged_frame(candidate) >= self._commits.last_seq
        return now_ms < self._until_ms and not has_all

    def look(self) -> None:
        """This server may follow the new primary by now, and know its slots."""
        if self._until_ms is not None and self._terms.primary:
            self._end()

    def _forget(self, until_ms: int) -> None:
        if self._until_ms == until_ms:
            self._end()

    def _end(self) -> None:
        self._until_ms = None
        self._executor.pauses.resume_writes(PAUSE)
