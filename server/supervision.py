"""Messages to systemd (`supervised systemd`): the server is loading, ready, stopping.

This is the protocol of sd_notify(3): datagrams with lines NAME=value to the socket that
NOTIFY_SOCKET names. Loading may take minutes, so the time that systemd waits for READY is extended
while the server loads.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping

from millstream.server.monitor.log import LOGGER

EXTENSION_S = 60.0
BETWEEN_S = 1.0
Progress = Callable[[int, int], None]


class Supervision:
    """The service manager, or none. `mode` is the directive `supervised`."""

    def __init__(self, mode: str, environment: Mapping[str, str] = os.environ) -> None:
        self._socket: socket.socket | None = None
        self._next_s = 0.0
        self._progress = (0, 0)
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

    def ready(self, where: str) -> None:
        self._send("READY=1", f"STATUS=listening on {where}")

    def stopping(self) -> None:
        """The server is saving its data, which may take long on a slow disk."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1e6:.0f}", "STATUS=stopping")

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
