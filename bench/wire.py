"""A small RESP2 client and a bulk loader.

redis-py is not used, because the benchmark must not depend on the speed or behaviour of a client
library, and the loader sends bytes that were encoded in advance. Replies are counted, not parsed;
an error reply stops the load.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from typing import Any

from bench.datasets import Chunk, encode
from bench.figures import BenchError

TIMEOUT_S = 120.0
RECEIVE_BYTES = 256 * 1024
LINES_PER_ID_REPLY = 2


class Client:
    """One blocking connection to 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()
        self._socket.close()

    def call(self, *arguments: str) -> Any:
        """Send one command and return its reply: str, int, None or a (nested) list.

        Raises BenchError on an error reply or a closed connection.
        """
        self.send_call(*arguments)
        return self.receive(arguments[0])

    def send_call(self, *arguments: str) -> None:
        """Send one command; `receive` reads its reply."""
        self._socket.sendall(encode(*arguments))

    def receive(self, command: str) -> Any:
        """Read one reply; `command` is for the messages."""
        return self._read_reply(command)

    def send(self, data: bytes) -> None:
        """Send raw bytes; `skip_ids` reads the replies."""
        self._socket.sendall(data)

    def skip_ids(self, count: int) -> None:
        """Read `count` replies, each of which must be an ID (a bulk string)."""
        self.skip_lines(count * LINES_PER_ID_REPLY)

    def skip_lines(self, count: int) -> None:
        """Read `count` lines of replies, none of which may be an error."""
        lines_left = count
        last_byte = b"\n"
        while lines_left > 0:
            data = self._socket.recv(RECEIVE_BYTES)
            if not data:
                raise BenchError("the server closed the connection during a load")
            if b"\n-" in last_byte + data:
                raise BenchError(f"the server answered a load with {data[:200]!r}")
            lines_left -= data.count(b"\n")
            last_byte = data[-1:]

    def _read_reply(self, command: str) -> Any:
        line = self._reader.readline()
        if not line.endswith(b"\r\n"):
            raise BenchError(f"the server closed the connection after {command}")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise BenchError(f"{command}: {rest.decode(errors='replace')}")
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._read_bulk(int(rest))
        if kind == b"*":
            length = int(rest)
            return None if length < 0 else [self._read_reply(command) for _ in range(length)]
        raise BenchError(f"{command}: unexpected reply {line[:80]!r}")

    def _read_bulk(self, length: int) -> str | None:
        if length < 0:
            return None
        return self._reader.read(length + 2)[:-2].decode(errors="replace")


def load(clients: Sequence[Client], source: Iterable[Chunk]) -> None:
    """Send every chunk to all clients; each chunk is answered before the next is sent."""
    for chunk in source:
        for client in clients:
            client.send(chunk.data)
        for client in clients:
            client.skip_ids(chunk.entries)
