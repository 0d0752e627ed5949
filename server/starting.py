"""The start of a server: loads its data while clients get LOADING, and logs what was loaded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream import __version__
from millstream.server.durability.data_loading import without_collections
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.monitor import log
from millstream.server.monitor.log import LOGGER
from millstream.storage.capture.restored_times import continue_times, restart_leases
from millstream.storage.files.snapshot_format import zstd

if TYPE_CHECKING:
    from millstream.server.app import Server

LOADING_TURN_S = 0.005

PROMISES = {
    "always": "replies are sent when the journal is on disk; a crash loses no acknowledged write",
    "everysec": "the journal is synced once a second; a crash of the machine loses about a second",
    "no": "the operating system decides when the journal is synced",
}


class Starting:
    """One start of a server."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def load(self) -> bool:
        """Load the data while clients get LOADING; False when the server was stopped meanwhile."""
        server = self._server
        report = LoadReport()
        slices = server.persistence.load_slices(
            report, server.supervision.progress(log.progress_line())
        )
        server.keyspace.set_time(server.now_ms(), server.steady_ms())
        server.keyspace.expiring = False  # the journal contains the expiries
        server.executor.loading = True
        with without_collections(), contextlib.closing(slices):
            next(slices)  # locks the directory
            await server.listeners.listen()
            if server.metrics is not None:
                await server.metrics.listen()
            server.pid_file.write()
            if not await self._in_turns(slices):
                LOGGER.info("stopped while loading: nothing was changed")
                return False
        server.keyspace.expiring = True
        self._continue_clock()
        server.settings.set_appendonly()
        server.executor.loading = False  # timers of loaded groups run without any client
        self._tell_loaded(report)
        return True

    async def _in_turns(self, slices: Iterator[None]) -> bool:
        """Run all slices, and yield to the event loop every few milliseconds."""
        server = self._server
        end_s = time.perf_counter() + LOADING_TURN_S
        for _ in slices:
            if time.perf_counter() >= end_s:
                server.supervision.loading()
                await asyncio.sleep(0)
                if server.stopping.is_set():
                    return False
                end_s = time.perf_counter() + LOADING_TURN_S
        return True

    def _continue_clock(self) -> None:
        """Continue the steady clock after the latest recorded time. Retries and idle times then
        continue even if the wall clock went back between two starts. Leases restart."""
        server = self._server
        newest_ms = server.keyspace.newest_steady_ms
        if server.steady_clock is not None and newest_ms > server.steady_clock.now_ms():
            server.steady_clock.continue_from(newest_ms)
            continue_times(server.keyspace, server.steady_clock.now_ms())
        restart_leases(server.keyspace, server.steady_ms())

    def _tell_loaded(self, report: LoadReport) -> None:
        server = self._server
        keys = sum(map(len, server.keyspace.databases))
        folder = server.config.dir.resolve()
        LOGGER.info(
            "data     %s: %s, loaded in %.2f seconds",
            folder,
            "1 key" if keys == 1 else f"{keys} keys",
            report.seconds,
            extra={"facts": {"dir": str(folder), "keys": keys, "load_seconds": report.seconds}},
        )

    def tell_ready(self) -> None:
        """Log that the server is ready, and how durable its data is."""
        server = self._server
        where = server.listeners.described()
        facts = {"version": __version__, "port": server.port, "pid": os.getpid()}
        if server.config.appendonly:
            mode = server.config.appendfsync
            LOGGER.info("journal  appendfsync %s: %s", mode, PROMISES[mode])
        else:
            LOGGER.warning("journal  off: a crash loses everything after the last snapshot")
        for doubt in server.settings.doubts():
            LOGGER.warning("config   %s", doubt)
        LOGGER.info(
            "ready    millstream %s listens on %s (process %d)",
            __version__, where, os.getpid(),
            extra={"facts": facts},
        )  # fmt: skip
        server.supervision.ready(where)
        server.loop.call_later(1, zstd)  # the first snapshot should not wait for it
