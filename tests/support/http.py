"""A small HTTP client for tests, and the metrics that a page has."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Mapping
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

TIMEOUT_S = 20.0
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Response(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


def fetch(
    port: int,
    path: str,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Response(answer.status, found, answer.read())
    finally:
        connection.close()


def send_raw(port: int, data: bytes) -> bytes:
    """Everything that a server answers to these bytes until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as sock:
        sock.sendall(data)
        parts = []
        try:
            while part := sock.recv(1 << 16):
                parts.append(part)
        except ConnectionResetError:
            pass
        return b"".join(parts)


def series_of(text: str) -> Series:
    """The value of each sample by its name and labels. A sample must not come twice."""
    found: Series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            place = sample.name, frozenset(sample.labels.items())
            assert place not in found, place
            found[place] = sample.value
    return found


def scrape(port: int) -> Series:
    answer = fetch(port, "/metrics")
    assert answer.status == 200
    return series_of(answer.body.decode())


def value(series: Series, name: str, **labels: str) -> float | None:
    return series.get((name, frozenset(labels.items())))
