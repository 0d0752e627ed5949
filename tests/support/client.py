"""A small raw client that does not interpret requests or replies.

Blocking sockets with a deadline are enough here. `pipeline` sends from a second thread, because a
server may stop reading from a client that does not read its replies.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from types import TracebackType

from .resp import Argument, Error, Reply, encode_command, read_reply
from .waiting import DEADLINE_S, wait_until


class ConnectionClosed(Exception):
    """The server closed the connection."""


class RawClient:
    """One connection. Every read fails with TimeoutError after `timeout_s`."""

    def __init__(
        self,
        port: int,
        protocol: int = 2,
        timeout_s: float = DEADLINE_S,
        host: str = "127.0.0.1",
    ) -> None:
        self.port = port
        self.protocol = protocol
        self._socket = socket.create_connection((host, port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        if protocol == 3:
            hello = self.call("HELLO", "3")
            assert not isinstance(hello, Error), hello

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, *arguments: Argument) -> Reply:
        """Send one command and read its reply."""
        self.send(*arguments)
        return self.read()

    def send(self, *arguments: Argument) -> None:
        """Send one command without reading."""
        self._socket.sendall(encode_command(arguments))

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._socket.sendall(data)

    def _send_meanwhile(self, data: bytes) -> None:
        with suppress(OSError):  # the thread that reads the replies gets the error
            self._socket.sendall(data)

    def half_close(self) -> None:
        """Close the sending side of the connection."""
        self._socket.shutdown(socket.SHUT_WR)

    def pipeline(self, commands: Sequence[Sequence[Argument]]) -> list[Reply]:
        """Send all commands at once; return their replies in order."""
        data = b"".join(map(encode_command, commands))
        sender = threading.Thread(target=self._send_meanwhile, args=(data,), daemon=True)
        sender.start()
        replies = [self.read() for _ in commands]
        sender.join()
        return replies

    def read(self) -> Reply:
        """Read one reply. ConnectionClosed at the end of the stream."""
        reply, end = read_reply(self._buffer, 0, self._receive)
        del self._buffer[:end]
        return reply

    def read_to_end(self) -> bytes:
        """All bytes until the server closes the connection; TimeoutError when it does not."""
        while True:
            try:
                self._receive()
            except ConnectionClosed:
                data = bytes(self._buffer)
                self._buffer.clear()
                return data

    def has_input(self) -> bool:
        """True if bytes or the end of the stream can be read now."""
        return bool(self._buffer) or bool(select.select([self._socket], [], [], 0)[0])

    def info(self, section: str) -> dict[str, str]:
        """INFO's fields of one section."""
        reply = self.call("INFO", section)
        data = getattr(reply, "data", reply)
        assert isinstance(data, bytes), reply
        lines = data.decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line)

    def wait_blocked(self, count: int) -> None:
        """Wait until exactly `count` clients are blocked on the server."""
        wait_until(
            lambda: int(self.info("clients")["blocked_clients"]),
            lambda blocked: blocked == count,
            f"blocked_clients = {count}",
        )

    def receive_some(self, most_bytes: int) -> None:
        """Receive a part of a reply, which `read` returns later."""
        self._receive(most_bytes)

    def _receive(self, most_bytes: int = 1 << 18) -> None:
        try:
            data = self._socket.recv(most_bytes)
        except (ConnectionResetError, BrokenPipeError) as error:
            raise ConnectionClosed(str(error)) from error
        if not data:
            raise ConnectionClosed("end of stream")
        self._buffer += data


def as_bytes(reply: Reply) -> bytes:
    """The reply, which must be a bulk string."""
    assert isinstance(reply, bytes), reply
    return reply


def as_list(reply: Reply) -> list[Reply]:
    """The reply, which must be an array."""
    assert isinstance(reply, list), reply
    return reply


def close_all(clients: Iterable[RawClient]) -> None:
    """Close every client."""
    for client in clients:
        client.close()
