"""Limits of clients as a whole: maxmemory-clients, and for each user user-limits.

The memory of all clients is measured ten times a second, in slices, and only while there is such a
limit. Above it, the clients that take most are disconnected, as in Redis. Replicas are not counted:
client-output-buffer-limit bounds what they take.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from millstream.commands.access.users import User
from millstream.commands.admin.client_line import CLIENT_BYTES, Client
from millstream.server.config.directives import Config
from millstream.server.config.kinds import OTHER_USERS, UserLimit
from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER
from millstream.server.net.connection import memories_of

BETWEEN_S = 0.1
BETWEEN_SLICES_S = 0.005
LINES_PER_S = 20
SLICE = 2000  # clients measured in one turn
LEAST_BYTES = 128 * 1024  # as in Redis: with less, no client could raise the limit
NO_LIMIT = UserLimit(0, 0)
Sizes = list[tuple[int, Client]]


class ClientLimits:
    """`kill` closes a client, `call_later(seconds, callback)` is the loop's."""

    def __init__(
        self,
        config: Config,
        by_id: Mapping[int, Client],
        kill: Callable[[Client], None],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.evicted_clients = 0
        self.user_closings = 0
        self.user_refusals = 0
        self._config = config
        self._by_id = by_id
        self._kill = kill
        self._call_later = call_later
        # The user as which each client counts, and the number of clients of each user. None until a
        # limit needs them.
        self._counted_as: dict[int, bytes] | None = None
        self._connections: Counter[bytes] = Counter()
        self._walk: Iterator[None] | None = None
        self._is_measuring = False
        self._line_limit = LineLimit(lines=LINES_PER_S)

    def reset_stats(self) -> None:
        self.evicted_clients = self.user_closings = self.user_refusals = 0

    def tick_second(self) -> None:
        """Log how many lines about closed clients were left out."""
        left_out = self._line_limit.rest()
        if left_out:
            LOGGER.warning("closed %d more clients because of limits of memory", left_out)

    # Connections

    def refusal(self, user: User) -> str | None:
        """The reason why no other client may log in as this user; None if one may."""
        if not self._config.user_limits:
            return None
        limit = self._limit_of(user.name)
        if not limit.connections or self._connections_of(user.name) < limit.connections:
            return None
        self.user_refusals += 1
        name = user.name.decode("utf-8", "backslashreplace")
        return (
            f"ERR max number of clients reached for the user '{name}': user-limits allows"
            f" {limit.connections}"
        )

    def _limit_of(self, name: bytes) -> UserLimit:
        limits = self._config.user_limits
        others = limits.get(OTHER_USERS, NO_LIMIT)
        return limits.get(name.decode("utf-8", "surrogateescape"), others)

    def _connections_of(self, name: bytes) -> int:
        """The number of clients of a user. The first call counts all clients."""
        if self._counted_as is None:
            self._counted_as = {}
            for client in self._by_id.values():
                self.note(client)
        return self._connections[name]

    def note(self, client: Client) -> None:
        """A client has been accepted, is another user than before, or has gone."""
        if self._counted_as is None:
            return
        before = self._counted_as.pop(client.id, b"")
        if before:
            self._connections[before] -= 1
            if not self._connections[before]:
                del self._connections[before]
        name = _user_of(client)
        if name and client.id in self._by_id:
            self._counted_as[client.id] = name
            self._connections[name] += 1

    # Memory

    @property
    def limit_bytes(self) -> int:
        """maxmemory-clients in bytes; 0: no limit."""
        text = self._config.maxmemory_clients
        number = int(text.rstrip("%"))
        wanted = self._config.maxmemory * number // 100 if text.endswith("%") else number
        return max(wanted, LEAST_BYTES) if wanted else 0

    @property
    def _limits_memory(self) -> bool:
        limits = self._config.user_limits.values()
        return self.limit_bytes > 0 or any(limit.memory_bytes for limit in limits)

    def update(self) -> None:
        """A limit has changed: count and measure from now on, if there is one."""
        if not self._config.user_limits:
            self._counted_as = None
            self._connections.clear()
        if not self._is_measuring and self._limits_memory:
            self._is_measuring = True
            self._call_later(0, self._step)

    def _step(self) -> None:
        walk, self._walk = self._walk, None
        if walk is None:
            self._is_measuring = self._limits_memory
            if not self._is_measuring:
                return
            walk = self._measure()
        pause_s = BETWEEN_S
        try:
            for _ in walk:
                self._walk, pause_s = walk, BETWEEN_SLICES_S
                break
        finally:
            self._call_later(pause_s, self._step)

    def _measure(self) -> Iterator[None]:
        """Measure all clients in slices, then disconnect some if they take too much."""
        clients = list(self._by_id.values())
        sizes: Sizes = []
        by_user: defaultdict[bytes, int] = defaultdict(int)
        has_users = any(limit.memory_bytes for limit in self._config.user_limits.values())
        for start in range(0, len(clients), SLICE):
            if start:
                yield
            part = clients[start : start + SLICE]
            measured = memories_of(part, CLIENT_BYTES)
            sizes += zip(measured, part, strict=True)
            if has_users:
                for size_bytes, client in zip(measured, part, strict=True):
                    by_user[_user_of(client)] += size_bytes
        for name, total_bytes in by_user.items():
            limit_bytes = self._limit_of(name).memory_bytes if name else 0
            if limit_bytes and total_bytes > limit_bytes:
                own = [(size, client) for size, client in sizes if _user_of(client) == name]
                of_user = f"the clients of the user {name.decode('utf-8', 'backslashreplace')}"
                self.user_closings += self._shrink(own, limit_bytes, of_user, "user-limits")
        limit_bytes = self.limit_bytes
        if limit_bytes:
            closed = self._shrink(sizes, limit_bytes, "all clients together", "maxmemory-clients")
            self.evicted_clients += closed

    def _shrink(self, sizes: Sizes, limit_bytes: int, whose: str, directive: str) -> int:
        """Disconnect the largest clients until the others take no more than the limit; return the
        number of those that were disconnected."""
        total_bytes = sum(size for size, client in sizes if client.id in self._by_id)
        if total_bytes <= limit_bytes:
            return 0
        count = 0
        for size_bytes, client in sorted(sizes, key=_size_of, reverse=True):
            if total_bytes <= limit_bytes:
                break
            if client.no_evict or client.feed is not None or client.id not in self._by_id:
                continue
            more = self._line_limit.more()
            if more is not None:
                LOGGER.warning(
                    "closing client %s, which takes %d bytes: %s take %d bytes, and %s allows %d%s",
                    client.address, size_bytes, whose, total_bytes, directive, limit_bytes, more,
                )  # fmt: skip
            total_bytes -= size_bytes
            count += 1
            self._kill(client)
        return count


def _size_of(item: tuple[int, Any]) -> int:
    return item[0]


def _user_of(client: Client) -> bytes:
    """The name of its user; empty for a client that has not logged in."""
    return client.user.name if client.user is not None and client.authenticated else b""
