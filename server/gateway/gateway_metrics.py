"""The metrics of the gateway over HTTP, on `metrics-port`."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Protocol

from millstream.server.config.directives import Config
from millstream.server.gateway.machine_nodes import Nodes
from millstream.server.metrics.http import Answer, Request
from millstream.server.metrics.http_port import PLAIN, HttpPort, status_answer
from millstream.server.metrics.metric_table import FAMILIES
from millstream.server.metrics.text import CONTENT_TYPE
from millstream.server.monitor.log import LOGGER


class Sources(Protocol):
    """The numbers of the gateway."""

    nodes: Nodes
    requests: int
    unserved: int

    @property
    def clients(self) -> int: ...

    @property
    def accepted(self) -> int: ...

    @property
    def retries(self) -> int: ...

    @property
    def node_connections(self) -> int: ...

    @property
    def is_stopping(self) -> bool: ...


class GatewayMetrics(HttpPort):
    """Serves the metrics and health checks of a gateway. There are no users here, so there is no
    page with `metrics-auth`, and no TLS."""

    def __init__(self, config: Config, sources: Sources) -> None:
        super().__init__(config)
        self._sources = sources

    def bind(self) -> None:
        """Take the port. StartError with one sentence."""
        metrics = self._config.metrics
        if metrics.auth or metrics.tls:
            LOGGER.warning(
                "gateway  no metrics: it has no users for metrics-auth, and no TLS for metrics-tls"
            )
            return
        super().bind()

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
        elif is_for_requests and sources.nodes.failed.issuperset(sources.nodes.all):
            status = "no node runs"
        is_good = status in ("ok", "ready")
        code = HTTPStatus.OK if is_good else HTTPStatus.SERVICE_UNAVAILABLE
        return status_answer(code, status)


def _page(sources: Sources) -> Iterator[str]:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    samples = {
        "millstream_gateway_requests_total": sources.requests,
        "millstream_gateway_connections": sources.clients,
        "millstream_gateway_connections_total": sources.accepted,
        "millstream_gateway_node_connections": sources.node_connections,
        "millstream_gateway_unserved_total": sources.unserved,
        "millstream_gateway_retries_total": sources.retries,
        "millstream_gateway_nodes_failed": len(sources.nodes.failed & {*sources.nodes.all}),
        "millstream_gateway_etcd_errors_total": sources.nodes.etcd_errors,
        "process_cpu_seconds_total": usage.ru_utime + usage.ru_stime,
    }
    for name, value in samples.items():
        _, kind, meaning = FAMILIES[name]
        yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n{name} {value!r}\n"
