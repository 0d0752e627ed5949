"""What a connection hands to its socket and to its transport is, put together, what it was given.

The other end of a pair of sockets reads what went straight to the socket; the transport is one that
only notes what it is given.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.house import House

from millstream.server.connection import Connection

LONG = bytes(range(256)) * 20_000


class NotedTransport:
    """An asyncio transport that sends nothing."""

    def __init__(self, own: socket.socket) -> None:
        self.own = own
        self.waiting = bytearray()
        self.closing = False

    def get_extra_info(self, name: str) -> Any:
        return self.own if name == "socket" else ("127.0.0.1", 1)

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
    house = House()
    server = SimpleNamespace(
        executor=house.executor,
        next_client_id=lambda: 1,
        now_ms=house.now_ms,
        client_opened=lambda client: None,
        client_closed=lambda client: None,
    )
    made = Connection(server)
    made.connection_made(transport)  # type: ignore[arg-type]
    return made


def test_what_fits_goes_to_the_socket(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(b"+one\r\n")
    connection.transmit(b"+two\r\n")
    assert drain(other) == b"+one\r\n+two\r\n"
    assert not transport.waiting
    assert connection.total_bytes_out == 12


def test_the_rest_and_what_follows_go_through_the_transport_until_it_has_sent_all(
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


def test_an_empty_reply_does_not_overtake_what_waits(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(LONG)
    drain(other)
    connection.transmit(b"")
    connection.transmit(b"+next\r\n")
    assert drain(other) == b""
    assert transport.waiting.endswith(b"+next\r\n")


def test_nothing_follows_what_a_closing_transport_has_dropped(
    connection: Connection, transport: NotedTransport, other: socket.socket
) -> None:
    connection.transmit(LONG)
    drain(other)
    transport.waiting.clear()
    transport.closing = True
    connection.transmit(b"+next\r\n")
    assert drain(other) == b""


@pytest.mark.parametrize("after_reply", [False, True])
def test_nothing_goes_past_a_transport_that_is_to_close(
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
