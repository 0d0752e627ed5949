"""A server's process after the configuration is known: the event loop, the signals, and the end."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any, NoReturn

import uvloop

from millstream.server.app import Server
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import prepare_directory
from millstream.server.monitor import log

ENDING = (signal.SIGTERM, signal.SIGINT)


def serve_until_stopped(config: Config, file: Path | None) -> bool:
    """Whether all data is on the disk at the end. `file` is the configuration file, which CONFIG
    REWRITE changes."""
    if config.logfile:
        prepare_directory(config.dir)  # a relative name is in it
    log.configure(config.loglevel, config.located(config.logfile), config.log_format)
    # With io_uring, libuv makes a costlier system call for each new connection. uvloop 0.23 uses it
    # in any case.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, file))


async def _serve(config: Config, file: Path | None) -> bool:
    server = Server(config, config_file=file)

    def on_signal(number: signal.Signals) -> None:
        if server.stopping.is_set():
            _give_up(server)
        server.shutdown.stop_by_signal(number.name)

    for number in ENDING:
        server.loop.add_signal_handler(number, on_signal, number)
    server.loop.set_exception_handler(_log_unhandled)
    server.loop.add_signal_handler(signal.SIGHUP, server.reload_files)
    try:
        await server.start()
        await server.stopping.wait()
        _give_up_at_next_signal(server)
        saved = await server.stop()
        for number in ENDING:  # Python restores the default at its end
            signal.signal(number, signal.SIG_IGN)
        return saved
    finally:
        server.pid_file.remove()


def _log_unhandled(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an exception of a callback, which asyncio would write to standard error."""
    log.LOGGER.error("%s", context["message"], exc_info=context.get("exception"))


def _give_up_at_next_signal(server: Server) -> None:
    """End the process at the next signal. A stop may wait for a slow disk, which blocks the loop. A
    thread receives the signal, because the main thread may be in a system call that does not
    return."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for number in ENDING:
        server.loop.remove_signal_handler(number)
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(writer)

    def wait() -> None:
        os.read(reader, 1)
        if not server.has_stopped:
            _give_up(server)

    threading.Thread(target=wait, name="millstream-signals", daemon=True).start()


def _give_up(server: Server) -> NoReturn:
    """End the process immediately, and log which data is not on the disk."""
    try:
        server.persistence.unsynced.tell_given_up()
    finally:
        os._exit(1)
