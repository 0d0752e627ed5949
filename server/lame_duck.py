"""SIGUSR2: the end of a server whose clients should not all connect elsewhere in the same moment.

The server accepts no more connections, is not ready, and closes those that it has over
lame-duck-period, in small batches: blocked and idle clients first, then those between two requests,
then those in a transaction. Replicas, backups and Sentinels stay. When no other client is left and
no backup runs, or the time is over, the server stops as with SIGTERM. Another signal ends this
wait. If the stop is cancelled, because the data cannot be saved or a client sent SHUTDOWN ABORT,
the server accepts connections again.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Callable, Iterator

from millstream.commands.admin.client_line import Client, is_replica
from millstream.errors import counted
from millstream.server.clients import Clients
from millstream.server.config.directives import Config
from millstream.server.execution.executor import Executor
from millstream.server.monitor.info import Process
from millstream.server.monitor.log import LOGGER
from millstream.server.net.listeners import Listeners
from millstream.server.process import Supervision

STEP_S = 0.25
IDLE_MS = 1000  # a client without a request for so long is idle
SENTINEL = b"sentinel-"  # how the names of its connections begin
NAME = "SIGUSR2"


class LameDuck:
    """The state of the end that SIGUSR2 begins. `stop(name)` stops as a signal does."""

    def __init__(
        self,
        config: Config,
        clients: Clients,
        listeners: Listeners,
        executor: Executor,
        process: Process,
        supervision: Supervision,
        stop: Callable[[str], None],
    ) -> None:
        self._config = config
        self._clients = clients
        self._listeners = listeners
        self._executor = executor
        self._process = process
        self._loop: AbstractEventLoop = executor.loop
        self._stop = stop
        self._supervision = supervision
        self._timer: TimerHandle | None = None  # of the next step
        self._reopening: Task[None] | None = None
        self._begun_s = 0.0
        self._period_s = 0
        self._count = 0  # of clients at the beginning

    def begin(self) -> None:
        """SIGUSR2. The second one, and one while the data is loaded, stops the server at once."""
        if self._process.is_lame_duck or self._executor.loading:
            self._stop(NAME)
            return
        self._process.is_lame_duck = True
        if self._reopening is not None:
            self._reopening.cancel()
        self._listeners.close()
        self._clients.refuse_new()
        self._period_s = self._config.lame_duck_period
        self._begun_s = self._loop.time()
        self._count = sum(1 for _ in self._leaving())
        LOGGER.warning(
            "lame duck: no connection is accepted, and the clients (%d) are disconnected within %d"
            " seconds; then the server stops. Another signal ends this wait",
            self._count, self._period_s,
        )  # fmt: skip
        replicas = sum(is_replica(client) for client in self._clients.values())
        if replicas:
            LOGGER.warning(
                "lame duck: this server has %s. FAILOVER makes a replica the primary",
                counted(replicas, "replica"),
            )
        self._supervision.lame_duck(self._period_s)
        self._step()

    def _leaving(self) -> Iterator[Client]:
        """The clients that are disconnected before the stop."""
        for client in self._clients.values():
            if client.feed is None and not client.name.startswith(SENTINEL):
                yield client

    def _has_backup(self) -> bool:
        clients = self._clients.values()
        return any(client.feed is not None and not client.feed.is_replica for client in clients)

    def _step(self) -> None:
        self._executor.end_tick()  # the replies of this tick count as output from here on
        leaving = list(self._leaving())
        passed_s = self._loop.time() - self._begun_s
        if passed_s >= self._period_s or not (leaving or self._has_backup()):
            self._stop(NAME)
            return
        staying = [
            client for client in leaving if not (client.close_after_reply or client.has_long_reply)
        ]
        wanted = self._count - int(self._count * passed_s / self._period_s)
        for client in self._first(staying, len(staying) - wanted):
            self._disconnect(client)
        pause_s = min(STEP_S, self._period_s - passed_s)
        self._timer = self._loop.call_later(pause_s, self._step)

    def undo(self) -> None:
        """The stop was cancelled: serve again."""
        if not self._process.is_lame_duck:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._process.is_lame_duck = False
        self._clients.accept_new()
        self._reopening = self._loop.create_task(self._reopen())

    def close(self) -> None:
        """The server stops: it disconnects no more clients, and does not serve again."""
        for waiting in (self._timer, self._reopening):
            if waiting is not None:
                waiting.cancel()

    async def _reopen(self) -> None:
        await self._listeners.reopen()
        where = self._listeners.described()
        LOGGER.warning(
            "the server is not a lame duck any more: it accepts connections on %s", where
        )
        self._supervision.ready(where)

    def _first(self, leaving: list[Client], count: int) -> list[Client]:
        """The clients that lose least, at most `count`."""
        if count <= 0:
            return []
        oldest_ms = self._clients.steady_ms() - IDLE_MS
        ranked: tuple[list[Client], ...] = ([], [], [])
        for client in leaving:
            ranked[_rank(client, oldest_ms)].append(client)
            if len(ranked[0]) == count:
                break
        return [client for rank in ranked for client in rank][:count]

    def _disconnect(self, client: Client) -> None:
        """Close the connection when all replies are sent. A read that waits ends as at its
        timeout."""
        if client.blocked:
            client.close_after_reply = True
            if not self._clients.unblock(client, error=False):
                client.close(after_reply=True)
        elif client.output_bytes:
            client.close_after_reply = True
        else:
            client.close(after_reply=True)


def _rank(client: Client, oldest_ms: int) -> int:
    if client.queue is not None or client.watches:
        return 2
    is_idle = client.last_active_ms < oldest_ms and not client.output_bytes
    return 0 if client.blocked or is_idle else 1
