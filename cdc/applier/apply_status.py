"""The reports of `apply` about itself: in millstream every second, and as metrics."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary

from millstream.cdc.applier.apply_jobs import JobOutcome
from millstream.cdc.applier.planning import Batch
from millstream.cdc.applier.source_views import SourceView
from millstream.cdc.config import TableKey
from millstream.cdc.metrics import PREFIX
from millstream.cdc.sql import lsn_text
from millstream.cdc.streams.key_names import ALIVE_S, apply_alive
from millstream.pipeline.server_connection import Address, ServerConnection, ServerError

log = logging.getLogger("millstream.cdc.apply")

EVERY_S = 1.0


class ApplyStatus:
    """The state of `apply`, written by the driver and read by the thread that reports it."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.stopped: dict[TableKey, str] = {}
        self._lock = threading.Lock()
        self.is_running = False
        self._rows = 0
        self._copied: dict[TableKey, int] = {}
        self._warnings: dict[TableKey, list[str]] = {}
        self._sources: dict[str, dict[str, Any]] = {}
        self._planned: dict[str, tuple[SourceView, int, bool]] = {}
        self.registry = CollectorRegistry()
        table = ["source", "table"]
        self._applied_total = Counter(
            f"{PREFIX}applied", "Changes applied.", table, registry=self.registry
        )
        self._batch_seconds = Summary(
            f"{PREFIX}batch_seconds", "Duration of a batch.", registry=self.registry
        )
        self._stopped = Gauge(
            f"{PREFIX}stopped", "1 for a stopped table.", table, registry=self.registry
        )
        self._lag_bytes = Gauge(
            f"{PREFIX}lag_bytes",
            "WAL between the durable LSN and the applied one.",
            ["source", "stage"],
            registry=self.registry,
        )
        self._lag_seconds = Gauge(
            f"{PREFIX}lag_seconds",
            "Age of the newest change in millstream while changes have not been applied.",
            ["source"],
            registry=self.registry,
        )

    # ------------------------------------------------------------ the driver's side

    def locked(self, is_mine: bool) -> None:
        """Record whether this `apply` has the lock. Without it, another one reports."""
        self.is_running = is_mine

    def planned(self, views: Sequence[SourceView], batch: Batch) -> None:
        """A batch is about to be applied."""
        stopped = {k: one.error or "" for k, one in batch.offsets.items() if one.state == "stopped"}
        self.stopped = {**stopped, **batch.stops}
        for key in batch.offsets:
            self._stopped.labels(f"{key[0]}:{key[1]}", key[2]).set(key in self.stopped)
        self._planned = {}
        for view in views:
            cut = batch.cuts.get(view.source.name)
            if cut is not None:
                reached = view.cut_lsn if cut.lsn == view.newest_cut else cut.lsn
                self._planned[view.source.name] = (view, reached or 0, cut.is_whole)

    def reached(self) -> None:
        """The planned batch has been applied."""
        for name, (view, lsn, is_whole) in self._planned.items():
            lag_s = 0.0
            if view.cut_at is not None and view.cut_lsn != lsn:
                time = datetime.fromisoformat(view.cut_at)
                lag_s = (datetime.now(UTC) - time).total_seconds()
            self._lag_seconds.labels(name).set(lag_s)
            self._lag_bytes.labels(name, "destination").set(max(0, (view.cut_lsn or lsn) - lsn))
            with self._lock:
                self._sources[name] = {"applied_lsn": lsn_text(lsn) if is_whole and lsn else None}
        self._planned = {}

    def batch(self, seconds: float) -> None:
        self._batch_seconds.observe(seconds)

    def applied(self, outcome: JobOutcome) -> None:
        """A worker's outcome."""
        key = outcome.key
        if outcome.error is not None:
            self.stopped[key] = outcome.error
        elif not outcome.is_stale:
            self.stopped.pop(key, None)
        self._applied_total.labels(f"{key[0]}:{key[1]}", key[2]).inc(outcome.applied)
        with self._lock:
            self._rows += outcome.applied
            if not outcome.is_stale:
                self._warnings[key] = list(outcome.warnings)
            if outcome.rows:
                self._copied[key] = self._copied.get(key, 0) + outcome.rows

    # ------------------------------------------------------------ the reporter's side

    def to_json(self) -> str:
        """The contents of `cdc:apply:alive`."""
        with self._lock:
            tables = {
                f"{database}:{sid} {table}": warnings
                for (database, sid, table), warnings in self._warnings.items()
                if warnings
            }
            values = {
                "running": True,
                "problem": self.problem,
                "rows": self._rows,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "sources": self._sources,
                "warnings": tables,
            }
            return json.dumps(values, ensure_ascii=False)


class Reporter:
    """A thread that writes the status every second."""

    def __init__(self, address: Address, prefix: str, status: ApplyStatus) -> None:
        self._address = address
        self._key = apply_alive(prefix)
        self._status = status
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._report, name="status", daemon=True)

    def __enter__(self) -> Reporter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(5)

    def _report(self) -> None:
        server: ServerConnection | None = None
        while True:
            try:
                server = server or self._address.open()
                if self._status.is_running:
                    text = self._status.to_json()
                    server.call("SET", self._key, text, "EX", ALIVE_S)
            except ServerError as error:
                log.debug("the status could not be reported: %s", error)
                if server is not None:
                    server.close()
                server = None
            if self._ended.wait(EVERY_S):
                break
        if server is not None:
            if self._status.is_running:
                self._remove(server)
            server.close()

    def _remove(self, server: ServerConnection) -> None:
        try:
            server.call("DEL", self._key)
        except ServerError as error:
            log.debug("the status could not be removed: %s", error)
