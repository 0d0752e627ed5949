"""The servers of a stream: their failures, and the asks that they have to answer."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from millstream.client.core.steps import Ask

RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0


@dataclass(eq=False, slots=True)
class ServerState:
    """One server. `client` is the connection, an opaque value for the core."""

    client: Hashable
    whole: Hashable = None
    """The server or cluster of which each key is one stream: another client, if this is a node."""
    in_flight: list[Ask] = field(default_factory=list)
    cause: Exception | None = None
    """The error of the last ask; None if it was answered."""
    failing_since_s: float | None = None
    retry_at_s: float = 0.0
    last_ask_s: float = float("-inf")
    failures: int = 0

    def __post_init__(self) -> None:
        if self.whole is None:
            self.whole = self.client

    @property
    def failing(self) -> bool:
        return self.failing_since_s is not None

    def may_ask(self, now_s: float) -> bool:
        return not self.failing or (not self.in_flight and now_s >= self.retry_at_s)

    def asked(self, ask: Ask, now_s: float) -> None:
        ask.started_s = now_s
        self.in_flight.append(ask)
        self.last_ask_s = now_s

    def answered(self, ask: Ask) -> bool:
        """Note an answer. True if the server was failing."""
        self._end(ask)
        was_failing = self.failing
        self.failing_since_s = self.cause = None
        self.failures = 0
        return was_failing

    def failed(self, ask: Ask, cause: Exception, now_s: float) -> bool:
        """Note a failure. True if it is the first one."""
        self._end(ask)
        first = not self.failing
        if first:
            self.failing_since_s = min(now_s, ask.started_s + ask.wait_s)
        self.cause = cause
        self.retry_at_s = now_s + min(RETRY_FIRST_S * 2**self.failures, RETRY_MAX_S)
        self.failures = min(self.failures + 1, 16)
        return first

    def _end(self, ask: Ask) -> None:
        if ask in self.in_flight:
            self.in_flight.remove(ask)

    def due_since_s(self) -> list[float]:
        """Since when answers are due, or will be due."""
        due = [ask.started_s + ask.wait_s for ask in self.in_flight]
        if self.failing_since_s is not None:
            due.append(self.failing_since_s)
        return due

    def silent_since_s(self, now_s: float) -> float | None:
        """Since when an answer is due, None if none is."""
        since_s = min(self.due_since_s(), default=now_s)
        return since_s if since_s < now_s else None
