"""The process of a server and its surroundings: its pid file, its limit of open files, its service
manager, and exceptions of its event loop.

Supervision is the protocol of sd_notify(3): datagrams with lines NAME=value to the socket that
NOTIFY_SOCKET names. Loading may take minutes, so the time that systemd waits for READY is extended
while the server loads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from millstream.errors import StartError
from millstream.memory_reserve import RESERVE
from millstream.server.config.directives import Config
from millstream.server.monitor.failed_handshakes import FAILED_HANDSHAKES, HandshakeError
from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER

SPARE_FILES = 32  # descriptors in addition to the clients': journals, snapshots, log
FILES_MAX = 1_000_000
EXTENSION_S = 60.0
BETWEEN_S = 1.0
BEATS = 4  # in the time after which systemd ends a silent process
Progress = Callable[[int, int], None]


class PidFile:
    """The file at `path`; an empty path means none. As in Redis, a server starts without it when
    it cannot be written: the stock redis.conf names a folder that only root may write to."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._is_written = False

    def write(self) -> None:
        """Write the number of this process."""
        if self._path is None:
            return
        try:
            self._path.write_text(f"{os.getpid()}\n")
        except OSError as problem:
            LOGGER.warning("cannot write the pidfile %s: %s", self._path, problem.strerror)
            return
        self._is_written = True

    def remove(self) -> None:
        """Remove the file that `write` has written."""
        if self._path is not None and self._is_written:
            with contextlib.suppress(OSError):
                self._path.unlink()


def fit_maxclients(config: Config) -> None:
    """Lower maxclients to fit the limit of open files, as Redis does.

    StartError if not even one client fits.
    """
    most = allowed_clients(config.maxclients)
    if most < 1:
        raise StartError(
            f"only {most + SPARE_FILES} files may be open, {SPARE_FILES + 1} are needed;"
            " raise the limit (ulimit -n)"
        )
    if most < config.maxclients:
        LOGGER.warning(
            "only %d files may be open: maxclients is lowered from %d to %d;"
            " raise the limit (ulimit -n) for more",
            most + SPARE_FILES,
            config.maxclients,
            most,
        )
        config.maxclients = most


def raise_file_limit() -> None:
    """Allow as many open files as the hard limit does."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    allowed_clients(FILES_MAX if hard == resource.RLIM_INFINITY else hard)


def allowed_clients(wanted: int) -> int:
    """The number of clients, at most `wanted`, that the limit of open files allows.

    The soft limit is raised as needed, up to the hard limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    files = wanted + SPARE_FILES
    if soft == unlimited or soft >= files:
        return wanted
    allowed = files if hard == unlimited else min(files, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # the kernel's own limit (fs.nr_open)
        allowed = soft
    return allowed - SPARE_FILES


class Supervision:
    """The service manager, or none. `mode` is the directive `supervised`."""

    def __init__(self, mode: str, environment: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        self._next_s = 0.0
        self._progress = (0, 0)
        self._watchdog_s = 0.0  # systemd ends a process that is silent for this time; 0: never
        address = environment.get("NOTIFY_SOCKET", "")
        if mode == "no" or (mode == "auto" and not address):
            return
        if not address.startswith(("/", "@")):
            LOGGER.warning("supervised %s: NOTIFY_SOCKET is not set; systemd is not notified", mode)
            return
        if address.startswith("@"):  # an abstract socket
            address = "\0" + address[1:]
        try:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
            self._socket.connect(address)
        except OSError as problem:
            LOGGER.warning("supervised %s: NOTIFY_SOCKET: %s", mode, problem.strerror)
            self.close()
            return
        of_process = environment.get("WATCHDOG_PID", str(os.getpid()))
        if of_process == str(os.getpid()):
            with contextlib.suppress(ValueError):
                self._watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / 1e6

    @property
    def name(self) -> str:
        """The name of the service manager, for INFO."""
        return "no" if self._socket is None else "systemd"

    def _send(self, *lines: str) -> None:
        if self._socket is not None:
            try:
                self._socket.send("\n".join(lines).encode())
            except OSError as problem:  # the server works without it
                LOGGER.debug("systemd is not notified: %s", problem)

    def progress(self, show: Progress | None) -> Progress:
        """A function for the progress of loading in bytes, which also calls `show`."""

        def note(done: int, total: int) -> None:
            self._progress = (done, total)
            if show is not None:
                show(done, total)

        return note

    def loading(self) -> None:
        """The server is still loading; may be called often."""
        now_s = time.monotonic()
        if self._socket is None or now_s < self._next_s:
            return
        self._next_s = now_s + BETWEEN_S
        done, total = self._progress
        share = f" {100 * done // total} % of {total / 1024**2:.0f} MB" if total else ""
        self._send(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1e6:.0f}", f"STATUS=loading{share}")

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell systemd from now on that the loop runs. The loop itself does it, so that systemd
        ends a process whose loop does not."""
        if self._watchdog_s > 0 and self._socket is not None:
            self._send("WATCHDOG=1")
            loop.call_later(self._watchdog_s / BEATS, self.watch, loop)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """The loop waits for the disk or for a long step on purpose: systemd must not end the
        process."""
        if self._watchdog_s <= 0:
            yield
            return
        self._send("WATCHDOG_USEC=0")
        try:
            yield
        finally:
            self._send(f"WATCHDOG_USEC={self._watchdog_s * 1e6:.0f}", "WATCHDOG=1")

    def lame_duck(self, period_s: int) -> None:
        self._send(
            f"EXTEND_TIMEOUT_USEC={(period_s + EXTENSION_S) * 1e6:.0f}",
            f"STATUS=disconnecting clients for up to {period_s} seconds, then stopping",
        )

    def ready(self, where: str) -> None:
        self._send("READY=1", f"STATUS=listening on {where}")

    def stopping(self) -> None:
        """The server is saving its data, which may take long on a slow disk."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1e6:.0f}", "STATUS=stopping")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class LoopErrors:
    """The exception handler of a loop. A callback that fails may run again in each turn of the
    loop, so that only one exception a second is logged, and the number of the others."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._limit = LineLimit()
        self._is_due = False
        self._loop = loop
        loop.set_exception_handler(self._on_error)

    def _on_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, HandshakeError):
            FAILED_HANDSHAKES.note(str(error), context.get("transport"))
            return
        if isinstance(error, MemoryError):
            RESERVE.give_back()
        with contextlib.suppress(MemoryError):  # the next exception is logged
            more = self._limit.more()
            if more is not None:
                LOGGER.error("%s%s", context["message"], more, exc_info=error)
            elif not self._is_due:
                loop.call_later(self._limit.pause_s, self._tell_left_out)
                self._is_due = True

    def _tell_left_out(self) -> None:
        self._is_due = False
        left_out = self._limit.left_out
        if left_out and self._limit.more() is not None:
            LOGGER.error("%d more exceptions in the event loop were left out", left_out)
