"""A TCP proxy that holds back or damages the bytes of one direction: a confirmation that never
arrives, a reply that is lost, a connection that is open at one end only."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from .waiting import wait_until


class Direction:
    """One direction of all connections. `held` is set when bytes have been held back."""

    def __init__(self) -> None:
        self.held = threading.Event()
        self._open = threading.Event()
        self._open.set()
        self._pattern = b""
        self._left_bytes: int | None = None
        self._damaged = b""

    def damage(self, pattern: bytes) -> None:
        """Flip a bit of the next piece with `pattern`, in the pattern."""
        self._damaged = pattern

    def as_sent(self, data: bytes) -> bytes:
        """A piece as it arrives."""
        if not self._damaged or self._damaged not in data:
            return data
        place = data.index(self._damaged)
        self._damaged = b""
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    def hold(self, pattern: bytes = b"", after_bytes: int | None = None) -> None:
        """Hold back everything on a connection from a piece with `pattern` on, or everything on all
        connections after this number of bytes."""
        self.held.clear()
        self._pattern, self._left_bytes = pattern, after_bytes
        self._open.clear()

    def release(self) -> None:
        """Pass everything, including held bytes."""
        self._open.set()

    def wait_held(self) -> None:
        wait_until(self.held.is_set, what="bytes to hold back", deadline_s=30)

    def pass_piece(self, data: bytes, is_held: bool) -> bool:
        """Wait until a piece may pass; whether the connection is held from now on."""
        if self._open.is_set():
            return False
        if not is_held and self._left_bytes is not None:
            self._left_bytes -= len(data)
            is_held = self._left_bytes < 0
        elif not is_held:
            is_held = self._pattern in data
        if is_held:
            self.held.set()
            self._open.wait()
        return is_held


class Gate:
    """Listens on its own port and passes bytes to `target`, a port of this machine."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.requests = Direction()
        self.replies = Direction()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection; held bytes are lost."""
        for one in self._sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._sockets = []

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self.requests.release()
        self.replies.release()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            self._sockets += [client, server]
            ways = [(client, server, self.requests), (server, client, self.replies)]
            for way in ways:
                threading.Thread(target=_pass, args=way, daemon=True).start()


def _pass(reader: socket.socket, writer: socket.socket, direction: Direction) -> None:
    is_held = False
    with suppress(OSError):
        while data := reader.recv(1 << 14):
            is_held = direction.pass_piece(data, is_held)
            writer.sendall(direction.as_sent(data))
    for one in (reader, writer):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
