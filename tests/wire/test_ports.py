"""Ports that cannot be used: another program has them, or two directives name the same one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from tests.support.server import Server, free_port

from millstream.errors import StartError
from millstream.server.net.sockets import bind_sockets, start_listening

NewServer = Callable[..., Server]


@pytest.fixture
def twice_bound() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two sockets that are bound to one port, which Linux allows while none of them listens."""
    (first,) = bind_sockets(["127.0.0.1"], 0)
    (second,) = bind_sockets(["127.0.0.1"], first.getsockname()[1])
    yield first, second
    first.close()
    second.close()


def test_a_port_taken_between_bind_and_listen_stops_the_start(
    twice_bound: tuple[socket.socket, socket.socket],
) -> None:
    first, second = twice_bound
    start_listening(first, 10, "port")
    port = first.getsockname()[1]
    with pytest.raises(StartError, match=rf"port {port} on 127.0.0.1 is in use .* --tls-port"):
        start_listening(second, 10, "tls-port")


@pytest.mark.parametrize("address", ["a..b", "256.0.0.1", "no-such-host.invalid", "x" * 300])
def test_an_address_that_does_not_exist(address: str) -> None:
    with pytest.raises(StartError, match=f"cannot listen on port 7000 on {address}: no such"):
        bind_sockets([address], 7000)


@pytest.mark.parametrize("other", ["tls-port", "metrics-port"])
def test_two_directives_with_one_port(new_server: NewServer, other: str) -> None:
    server = new_server("data")
    server.port = free_port()
    server.directives[other] = str(server.port)
    with pytest.raises(AssertionError, match=rf"port and {other} are both {server.port}"):
        server.start()
    assert server.exit_code == 1
