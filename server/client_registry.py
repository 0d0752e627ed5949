"""The clients that are connected: accepting, refusing, forgetting, and closing them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING

from millstream.commands.admin.client_line import CLIENT_BYTES
from millstream.commands.runtime.host import Client
from millstream.server.monitor.log import LOGGER
from millstream.server.net.connection import Connection, note_readers, sums_of
from millstream.server.net.tls import common_name

if TYPE_CHECKING:
    from millstream.server.app import Server

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


class ClientRegistry:
    """The clients by ID, and the counts of connections that INFO shows."""

    def __init__(self, server: Server) -> None:
        self.clients: dict[int, Client] = {}
        self.connections_received = 0
        self.connections_rejected = 0
        self.output_limit_closings = 0
        self._server = server
        self.next_id: Callable[[], int] = count(1).__next__
        self._empty = asyncio.Event()  # set when a stopping server has no clients left

    def opened(self, client: Connection) -> None:
        """Register an accepted connection, or refuse it with Redis' error."""
        self.connections_received += 1
        refusal = self._refusal(client)
        if refusal is not None:
            self.connections_rejected += 1
            client.closed = True
            client.transport.write(refusal)
            client.transport.close()
            return
        server = self._server
        server.access.log_in_default(client)
        if server.config.tls_auth_clients_user != "off":
            self._log_in_by_certificate(client)
        self.clients[client.id] = client
        if server.config.tcp_keepalive:
            client.keep_alive(server.config.tcp_keepalive)

    def _refusal(self, client: Connection) -> bytes | None:
        server = self._server
        if server.stopping.is_set():
            return b""
        if len(self.clients) >= server.config.maxclients:
            return TOO_MANY_CLIENTS
        guarded = server.config.protected_mode and server.access.users.default.no_password
        if guarded and not client.is_unix and not is_loopback(client.address):
            return PROTECTED
        return None

    def _log_in_by_certificate(self, client: Connection) -> None:
        """tls-auth-clients-user: the client is the user that its certificate names."""
        tls = client.transport.get_extra_info("ssl_object")
        if tls is not None:
            self._server.access.log_in_by_certificate(client, common_name(tls) or "")

    def closed(self, client: Connection) -> None:
        """Handle a closed connection, including one that was refused or killed before."""
        self._forget(client)
        if not self.clients and self._server.stopping.is_set():
            self._empty.set()

    def _forget(self, client: Client) -> None:
        self.clients.pop(client.id, None)
        server = self._server
        server.access.forget(client)
        if client.subscribed:
            server.pubsub.forget(client)
        if client.monitoring:
            server.remove_monitor(client)
        server.output_limits.forget(client)
        server.replication.client_gone(client)

    def kill(self, client: Client) -> None:
        if client.id in self.clients:
            self._forget(client)  # no list shows it any more, although its socket closes later
        client.close(after_reply=False)

    async def wait_until_gone(self) -> None:
        """Wait, with a short limit, until every client has received its replies."""
        if self.clients:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_GRACE_S):
                    await self._empty.wait()

    def tick_second(self) -> None:
        """Close clients that are idle for too long, or do not read what they are sent."""
        self._close_idle()
        self._close_slow()

    def sums_of(self, clients: list[Client]) -> tuple[int, int, int, int, int, list[Connection]]:
        """What INFO shows of these clients together (server/net/connection)."""
        return sums_of(clients, CLIENT_BYTES)

    def reset_stats(self) -> None:
        self.connections_received = 0
        self.connections_rejected = 0
        self.output_limit_closings = 0

    def _close_idle(self) -> None:
        limit_ms = self._server.config.timeout * 1000
        if limit_ms:
            now_ms = self._server.steady_ms()
            oldest_ms = now_ms - limit_ms
            clients = list(self.clients.values())
            note_readers(clients, now_ms)
            for client in clients:
                if client.last_active_ms < oldest_ms and not _listens(client):
                    LOGGER.debug("closing idle client %s", client.address)
                    client.close(after_reply=False)

    def _close_slow(self) -> None:
        lagging = self._server.executor.outbox.lagging
        for client in list(lagging):
            if not client.closed:
                self.check_output(client)
            if client.closed or not client.output_bytes:
                lagging.discard(client)

    def check_output(self, client: Client) -> None:
        """Close the client if client-output-buffer-limit is exceeded."""
        if self._server.output_limits.is_exceeded(client):
            LOGGER.warning(
                "closing client %s: %d bytes wait for it", client.address, client.output_bytes
            )
            self.output_limit_closings += 1
            self.kill(client)


def _listens(client: Client) -> bool:
    """Whether a client is silent because it waits for a reply or messages, so it is not idle."""
    waits = client.blocked or client.held_bytes > 0 or client.feed is not None
    return waits or client.monitoring or client.subscribed


def is_loopback(address: str) -> bool:
    """Whether a client's address, with or without port, is of this machine."""
    return address.lstrip("[").startswith(LOOPBACK)
