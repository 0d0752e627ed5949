"""Clients that close their end for sending (SHUT_WR) and read on: `printf ... | nc -N` does."""

from __future__ import annotations

import socket

import pytest
from tests.support.client import RawClient
from tests.support.resp import Simple, encode_command
from tests.support.server import Server


def all_replies(server: Server, *requests: tuple[str, ...]) -> bytes:
    """Everything that the server sends after the input has ended, until it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(b"".join(encode_command(request) for request in requests))
        client.shutdown(socket.SHUT_WR)
        found = bytearray()
        while data := client.recv(1 << 20):
            found += data
        return bytes(found)


@pytest.mark.parametrize("count", [1, 20_000])
def test_replies_that_wait_for_the_disk_are_sent(durable_server: Server, count: int) -> None:
    with durable_server.client() as client:
        client.call("CONFIG", "SET", "appendfsync", "always")
    found = all_replies(durable_server, *[("INCR", "n")] * count)
    assert found == b"".join(b":%d\r\n" % number for number in range(1, count + 1))


def test_requests_after_a_long_reply_are_run(server: Server, client: RawClient) -> None:
    client.pipeline([("XADD", "s", "*", "f", "v" * 1000)] * 5000)
    found = all_replies(server, ("XRANGE", "s", "-", "+"), ("SET", "k", "v"), ("PING",))
    assert found.endswith(b"+OK\r\n+PONG\r\n")
    assert client.call("EXISTS", "k") == 1


def test_a_wait_ends_and_earlier_replies_are_sent(durable_server: Server) -> None:
    with durable_server.client() as client:
        client.call("CONFIG", "SET", "appendfsync", "always")
        block = ("XREAD", "BLOCK", "0", "STREAMS", "none", "$")
        found = all_replies(durable_server, ("SET", "k", "v"), block, ("SET", "k", "w"))
        assert found.startswith(b"+OK\r\n")
        assert client.call("GET", "k") == b"v"
        assert "blocked_clients:0" in str(client.call("INFO", "clients"))


def test_an_incomplete_request_is_dropped(server: Server, client: RawClient) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as other:
        other.sendall(encode_command(("SET", "k", "v")) + b"*3\r\n$3\r\nSET\r\n$1\r\n")
        other.shutdown(socket.SHUT_WR)
        assert other.recv(100) == b"+OK\r\n"
        assert other.recv(100) == b""
    assert client.call("PING") == Simple("PONG")
