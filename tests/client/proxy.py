"""A proxy between a client and a server that breaks connections.

It cuts each connection after a random number of bytes, swallows the reply of a chosen command, or
lets nothing pass for a while. The server has run the requests that it received.
"""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from random import Random


class Proxy:
    """Listens on its own port, or on a Unix socket, and passes bytes to `port`."""

    def __init__(self, port: int, seed: int = 0, path: Path | None = None) -> None:
        self.target = port
        self.cutting: tuple[int, int] | None = None
        """The least and the greatest number of reply bytes that a connection passes, or None."""
        self.swallowing: list[bytes] = []
        """Words of requests. The reply to the next request with the first of them is swallowed."""
        self.swallowed = 0
        self.connections = 0
        self._random = Random(seed)
        self._lock = threading.Lock()
        if path is None:
            self._listener = socket.create_server(("127.0.0.1", 0))
            self.port: int = self._listener.getsockname()[1]
        else:
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind(str(path))
            self._listener.listen()
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def cut_all(self) -> None:
        """Cut every connection that is open."""
        with self._lock:
            for sock in self._open:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_all()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=60)
            except OSError:
                client.close()
                continue
            with self._lock:
                self.connections += 1
                self._open |= {client, server}
                limit = None if self.cutting is None else self._random.randint(*self.cutting)
            link = _Link(self, client, server, limit)
            threading.Thread(target=link.pass_requests, daemon=True).start()
            threading.Thread(target=link.pass_replies, daemon=True).start()

    def wants_to_swallow(self, request: bytes) -> bool:
        with self._lock:
            if self.swallowing and self.swallowing[0] in request:
                self.swallowing.pop(0)
                return True
        return False

    def forget(self, *sockets: socket.socket) -> None:
        with self._lock:
            self._open -= set(sockets)
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()


class _Link:
    """One connection through the proxy."""

    def __init__(
        self, proxy: Proxy, client: socket.socket, server: socket.socket, limit: int | None
    ) -> None:
        self.proxy, self.client, self.server, self.left = proxy, client, server, limit
        self.swallow = False

    def pass_requests(self) -> None:
        with suppress(OSError):
            while data := self.client.recv(1 << 16):
                if self.proxy.wants_to_swallow(data):
                    self.swallow = True
                self.server.sendall(data)
        with suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)

    def pass_replies(self) -> None:
        with suppress(OSError):
            while data := self.server.recv(1 << 16):
                if self.swallow:
                    self.proxy.swallowed += 1
                    break
                if self.left is not None:
                    data, self.left = data[: self.left], self.left - len(data)
                self.client.sendall(data)
                if self.left is not None and self.left <= 0:
                    break
        self.proxy.forget(self.client, self.server)
