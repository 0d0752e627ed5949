"""The HTTP port: what each path answers, and who may connect.

`/metrics` is the page for Prometheus, `/healthz` and `/readyz` are for supervisors and load
balancers. The port is bound before the data is loaded, so that `/readyz` can say that the server is
loading.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from http import HTTPStatus

from millstream.server.metrics.http import Answer, HttpConnection
from millstream.server.metrics.page import Page, Pages
from millstream.server.metrics.server_series import Sources
from millstream.server.metrics.text import CONTENT_TYPE
from millstream.server.monitor.log import LOGGER
from millstream.server.net.sockets import bind_sockets, name_of_socket, start_listening

BACKLOG = 100
CONNECTIONS_MAX = 32
JSON, PLAIN = "application/json", "text/plain; charset=utf-8"
HTML = "text/html; charset=utf-8"
INDEX = b"""<!doctype html><html lang="en"><title>millstream</title><h1>millstream</h1>
<ul><li><a href="/metrics">/metrics</a><li><a href="/healthz">/healthz</a>
<li><a href="/readyz">/readyz</a></ul></html>
"""


class Metrics:
    """Serves the metrics and health checks of a server that has a `metrics-port`."""

    def __init__(self, sources: Sources, loop: asyncio.AbstractEventLoop) -> None:
        self._sources = sources
        self._loop = loop
        self.port = sources.config.metrics.port
        self.pages = Pages(sources, loop)
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self.connections: set[HttpConnection] = set()

    def bind(self) -> None:
        """Take the port. StartError with one sentence."""
        self._sockets = bind_sockets(self._sources.config.metrics.bind, self.port, "metrics-port")

    async def listen(self) -> None:
        """Accept connections from now on. StartError if another program is listening there."""
        loop = self._loop
        for bound in self._sockets:
            start_listening(bound, BACKLOG, "metrics-port")
            found = await loop.create_server(lambda: HttpConnection(self, loop), sock=bound)
            self._servers.append(found)
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

    def answer(self, path: str, respond: Callable[[Answer], object]) -> None:
        """Call `respond` with the answer to a GET, now or later."""
        if path == "/metrics":
            self.pages.request(lambda page: respond(_page_answer(page)))
        elif path == "/healthz":
            respond(self._health())
        elif path == "/readyz":
            respond(self._readiness())
        elif path == "/":
            respond(Answer(HTTPStatus.OK, HTML, [INDEX]))
        else:
            respond(Answer(HTTPStatus.NOT_FOUND, PLAIN, [b"not found\n"]))

    def _health(self) -> Answer:
        """200 while the loop runs and the server is not stopping."""
        if self._sources.stopping.is_set():
            return _status(HTTPStatus.SERVICE_UNAVAILABLE, "stopping")
        return _status(HTTPStatus.OK, "ok")

    def _readiness(self) -> Answer:
        """200, or 503 with the reason: stopping, a lame duck, loading, or why commands are
        refused."""
        sources, unready = self._sources, HTTPStatus.SERVICE_UNAVAILABLE
        if sources.stopping.is_set():
            return _status(unready, "stopping")
        if sources.process.is_lame_duck:
            return _status(unready, "lame duck")
        if sources.persistence.loading or sources.executor.loading:
            loader = sources.persistence.data_loading.loader
            return _status(
                unready, "loading", loaded_bytes=loader.done_bytes, total_bytes=loader.total_bytes
            )
        if sources.executor.admission.stale is not None:
            return _status(unready, "stale", reason=sources.executor.admission.stale)
        reason = sources.why_writes_are_refused()
        if reason is not None:
            return _status(unready, "writes refused", reason=reason)
        return _status(HTTPStatus.OK, "ready")


def _status(code: HTTPStatus, status: str, **facts: object) -> Answer:
    return Answer(code, JSON, [json.dumps({"status": status, **facts}).encode() + b"\n"])


def _page_answer(page: Page | None) -> Answer:
    if page is None:
        problem = b"the page could not be built; the log says why\n"
        return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, [problem])
    return Answer(HTTPStatus.OK, CONTENT_TYPE, page)
