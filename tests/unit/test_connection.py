"""The bytes that a connection passes to its socket and to its transport are together exactly its
output.

The other end of a pair of sockets reads the bytes sent directly to the socket; the transport only
records its bytes.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.in_process import InProcessServer

from millstream.server.clients import Clients
from millstream.server.net.connection import Connection
from millstream.storage.blocks.lazyfree import defer, free_step

LONG = bytes(range(256)) * 20_000


class NotedTransport:
    """An asyncio transport that sends nothing."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.waiting = bytearray()
        self.closing = False

    def get_extra_info(self, name: str) -> Any:
        return {"socket": self.own, "ssl_object": None}.get(name, ("127.0.0.1", 1))

    def get_write_buffer_size(self) -> int:
        return len(self.waiting)

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes | memoryview) -> None:
        self.waiting += data

    def close(self) -> None:
        self.closing = True

    abort = close


def drain(other: socket.socket) -> bytes:
    """All that can be read now."""
    found = bytearray()
    try:
        while piece := other.recv(1 << 20):
            found += piece
    except BlockingIOError:
        pass
    return bytes(found)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    own, other = socket.socketpair()
    with own, other:
        own.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        other.setblocking(False)
        yield own, other


@pytest.fixture
def transport(pair: tuple[socket.socket, socket.socket]) -> NotedTransport:
    return NotedTransport(pair[0])


@pytest.fixture
def other(pair: tuple[socket.socket, socket.socket]) -> socket.socket:
    return pair[1]


@pytest.fixture
def connection(transport: NotedTransport) -> Connection:
    in_process = InProcessServer()
    clients = SimpleNamespace(
        next_id=lambda: 1,
        steady_ms=in_process.now_ms,
        opened=lambda client: None,
        closed=lambda client: None,
    )
    made = Connection(clients, in_process.executor)
    made.connection_made(transport)  # type: ignore[arg-type]
    return made


def test_output_that_fits_is_sent_to_the_socket(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(b"+one\r\n")
    connection.transmit(b"+two\r\n")
    assert drain(other) == b"+one\r\n+two\r\n"
    assert not transport.waiting
    assert connection.total_bytes_out == 12


def test_the_transport_gets_the_rest_in_order_until_it_is_empty(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(LONG)
    sent = drain(other)
    assert 0 < len(sent) < len(LONG)
    connection.transmit(b"+next\r\n")
    assert drain(other) == b""
    assert sent + transport.waiting == LONG + b"+next\r\n"
    transport.waiting.clear()  # sent, and read by the other side
    connection.transmit(b"+last\r\n")
    assert drain(other) == b"+last\r\n"
    assert not transport.waiting


def test_an_empty_reply_does_not_overtake_waiting_ones(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(LONG)
    drain(other)
    connection.transmit(b"")
    connection.transmit(b"+next\r\n")
    assert drain(other) == b""
    assert transport.waiting.endswith(b"+next\r\n")


def test_no_output_follows_that_of_a_closing_transport(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(LONG)
    drain(other)
    transport.waiting.clear()
    transport.closing = True
    connection.transmit(b"+next\r\n")
    assert drain(other) == b""


@pytest.mark.parametrize("after_reply", [False, True])
def test_no_output_bypasses_a_closing_transport(
    connection: Connection, transport: NotedTransport, other: socket.socket, after_reply: bool
) -> None:
    connection.close(after_reply)
    connection.transmit(b"+next\r\n")
    assert drain(other) == b""
    assert transport.waiting == b"+next\r\n"


def test_a_closed_socket_is_the_transports_to_find(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    other.close()
    connection.transmit(b"+one\r\n")
    connection.transmit(b"+two\r\n")
    assert transport.waiting == b"+one\r\n+two\r\n"


def test_a_descriptor_is_not_used_when_it_may_be_another_ones(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.connection_lost(None)
    assert connection.file_number == -1
    connection.transmit(b"+one\r\n")
    assert drain(other) == b""


# ---------------------------------------------------------------- a client that does not read


class FullTransport(NotedTransport):
    """A transport that pauses its protocol as asyncio's does, and counts its bytes."""

    def __init__(self, own: socket.socket) -> None:
        super().__init__(own)
        self.writes = 0
        self.connection: Connection | None = None

    def write(self, data: bytes | memoryview) -> None:
        self.writes += 1
        super().write(data)
        if self.connection is not None and len(self.waiting) > 65536:
            self.connection.pause_writing()

    def take(self) -> bytes:
        """The socket takes what waits."""
        taken, self.waiting = bytes(self.waiting), bytearray()
        assert self.connection is not None
        self.connection.resume_writing()
        return taken


@pytest.fixture
def full(pair: tuple[socket.socket, socket.socket]) -> tuple[Connection, FullTransport]:
    transport = FullTransport(pair[0])
    in_process = InProcessServer()
    asked: list[Any] = []
    clients = SimpleNamespace(
        next_id=lambda: 1,
        steady_ms=in_process.now_ms,
        opened=lambda client: None,
        closed=lambda client: None,
        check_output=asked.append,
    )
    connection = Connection(clients, in_process.executor)
    connection.connection_made(transport)  # type: ignore[arg-type]
    transport.connection = connection
    connection.transmit(LONG)
    assert connection.paused
    return connection, transport


def test_a_full_client_costs_a_reference_per_message_and_no_call(
    full: tuple[Connection, FullTransport],
) -> None:
    connection, transport = full
    message = bytes(100_000)
    references, writes = sys.getrefcount(message), transport.writes
    waiting_bytes = connection.output_bytes
    for _ in range(500):
        connection.transmit(message)
        connection.transmit_all([message, message], 2 * len(message))
    assert transport.writes == writes
    assert sys.getrefcount(message) == references + 1500
    assert connection.output_bytes == waiting_bytes + 1500 * len(message)


def test_a_client_that_reads_again_is_sent_everything_in_order(
    full: tuple[Connection, FullTransport], other: socket.socket
) -> None:
    connection, transport = full
    expected = bytearray(LONG)
    for number in range(300):
        short, long = b"+%d\r\n" % number, bytes([number % 256]) * 70_000
        connection.transmit_all([short, short], 2 * len(short))
        connection.transmit(long)
        expected += short + short + long
    got = bytearray(drain(other))
    while connection.paused or transport.waiting:
        got += transport.take()
        got += drain(other)
    assert got == expected
    assert connection.output_bytes == 0


def test_a_client_is_idle_when_it_neither_sends_nor_reads(
    full: tuple[Connection, FullTransport], other: socket.socket
) -> None:
    connection, transport = full
    begin_ms = connection.last_active_ms
    now_s = 0
    config: Any = SimpleNamespace(timeout=10)
    executor: Any = SimpleNamespace(outbox=SimpleNamespace(lagging=[]))
    unused: Any = None
    access: Any = SimpleNamespace()
    clients = Clients(
        config, {1: connection}, executor, access, unused, lambda: begin_ms + now_s * 1000, unused
    )
    for now_s in range(1, 31):
        clients.tick_second()
        if now_s == 9:
            assert drain(other)  # in the kernel's buffer; the transport sends nothing yet
        elif now_s % 9 == 0:
            transport.take()
    for now_s in range(31, 39):
        clients.tick_second()
        assert not transport.closing, now_s
    now_s = 39  # eleven seconds after it was seen to read
    clients.tick_second()
    assert transport.closing


def test_a_closing_connection_gets_all_output_first(
    full: tuple[Connection, FullTransport], other: socket.socket
) -> None:
    connection, transport = full
    connection.transmit(b"+last\r\n")
    connection.close(after_reply=True)
    assert not transport.closing
    got = bytearray(drain(other))
    while not transport.closing or transport.waiting:
        got += transport.take()
    assert got == LONG + b"+last\r\n"


def test_the_output_of_a_closed_client_is_freed_in_turns(
    full: tuple[Connection, FullTransport],
) -> None:
    connection, _ = full
    message = bytes(1000)
    references = sys.getrefcount(message)
    defer(True)
    try:
        connection.transmit_all([message] * 5000, 5000 * len(message))
        connection.close(after_reply=False)
        assert sys.getrefcount(message) == references + 5000
        assert free_step(1000)
        assert references + 3900 < sys.getrefcount(message) < references + 4100
        while free_step(1000):
            pass
        assert sys.getrefcount(message) == references
    finally:
        defer(False)
