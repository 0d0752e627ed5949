"""A TCP proxy in front of PostgreSQL that can hold back the replies to chosen requests."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

PIECE_BYTES = 1 << 16


class Proxy:
    """Passes connections on to a port of this machine. Use it in a `with` block."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._wanted: bytes | None = None
        self._held = threading.Event()

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.break_all()

    def break_all(self) -> None:
        """Close every connection."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    @contextlib.contextmanager
    def holding_replies_to(self, word: bytes) -> Iterator[threading.Event]:
        """From the first request with this word on, no reply on its connection is passed on. The
        event is set when there was one; at the end of the block, all connections are broken."""
        self._held.clear()
        self._wanted = word
        try:
            yield self._held
        finally:
            self._wanted = None
            self.break_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            with self._lock:
                self._sockets |= {client, server}
            is_mute = threading.Event()
            for source, sink, is_request in ((client, server, True), (server, client, False)):
                arguments = (source, sink, is_request, is_mute)
                threading.Thread(target=self._pass, args=arguments, daemon=True).start()

    def _pass(
        self,
        source: socket.socket,
        sink: socket.socket,
        is_request: bool,
        is_mute: threading.Event,
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if is_request and self._wanted is not None and self._wanted in piece:
                    is_mute.set()
                    self._held.set()
                if is_request or not is_mute.is_set():
                    sink.sendall(piece)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
