"""The connected clients: accepting, refusing and closing them, and what they have in common."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Generator
from itertools import count
from typing import Any

from millstream.commands.admin.client_line import CLIENT_BYTES, Client
from millstream.commands.runtime.context import Session
from millstream.errors import CommandError
from millstream.server.client_limits import ClientLimits
from millstream.server.config.directives import Config
from millstream.server.execution.access import Access
from millstream.server.execution.executor import Executor
from millstream.server.execution.pubsub import PubSub
from millstream.server.monitor.log import LOGGER, VERBOSE
from millstream.server.net.connection import Connection, note_readers, sums_of
from millstream.server.protocol.output_limits import OutputLimits

STOP_GRACE_S = 2.0
LOOPBACK = ("127.", "::1", "::ffff:127.")

TOO_MANY_CLIENTS = b"-ERR max number of clients reached\r\n"
PROTECTED = (
    b"-DENIED Redis is running in protected mode because protected mode is enabled and no "
    b"password is set for the default user. In this mode connections are only accepted from the "
    b"loopback interface. To connect from another computer, set a password with the directive "
    b"requirepass, or switch the protection off with 'CONFIG SET protected-mode no' sent from "
    b"this computer, once you are sure that the port cannot be reached from outside.\r\n"
)


class ClientTotals:
    """The totals of all clients for INFO, from one walk over them."""

    def __init__(self) -> None:
        self.input_max_bytes = 0
        self.output_max_bytes = 0
        self.memory_bytes = 0  # without replicas
        self.replica_bytes = 0
        self.subscribed = 0
        self.watching = 0
        self.watched: set[tuple[int, bytes]] = set()

    def add(self, clients: list[Client]) -> None:
        """Add some clients."""
        sums = sums_of(clients, CLIENT_BYTES)
        input_max, output_max, of_replicas, of_others, subscribed, watching = sums
        self.input_max_bytes = max(self.input_max_bytes, input_max)
        self.output_max_bytes = max(self.output_max_bytes, output_max)
        self.replica_bytes += of_replicas
        self.memory_bytes += of_others
        self.subscribed += subscribed
        self.watching += len(watching)
        for client in watching:
            self.watched.update(client.watches)


class Clients:
    """The clients in `by_id`, and the counts of connections that INFO shows."""

    def __init__(
        self,
        config: Config,
        by_id: dict[int, Client],
        executor: Executor,
        access: Access,
        pubsub: PubSub,
        steady_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self.limits = ClientLimits(config, by_id, self.kill, call_later)
        access.limit_refusal, access.note_user = self.limits.refusal, self.limits.note
        self.connections_received = 0
        self.connections_rejected = 0
        self.output_limit_closings = 0
        self.next_id: Callable[[], int] = count(1).__next__
        self.steady_ms = steady_ms
        self._config = config
        self.by_id = by_id
        self._executor = executor
        self._access = access
        self._pubsub = pubsub
        self._output_limits = OutputLimits(config, time.monotonic)
        self._on_gone: list[Callable[[Client], object]] = []
        self._empty: asyncio.Event | None = None  # of a stopping server

    def get(self, client_id: int) -> Client | None:
        return self.by_id.get(client_id)

    def values(self) -> Collection[Client]:
        return self.by_id.values()

    def __len__(self) -> int:
        return len(self.by_id)

    # Connections

    def opened(self, client: Connection) -> None:
        """Register an accepted connection, or refuse it with Redis' error."""
        self.connections_received += 1
        refusal = self._refusal(client)
        if refusal is None:
            refusal = self._log_in(client)
        if refusal is not None:
            self.connections_rejected += 1
            self._executor.audit.refused(client, refusal)
            client.closed = True
            client.transport.write(refusal)
            client.transport.close()
            return
        self.by_id[client.id] = client
        self.limits.note(client)
        if self._config.tcp_keepalive:
            client.keep_alive(self._config.tcp_keepalive)
        self._executor.audit.connected(client)

    def _refusal(self, client: Connection) -> bytes | None:
        if self._empty is not None:
            return b""
        if len(self.by_id) >= self._config.maxclients:
            return TOO_MANY_CLIENTS
        guarded = self._config.protected_mode and self._access.users.default.no_password
        return PROTECTED if guarded and not is_local(client) else None

    def _log_in(self, client: Connection) -> bytes | None:
        """Log in the user that a new client has without a password. If that user has too many
        clients already, return the refusal."""
        access = self._access
        try:
            access.log_in_default(client)
            if self._config.tls.auth_clients_user != "off":
                self._log_in_by_certificate(client)
            if client.authenticated and client.user is access.users.default:
                access.check_limit(access.users.default)
        except CommandError as refusal:
            access.forget(client)
            return b"-%s\r\n" % refusal.message.encode("utf-8", "backslashreplace")
        return None

    def _log_in_by_certificate(self, client: Connection) -> None:
        """tls-auth-clients-user: the client is the user that its certificate names."""
        tls = client.transport.get_extra_info("ssl_object")
        if tls is not None:
            from millstream.server.net.tls_contexts import common_name

            self._access.log_in_by_certificate(client, common_name(tls) or "")

    def closed(self, client: Connection) -> None:
        """Handle a closed connection, including one that was refused or killed before."""
        self._forget(client)
        if not self.by_id and self._empty is not None:
            self._empty.set()

    def when_gone(self, callback: Callable[[Client], object]) -> None:
        """Call `callback` for each client that is disconnected or killed."""
        self._on_gone.append(callback)

    def _forget(self, client: Client) -> None:
        if self.by_id.pop(client.id, None) is not None:
            self.limits.note(client)
            self._executor.audit.disconnected(client, self.steady_ms())
        self._access.forget(client)
        if client.subscribed:
            self._pubsub.forget(client)
        if client.monitoring:
            self.end_monitor(client)
        self._output_limits.forget(client)
        for callback in self._on_gone:
            callback(client)

    def refuse_new(self) -> None:
        """The server stops: accept no more connections."""
        if self._empty is None:
            self._empty = asyncio.Event()

    def accept_new(self) -> None:
        """The server continues after all: accept connections again."""
        self._empty = None

    async def wait_until_gone(self) -> None:
        """Wait, with a short limit, until every client of a stopping server has received its
        replies."""
        if self.by_id and self._empty is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self._empty.wait()

    # CLIENT and MONITOR

    def kill(self, client: Client) -> None:
        if client.id in self.by_id:
            self._forget(client)  # no list shows it any more, although its socket closes later
        client.close(after_reply=False)

    def pause(self, until_ms: int, writes_only: bool) -> None:
        """Postpone commands, or only writes, until a time of the steady clock."""
        self._executor.pauses.start(until_ms, writes_only)

    def end_pause(self) -> None:
        self._executor.pauses.end()

    def unblock(self, client: Any, error: bool) -> bool:
        """End a client's wait as its timeout would, or with an error; False if it does not
        wait."""
        return self._executor.unblock_client(client, error)

    def monitor(self, client: Any) -> None:
        """Show the client every command from now on."""
        client.monitoring = True
        self._executor.monitors[client.id] = client

    def end_monitor(self, client: Client) -> None:
        client.monitoring = False
        self._executor.monitors.pop(client.id, None)

    # Figures

    def totals(self) -> ClientTotals:
        totals = ClientTotals()
        totals.add(list(self.values()))
        return totals

    def totals_in_steps(self, clients_at_once: int) -> Generator[None, None, ClientTotals]:
        """`totals` in steps, for many clients."""
        totals = ClientTotals()
        clients = list(self.values())
        for start in range(0, len(clients), clients_at_once):
            totals.add(clients[start : start + clients_at_once])
            yield
        return totals

    def reset_stats(self) -> None:
        self.connections_received = 0
        self.connections_rejected = 0
        self.output_limit_closings = 0
        self.limits.reset_stats()

    # Limits

    def tick_second(self) -> None:
        """Close clients that are idle for too long, or do not read what they are sent."""
        self._close_idle()
        self._close_slow()
        self.limits.tick_second()

    def _close_idle(self) -> None:
        limit_ms = self._config.timeout * 1000
        if limit_ms:
            now_ms = self.steady_ms()
            oldest_ms = now_ms - limit_ms
            clients = list(self.values())
            note_readers(clients, now_ms)
            for client in clients:
                if client.last_active_ms < oldest_ms and not _listens(client):
                    LOGGER.log(VERBOSE, "closing idle client %s", client.address)
                    client.close(after_reply=False)

    def _close_slow(self) -> None:
        lagging = self._executor.outbox.lagging
        for client in list(lagging):
            if not client.closed:
                self.check_output(client)
            if client.closed or not client.output_bytes:
                lagging.discard(client)

    def check_output(self, client: Client) -> None:
        """Close the client if client-output-buffer-limit is exceeded."""
        if self._output_limits.is_exceeded(client):
            LOGGER.warning(
                "closing client %s: %d bytes wait for it", client.address, client.output_bytes
            )
            self.output_limit_closings += 1
            self.kill(client)

    def set_output_limits(self) -> None:
        """client-output-buffer-limit has changed: a client may exceed the new limit."""
        outbox, least_bytes = self._executor.outbox, self._output_limits.least_bytes
        if outbox.least_limit_bytes != least_bytes:
            outbox.least_limit_bytes = least_bytes
            outbox.lagging.update(self.values())


def _listens(client: Client) -> bool:
    """True if a client is silent because it waits for a reply or messages, so it is not idle."""
    waits = client.blocked or client.held_bytes > 0 or client.feed is not None
    return waits or client.monitoring or client.subscribed


def is_local(client: Session) -> bool:
    """True if a client is on this machine: on a Unix socket, or at a loopback address."""
    is_loopback = client.address.lstrip("[").startswith(LOOPBACK)
    return is_loopback or bool(getattr(client, "is_unix", False))
