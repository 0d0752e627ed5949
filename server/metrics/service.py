"""The HTTP port: what each path answers, and who may connect.

`/metrics` is the page for Prometheus, `/healthz` and `/readyz` are for supervisors and load
balancers. The port is bound before the data is loaded, so that `/readyz` can say that the server is
loading.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from millstream.server.metrics.basic_auth import BasicAuth
from millstream.server.metrics.http import Answer, Request
from millstream.server.metrics.http_port import PLAIN, HttpPort, status_answer
from millstream.server.metrics.page import Page, Pages
from millstream.server.metrics.server_series import Sources
from millstream.server.metrics.text import CONTENT_TYPE
from millstream.server.net.tls_contexts import HANDSHAKE_S, make_tls

UNAUTHORIZED = b"give the name and password of a user who may run INFO\n"
HTML = "text/html; charset=utf-8"
INDEX = b"""<!doctype html><html lang="en"><title>millstream</title><h1>millstream</h1>
<ul><li><a href="/metrics">/metrics</a><li><a href="/healthz">/healthz</a>
<li><a href="/readyz">/readyz</a></ul></html>
"""


class Metrics(HttpPort):
    """Serves the metrics and health checks of a server that has a `metrics-port`."""

    def __init__(self, sources: Sources, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(sources.config)
        self._sources = sources
        self.pages = Pages(sources, loop)
        self._auth = BasicAuth(sources.access)

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
            return status_answer(HTTPStatus.SERVICE_UNAVAILABLE, "stopping")
        return status_answer(HTTPStatus.OK, "ok")

    def _readiness(self) -> Answer:
        """200, or 503 with the reason: stopping, a lame duck, loading, or why commands are
        refused."""
        sources, unready = self._sources, HTTPStatus.SERVICE_UNAVAILABLE
        if sources.stopping.is_set():
            return status_answer(unready, "stopping")
        if sources.process.is_lame_duck:
            return status_answer(unready, "lame duck")
        if sources.persistence.loading or sources.executor.loading:
            loader = sources.persistence.data_loading.loader
            return status_answer(
                unready, "loading", loaded_bytes=loader.done_bytes, total_bytes=loader.total_bytes
            )
        if sources.executor.admission.stale is not None:
            return status_answer(unready, "stale", reason=sources.executor.admission.stale)
        reason = sources.why_writes_are_refused()
        if reason is not None:
            return status_answer(unready, "writes refused", reason=reason)
        return status_answer(HTTPStatus.OK, "ready")


def _page_answer(page: Page | None) -> Answer:
    if page is None:
        problem = b"the page could not be built; the log says why\n"
        return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, PLAIN, [problem])
    return Answer(HTTPStatus.OK, CONTENT_TYPE, page)
