"""The requests that carry a reader's entries, and what their replies mean."""

from __future__ import annotations

import socketserver
import threading

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.client import RawClient
from tests.support.server import Server

from millstream.cdc.config import ServerConfig
from millstream.cdc.streams.stream_appender import (
    BYTES_MAX,
    ENTRIES_MAX,
    Entries,
    RefusedError,
    StreamAppender,
    open_server,
)

FIELDS = st.lists(st.binary(max_size=20), min_size=2, max_size=6).filter(lambda f: not len(f) % 2)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c"]), FIELDS), min_size=1))
def test_one_request_appends_the_entries_of_each_stream_together(
    added: list[tuple[bytes, list[bytes]]],
) -> None:
    entries = Entries()
    expected: dict[bytes, list[list[bytes]]] = {}
    for place, (key, words) in enumerate(added, 1):
        entries.add(key, 7, place, words)
        expected.setdefault(key, []).append([b"7.%d" % place, b"%d" % (len(words) // 2), *words])
    reader = hiredis.Reader()
    reader.feed(entries.encoded())
    request = reader.gets()
    wanted = [b"TAPPENDMANY", b"%d" % len(expected), *expected, b"ID"]
    for listed in expected.values():
        wanted += [b"%d" % len(listed), *(word for words in listed for word in words)]
    assert request == wanted
    assert not reader.has_data()


def test_a_request_is_full_at_either_limit() -> None:
    many, large = Entries(), Entries()
    for place in range(ENTRIES_MAX):
        assert not many.is_full
        many.add(b"s", 1, place, [b"a", b"b"])
    assert many.is_full
    large.add(b"s", 1, 1, [b"a", b"x" * BYTES_MAX])
    assert large.is_full


def sent(server: Server, *ids: tuple[bytes, int]) -> int:
    entries = Entries()
    for key, place in ids:
        entries.add(key, 5, place, [b"a", b"b"])
    with open_server(ServerConfig(f"redis://127.0.0.1:{server.port}")) as connection:
        return StreamAppender(connection, "cuts", "state").send(None, None, entries)


def test_entries_that_exist_are_counted_and_not_appended_again(
    server: Server, client: RawClient
) -> None:
    assert sent(server, (b"s", 1), (b"t", 2), (b"s", 3)) == 0
    assert sent(server, (b"s", 3), (b"t", 4)) == 1
    assert client.call("XRANGE", "s", "-", "+") == [[b"5-1", [b"a", b"b"]], [b"5-3", [b"a", b"b"]]]
    assert client.call("XLEN", "t") == 2


def test_a_refused_request_appends_nothing(server: Server, client: RawClient) -> None:
    client.call("SET", "no-stream", "text")
    with pytest.raises(RefusedError, match="WRONGTYPE"):
        sent(server, (b"new", 1), (b"no-stream", 2))
    assert client.call("EXISTS", "new") == 0


class AnsweringFirst(socketserver.BaseRequestHandler):
    """Sends the parser's error about a large value before the rest of the request is there, as
    a server does whose reply arrives before the reset of its connection."""

    def handle(self) -> None:
        while request := self.request.recv(1 << 16):
            if b"proto-max-bulk-len" in request:
                self.request.sendall(b"*2\r\n$18\r\nproto-max-bulk-len\r\n$7\r\n1048576\r\n")
            elif b"TAPPENDMANY" in request:
                left = (3 << 20) - len(request)
                while left > 0:
                    left -= len(self.request.recv(1 << 16))
                self.request.sendall(b"-ERR Protocol error: invalid bulk length\r\n")
                return
            else:
                self.request.sendall(b"+OK\r\n" * request.count(b"*"))


def test_an_oversized_value_is_named_if_a_reply_precedes_a_reset() -> None:
    entries = Entries()
    entries.add(b"s", 5, 1, [b"a", b"x" * (3 << 20)])
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AnsweringFirst) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{listener.server_address[1]}"
        with open_server(ServerConfig(url)) as connection, pytest.raises(RefusedError) as caught:
            StreamAppender(connection, "cuts", "state").send(None, None, entries)
        listener.shutdown()
    assert "more than proto-max-bulk-len, 1 MB" in str(caught.value)
