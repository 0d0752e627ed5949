"""Closes clients that do not read their output: client-output-buffer-limit.

The server limits replies by not running the client's next request. Messages of channels and lines
of MONITOR come from other clients' commands, so only a limit can bound the output for a client that
does not read. The hard limit is checked whenever something is sent to a client with a full socket,
and whenever more output is held for it (after a long reply, or until the journal is durable), so a
burst cannot exceed it by much. For the soft limit, clients with unsent output are also checked once
a second.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.commands.admin.client_line import Client, is_subscribed
from millstream.server.config.directives import Config
from millstream.server.config.kinds import OutputLimit

UNLIMITED_BYTES = 2**64 - 1


class OutputLimits:
    """Decides which clients to close; records since when each is above its soft limit."""

    def __init__(self, config: Config, clock_s: Callable[[], float]) -> None:
        self._config = config
        self._clock_s = clock_s
        self._above_since_s: dict[int, float] = {}

    def limit_of(self, client: Client) -> OutputLimit:
        if client.feed is not None:
            return self._config.client_output_buffer_limit["slave"]
        kind = "pubsub" if is_subscribed(client) else "normal"
        return self._config.client_output_buffer_limit[kind]

    @property
    def least_bytes(self) -> int:
        """The smallest limit: no client with less unsent output is closed."""
        limits = [self._config.client_output_buffer_limit[kind] for kind in ("normal", "pubsub")]
        sizes = [size for limit in limits for size in (limit.hard_bytes, limit.soft_bytes) if size]
        return min([*sizes, UNLIMITED_BYTES])

    def is_exceeded(self, client: Client) -> bool:
        """True if the client exceeds its hard limit, or its soft limit for too long."""
        limit = self.limit_of(client)
        if not limit.hard_bytes and not limit.soft_bytes:
            return False
        waiting_bytes = client.output_bytes
        if limit.hard_bytes and waiting_bytes >= limit.hard_bytes:
            return True
        if not limit.soft_bytes or waiting_bytes < limit.soft_bytes:
            self.forget(client)
            return False
        now_s = self._clock_s()
        return now_s - self._above_since_s.setdefault(client.id, now_s) >= limit.soft_s

    def forget(self, client: Client) -> None:
        self._above_since_s.pop(client.id, None)
