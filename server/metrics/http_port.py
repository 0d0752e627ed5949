"""The sockets of `metrics-port` and their connections, for a server and for the gateway."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from millstream.server.config.directives import Config
from millstream.server.metrics.http import Answer, HttpConnection, Request
from millstream.server.monitor.log import LOGGER
from millstream.server.net.sockets import bind_sockets, name_of_socket, start_listening

BACKLOG = 100
CONNECTIONS_MAX = 32
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"


class HttpPort:
    """Binds and listens; a subclass answers. There is TLS if its options for it are not empty."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self.connections: set[HttpConnection] = set()

    def bind(self) -> None:
        """Take the port. StartError with one sentence."""
        metrics = self._config.metrics
        self._sockets = bind_sockets(metrics.bind, metrics.port, "metrics-port")

    async def listen(self) -> None:
        """Accept connections from now on. StartError if another program is listening there."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            start_listening(bound, BACKLOG, "metrics-port")
            found = await loop.create_server(
                lambda: HttpConnection(self, loop), sock=bound, **self._tls_options()
            )
            self._servers.append(found)
        if self._servers:
            where = ", ".join(map(name_of_socket, self._sockets))
            scheme = "https" if self._config.metrics.tls else "http"
            LOGGER.info("metrics  %s://%s/metrics", scheme, where)

    def _tls_options(self) -> dict[str, Any]:
        """Arguments that make a server use TLS."""
        return {}

    def close(self) -> None:
        """Accept no more connections and close those that are open."""
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.abort()

    @property
    def is_full(self) -> bool:
        return len(self.connections) >= CONNECTIONS_MAX

    def answer(self, request: Request, respond: Callable[[Answer], object]) -> None:
        """Call `respond` with the answer to a GET, now or later."""
        raise NotImplementedError


def status_answer(code: HTTPStatus, status: str, **facts: object) -> Answer:
    """The answer of a health check."""
    return Answer(code, JSON, [json.dumps({"status": status, **facts}).encode() + b"\n"])
