"""The HTTP port: what each path answers, and who may connect.

`/metrics` is the page for Prometheus, `/healthz` and `/readyz` are for supervisors and load
balancers. The port is bound before the data is loaded, so that `/readyz` can say that the server is
loading.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from millstream.server.metrics.basic_auth import BasicAuth
from millstream.server.metrics.http import Answer, HttpConnection, Request
from millstream.server.metrics.page import Page, Pages
from millstream.server.metrics.server_series import Sources
from millstream.server.metrics.text import CONTENT_TYPE
from millstream.server.monitor.log import LOGGER
from millstream.server.net.sockets import bind_sockets, name_of_socket, start_listening
from millstream.server.net.tls_contexts import HANDSHAKE_S, make_tls

BACKLOG = 100
CONNECTIONS_MAX = 32
UNAUTHORIZED = b"give the name and password of a user who may run INFO\n"
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
        self._auth = BasicAuth(sources.access)
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
            found = await loop.create_server(
                lambda: HttpConnection(self, loop), sock=bound, **self._tls_options()
            )
            self._servers.append(found)
        if self._servers:
            where = ", ".join(map(name_of_socket, self._sockets))
            scheme = "https" if self._sources.config.metrics.tls else "http"
            LOGGER.info("metrics  %s://%s/metrics", scheme, where)

    def _tls_options(self) -> dict[str, Any]:
        """Arguments that make a server use TLS. Each handshake takes the newest certificate."""
        if not self._sources.config.metrics.tls:
            return {}

        def use_newest(connection: ssl.SSLObject, name: str | None, context: object) -> None:
            newest = self._sources.listeners.wanted_tls
            if newest is not None:
                connection.context = newest.context

        context = make_tls(self._sources.config).context
        context.sni_callback = use_newest
        return {"ssl": context, "ssl_handshake_timeout": HANDSHAKE_S}

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
        path = request.path
        needs_password = path == "/metrics" and self._sources.config.metrics.auth
        if needs_password and not self._auth.allows(request.authorization, request.address):
            respond(Answer(HTTPStatus.UNAUTHORIZED, PLAIN, [UNAUTHORIZED]))
        elif path == "/metrics":
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
