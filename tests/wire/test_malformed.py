"""Malformed requests: answered in Redis' words, and only the connection that sent them is closed.

Each case is sent to our server and to a real redis-server; both streams of bytes must be equal
until the close. So the expected words are Redis', not ours.
"""

from __future__ import annotations

import pytest
from tests.support.client import RawClient
from tests.support.resp import Simple
from tests.support.server import Server

KB = 1024
PING = b"*1\r\n$4\r\nPING\r\n"

# What ends the connection: its name, the bytes, and the words that must come.
FATAL = {
    "multibulk length is a word": (b"*abc\r\n", "invalid multibulk length"),
    "multibulk length starts with a space": (b"* 1\r\n", "invalid multibulk length"),
    "multibulk length is too large": (b"*99999999999999999999\r\n", "invalid multibulk length"),
    "multibulk length is above the limit": (b"*2147483648\r\n", "invalid multibulk length"),
    "bulk length is a word": (b"*1\r\n$abc\r\n", "invalid bulk length"),
    "bulk length is empty": (b"*1\r\n$\r\n", "invalid bulk length"),
    "bulk length is negative": (b"*1\r\n$-1\r\n", "invalid bulk length"),
    "bulk length is above 512 MB": (b"*1\r\n$536870913\r\n", "invalid bulk length"),
    "bulk length is above 64 bits": (b"*1\r\n$99999999999999999999\r\n", "invalid bulk length"),
    "an argument is an integer": (b"*1\r\n:5\r\n", "expected '$', got ':'"),
    "an argument is garbage": (b"*1\r\nxyz\r\n", "expected '$', got 'x'"),
    "an argument is an array": (b"*2\r\n$4\r\nPING\r\n*1\r\n", "expected '$', got '*'"),
    "a second argument is garbage": (b"*2\r\n$4\r\nECHO\r\n?\r\n", "expected '$', got '?'"),
    "an inline command without end": (b"A" * (64 * KB + 1), "too big inline request"),
    "a multibulk count without end": (b"*" + b"1" * (64 * KB + 1), "too big mbulk count string"),
    "a bulk count without end": (b"*1\r\n$" + b"1" * (64 * KB + 1), "too big bulk count string"),
    "unbalanced quotes": (b'SET a "b\r\n', "unbalanced quotes in request"),
    "unbalanced single quotes": (b"SET a 'b\r\n", "unbalanced quotes in request"),
    "text after a closing quote": (b'SET "a"b c\r\n', "unbalanced quotes in request"),
}

# Odd requests that are no errors.
HARMLESS = {
    "an empty line": b"\r\n" + PING,
    "many empty lines": b"\r\n" * 100 + PING,
    "a multibulk of no arguments": b"*0\r\n" + PING,
    "a negative multibulk": b"*-1\r\n" + PING,
    "a very negative multibulk": b"*-2147483649\r\n" + PING,
    "an inline command": b"PING\r\n",
    "an inline command ended by a bare newline": b"PING\n",
    "an inline command with spaces around it": b"   PING   \r\n",
    "an inline command with quotes": b'ECHO "a\\x41\\n b"\r\n',
    "an inline command with single quotes": b"ECHO 'a\\'b\\n'\r\n",
    "an inline command with an empty argument": b'ECHO ""\r\n',
    "a command name of no bytes": b"*1\r\n$0\r\n\r\n" + PING,
    "a command name of binary": b"*1\r\n$3\r\n\x01\xff\r\r\n" + PING,
    "a very long unknown command": b"*1\r\n$1000\r\n" + b"y" * 1000 + b"\r\n" + PING,
    "many long arguments of an unknown command": b"*40\r\n"
    + b"$3\r\nfoo\r\n"
    + (b"$60\r\n" + b"z" * 60 + b"\r\n") * 39
    + PING,
    "an HTTP-like line that is not one": b"GETX / HTTP/1.1\r\n" + PING,
}


def answer(server: Server, request: bytes, ends_here: bool) -> bytes:
    """All that comes back. After a harmless request the client closes its half, as netcat does."""
    with server.client() as client:
        try:
            client.send_raw(request)
            if not ends_here:
                client.send_raw(b"*1\r\n$4\r\nQUIT\r\n")
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed before everything was sent; the replies can still be read
        return client.read_to_end()


@pytest.mark.parametrize("name", FATAL)
def test_protocol_errors_use_redis_words(server: Server, redis_server: Server, name: str) -> None:
    request, words = FATAL[name]
    wanted = f"-ERR Protocol error: {words}\r\n".encode()
    assert answer(redis_server, request, ends_here=True) == wanted
    assert answer(server, request, ends_here=True) == wanted


@pytest.mark.parametrize("name", HARMLESS)
def test_odd_request_is_answered_as_redis_does(
    server: Server, redis_server: Server, name: str
) -> None:
    request = HARMLESS[name]
    # Redis 8 leaves out that no argument follows.
    wanted = answer(redis_server, request, False).replace(b", with args beginning with: \r", b"\r")
    assert answer(server, request, False) == wanted


@pytest.mark.parametrize("name", FATAL)
def test_protocol_error_closes_only_its_own_connection(server: Server, name: str) -> None:
    with server.client() as bystander, server.client() as blocked:
        blocked.send("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
        bystander.wait_blocked(1)
        answer(server, FATAL[name][0], ends_here=True)
        assert bystander.call("XADD", "s", "1-1", "f", "v") == b"1-1"
        assert blocked.read() == [[b"s", [[b"1-1", [b"f", b"v"]]]]]
        assert bystander.call("PING") == Simple("PONG")


def test_commands_before_a_protocol_error_are_answered_first(
    server: Server, redis_server: Server
) -> None:
    request = PING + b"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n" + b"*1\r\n:5\r\n" + PING
    wanted = b"+PONG\r\n$2\r\nhi\r\n-ERR Protocol error: expected '$', got ':'\r\n"
    assert answer(redis_server, request, ends_here=True) == wanted
    assert answer(server, request, ends_here=True) == wanted


def test_an_append_before_a_protocol_error_is_kept(client: RawClient, server: Server) -> None:
    append = b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$3\r\n1-1\r\n$1\r\nf\r\n$1\r\nv\r\n"
    data = answer(server, append + b"*abc\r\n", ends_here=True)
    assert data == b"$3\r\n1-1\r\n-ERR Protocol error: invalid multibulk length\r\n"
    assert client.call("XRANGE", "s", "-", "+") == [[b"1-1", [b"f", b"v"]]]


def test_a_request_cut_off_in_the_middle_changes_nothing(client: RawClient, server: Server) -> None:
    with server.client() as cut:
        cut.send_raw(
            b"*5\r\n$4\r\nXADD\r\n$1\r\ns\r\n$1\r\n*\r\n$1\r\nf\r\n$100\r\nonly the beginn"
        )
        cut.half_close()
        assert cut.read_to_end() == b""
    assert client.call("EXISTS", "s") == 0


def test_an_announced_huge_count_reserves_no_memory(client: RawClient, server: Server) -> None:
    with server.client() as announcing:
        announcing.send_raw(b"*1000000\r\n$4\r\nPING\r\n$500000000\r\n")
        for _ in range(3):
            assert client.call("PING") == Simple("PONG")
        assert int(client.info("memory")["used_memory_rss"]) < 400_000_000
