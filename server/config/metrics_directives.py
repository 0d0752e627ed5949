"""The directives of the metrics' HTTP port."""

from __future__ import annotations

from functools import partial

from millstream.server.config.apply import READ
from millstream.server.config.kinds import ADDRESSES, YES_NO, Kind, directive, integer

metrics = partial(directive, section="Metrics")
STREAMS_LIMIT = 100_000
PATTERNS = Kind(
    lambda text, current: tuple(text.split()), " ".join, "glob patterns of keys", many=True
)


class MetricsDirectives:
    """`Config.metrics`: the port, and the streams."""

    PART, PREFIX = "metrics", "metrics_"

    port: int = metrics(
        0, integer(0, 65535),
        "HTTP port of the metrics and health checks; 0: none",
    )  # fmt: skip
    tls: bool = metrics(
        False, YES_NO, "serve the metrics over TLS, with the certificate of tls-port"
    )
    auth: bool = metrics(
        False, YES_NO,
        "`/metrics` needs the name and password of a user who may run INFO (HTTP basic "
        "authentication)", apply=READ,
    )  # fmt: skip
    bind: tuple[str, ...] = metrics(
        ("127.0.0.1",), ADDRESSES, "addresses on which the metrics are served"
    )
    streams: tuple[str, ...] = metrics(
        ("*",), PATTERNS,
        "streams that have their own metrics, in all databases; empty: none", apply=READ,
    )  # fmt: skip
    streams_max: int = metrics(
        1000, integer(0, STREAMS_LIMIT),
        "maximum number of streams that have their own metrics, the first ones in the order of "
        "their keys, and of ten times as many groups", apply=READ,
    )  # fmt: skip
    consumers: bool = metrics(
        False, YES_NO,
        "metrics of each consumer, too; at most ten times as many consumers as groups", apply=READ,
    )  # fmt: skip
