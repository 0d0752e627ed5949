"""The metrics of the gateway over HTTP, on `metrics-port`."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Protocol

from millstream.server.config.directives import Config
from millstream.server.metrics.http import Answer, HttpConnection, Request
from millstream.server.metrics.metric_table import FAMILIES
from millstream.server.metrics.text import CONTENT_TYPE
from millstream.server.monitor.log import LOGGER
from millstream.server.net.sockets import bind_sockets, name_of_socket, start_listening

BACKLOG = 100
CONNECTIONS_MAX = 32
PLAIN = "text/plain; charset=utf-8"


class Sources(Protocol):
    """The numbers of the gateway."""

    node_count: int
    failed: set[int]
    requests: int
    unserved: int

    @property
    def clients(self) -> int: ...

    @property
    def accepted(self) -> int: ...

    @property
    def node_connections(self) -> int: ...

    @property
    def is_stopping(self) -> bool: ...


class GatewayMetrics:
    """Serves the metrics and health checks of a gateway. There are no users here, so there is no
    page with `metrics-auth`, and no TLS."""

    def __init__(self, config: Config, sources: Sources) -> None:
        self._config = config
        self._sources = sources
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self.connections: set[HttpConnection] = set()

    def bind(self) -> None:
        """Take the port. StartError with one sentence."""
        metrics = self._config.metrics
        if metrics.auth or metrics.tls:
            LOGGER.warning(
                "gateway  no metrics: it has no users for metrics-auth, and no TLS for metrics-tls"
            )
            return
        self._sockets = bind_sockets(metrics.bind, metrics.port, "metrics-port")

    async def listen(self) -> None:
        """Accept connections from now on. StartError if another program is listening there."""
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            start_listening(bound, BACKLOG, "metrics-port")
            self._servers.append(
                await loop.create_server(lambda: HttpConnection(self, loop), sock=bound)
            )
        if self._servers:
            where = ", ".join(map(name_of_socket, self._sockets))
            LOGGER.info("metrics  http://%s/metrics", where)

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
        """Call `respond` with the answer to a GET."""
        if request.path == "/metrics":
            parts = [line.encode() for line in _page(self._sources)]
            respond(Answer(HTTPStatus.OK, CONTENT_TYPE, parts))
        elif request.path in ("/healthz", "/readyz"):
            respond(self._health(is_for_requests=request.path == "/readyz"))
        else:
            respond(Answer(HTTPStatus.NOT_FOUND, PLAIN, [b"not found\n"]))

    def _health(self, *, is_for_requests: bool) -> Answer:
        """503 while it stops, and for requests while no node runs."""
        sources = self._sources
        status = "ready" if is_for_requests else "ok"
        if sources.is_stopping:
            status = "stopping"
        elif is_for_requests and len(sources.failed) == sources.node_count:
            status = "no node runs"
        is_good = status in ("ok", "ready")
        code = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
        return Answer(code, "application/json", [json.dumps({"status": status}).encode() + b"\n"])


def _page(sources: Sources) -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    samples = {
        "millstream_gateway_requests_total": sources.requests,
        "millstream_gateway_connections": sources.clients,
        "millstream_gateway_connections_total": sources.accepted,
        "millstream_gateway_node_connections": sources.node_connections,
        "millstream_gateway_unserved_total": sources.unserved,
        "millstream_gateway_nodes_failed": len(sources.failed),
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
    }
    for name, value in samples.items():
        _, kind, meaning = FAMILIES[name]
        yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{name} {value!r}\n"
