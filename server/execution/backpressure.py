"""Back-pressure from a slow disk: while too much data waits for the journal, requests wait, too.

The waiting data is in memory: frames that are not written yet, and replies that are held until the
journal is durable. Above `limit_bytes` (the directive journal-queue-limit) the executor postpones
every request that shows or changes data, and soon stops reading the sockets of these clients. PING
and similar commands still run. No request is refused or lost: the requests run when half of the
limit is free.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.server.durability.commits import Commits
    from millstream.server.protocol.outbox import Client, Outbox

LOGGER = logging.getLogger("millstream")

LIMIT_BYTES = 64 << 20
WARNED_EVERY_S = 60.0


class Backpressure:
    """The state of waiting for the disk, and the clients whose requests wait.

    `clients` are the clients with a postponed request, by ID. Those in `unread` were in the middle
    of a long request when the server stopped reading their sockets. `count` is how often the limit
    was reached.
    """

    def __init__(
        self, frames: Commits, outbox: Outbox, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.limit_bytes = LIMIT_BYTES
        self.is_on = False
        self.count = 0
        self.clients: dict[int, Client] = {}
        self.unread: set[Client] = set()
        self._frames = frames
        self._outbox = outbox
        self._now_s = now_s
        self._warned_s = -WARNED_EVERY_S

    @property
    def waiting_bytes(self) -> int:
        """The memory used by frames and replies that wait for the disk."""
        return self._frames.queued_bytes + self._outbox.held_bytes

    def check(self) -> bool:
        """True if requests have to wait now. Once they wait, they do so until half of the limit is
        free."""
        limit_bytes = self.limit_bytes // 2 if self.is_on else self.limit_bytes
        frames_limit_bytes = max(0, limit_bytes - self._outbox.held_bytes)
        is_on = self._outbox.held_bytes > limit_bytes or self._frames.is_queue_full(
            frames_limit_bytes
        )
        if is_on and not self.is_on:
            self.count += 1
            self._warn()
        self.is_on = is_on
        return is_on

    def release(self) -> tuple[list[Client], set[Client]]:
        """Forget and return the waiting clients in order of arrival, and the connections to be read
        again."""
        clients, self.clients = list(self.clients.values()), {}
        unread, self.unread = self.unread, set()
        return clients, unread

    def forget(self, client: Client) -> None:
        """Forget a disconnected client."""
        self.clients.pop(client.id, None)
        self.unread.discard(client)

    def _reason(self) -> str:
        if self.waiting_bytes > self.limit_bytes:
            return f"journal-queue-limit is {self.limit_bytes}"
        return "the space reserved for the journal is used up"

    def _warn(self) -> None:
        if self._now_s() - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = self._now_s()
            LOGGER.warning(
                "the disk is slow: %d bytes wait for the journal (%s); requests wait until some of"
                " them are written",
                self.waiting_bytes,
                self._reason(),
            )
