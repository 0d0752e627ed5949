"""A server's process after the configuration is known: the event loop, and the end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import uvloop

from millstream.memory_reserve import RESERVE, share_heap
from millstream.server.app import Server
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import prepare_directory
from millstream.server.loop_errors import LoopErrors
from millstream.server.monitor import log
from millstream.server.signals import Signals


def serve_until_stopped(config: Config, file: Path | None) -> bool:
    """Whether all data is on the disk at the end. `file` is the configuration file, which CONFIG
    REWRITE changes."""
    if config.logfile:
        prepare_directory(config.dir)  # a relative name is in it
    log.configure(config.loglevel, config.located(config.logfile), config.log_format)
    share_heap()
    # With io_uring, libuv makes a costlier system call for each new connection. uvloop 0.23 uses it
    # in any case.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, file))


async def _serve(config: Config, file: Path | None) -> bool:
    server = Server(config, config_file=file)
    LoopErrors(server.loop)
    signals = Signals(server, server.loop)
    signals.start()
    RESERVE.take(server.executor.eviction_work.refuse_all)
    try:
        await server.start()
        await server.stopping.wait()
        signals.begin_stop()
        saved = await server.stop()
        signals.end()
        return saved
    finally:
        server.pid_file.remove()
