"""The metrics of `millstream cdc run`, from the reports of the sources' processes."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from millstream.cdc import CdcError
from millstream.cdc.sql import read_lsn

PREFIX = "millstream_cdc_"


class MetricsError(CdcError):
    """The metrics cannot be served; the text says where and why."""


class Reports(Collector):
    """The last report of each source, as metrics. Counters begin again with each process."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def set_report(self, source: str, report: dict[str, Any]) -> None:
        with self._lock:
            self._reports[source] = report

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            reports = dict(self._reports)
        yield from _counters(reports)
        yield from _gauges(reports)


def _counters(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    changes = CounterMetricFamily(
        f"{PREFIX}changes",
        "Changes that were read from the source, again after a lost connection.",
        labels=["source", "table", "op"],
    )
    repeated = CounterMetricFamily(
        f"{PREFIX}repeated", "Entries that were already in millstream.", labels=["source"]
    )
    rows = CounterMetricFamily(
        f"{PREFIX}copied_rows", "Rows copied from the source.", labels=["source", "table"]
    )
    sizes = CounterMetricFamily(
        f"{PREFIX}copied_bytes", "Bytes of the rows copied.", labels=["source", "table"]
    )
    for source, report in reports.items():
        for table, counts in report["changes"].items():
            for op, count in counts.items():
                changes.add_metric([source, table, op], count)
        repeated.add_metric([source], report["repeated"])
        for table, count in report["copied_rows"].items():
            rows.add_metric([source, table], count)
        for table, count in report["copied_bytes"].items():
            sizes.add_metric([source, table], count)
    yield from (changes, repeated, rows, sizes)


def _gauges(reports: Mapping[str, Mapping[str, Any]]) -> Iterator[Metric]:
    lag = GaugeMetricFamily(
        f"{PREFIX}lag_bytes",
        "WAL of the source that a stage has not confirmed.",
        labels=["source", "stage"],
    )
    heard = GaugeMetricFamily(
        f"{PREFIX}heartbeat_seconds", "Time since the source's last message.", labels=["source"]
    )
    retained = GaugeMetricFamily(
        f"{PREFIX}retained_bytes", "WAL that the source keeps for the slot.", labels=["source"]
    )
    for source, report in reports.items():
        slot = report["slot"] or {}
        stages = {"slot": slot.get("confirmed_lsn"), "millstream": report["durable_lsn"]}
        for stage, lsn in stages.items():
            if lsn is not None and report["source_lsn"] is not None:
                lag_bytes = read_lsn(report["source_lsn"]) - read_lsn(lsn)
                lag.add_metric([source, stage], max(0, lag_bytes))
        if report["heard"] is not None:
            heard.add_metric([source], max(0.0, time.time() - report["heard"]))
        if slot.get("retained_bytes") is not None:
            retained.add_metric([source], slot["retained_bytes"])
    yield from (lag, heard, retained)


@dataclass(frozen=True)
class Served:
    """A running /metrics."""

    server: WSGIServer
    thread: threading.Thread

    @property
    def port(self) -> int:
        return int(self.server.server_port)

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def serve_registry(address: str, registry: CollectorRegistry) -> Served:
    """Serve /metrics at `host:port`. MetricsError if that is not possible."""
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry)
    except (OSError, ValueError, OverflowError) as error:
        raise MetricsError(f"metrics cannot be served at {address!r}: {error}") from None
    return Served(server, thread)
