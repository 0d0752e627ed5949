"""Commands in the stream of a Redis that a server obeys: which run, and which end the link."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.in_process import InProcessServer
from tests.support.payloads import sealed, text
from tests.support.resp import encode_command

from millstream.server.protocol.resp import Limits, RequestStream
from millstream.server.replication.redis_obeyed import CannotFollow, Obeyed, Told


@pytest.fixture
def obeyed() -> Iterator[Obeyed]:
    server = InProcessServer()
    server.executor.recheck_limits()
    one = Obeyed(server.executor.context, server.keyspace, Told(lambda *words: None, lambda: None))
    with one.running():
        yield one


def play(obeyed: Obeyed, *commands: str) -> None:
    for words in commands:
        obeyed.run([word.encode() for word in words.split()])


@pytest.mark.parametrize(
    ("command", "reason", "is_final"),
    [
        ("EVAL x 0", "lua-replicate-commands yes", True),
        ("FCALL x 0", "lua-replicate-commands yes", True),
        ("SELECT 99", "set the directive `databases`", True),
        ("XNEW 1 s", 'XNEW of the key "s", which is a stream here, is not known', False),
        ("XADD s 1-1 a b", 'XADD of the key "s" failed: ERR The ID specified', False),
        ("XADD s", 'XADD of the key "s" has 2 words', False),
        ("XACK s", "has 2 words", False),
        ("COPY s t DB x", "in place of the number of a database", False),
    ],
)
def test_a_command_that_cannot_run_is_an_error(
    obeyed: Obeyed, command: str, reason: str, is_final: bool
) -> None:
    play(obeyed, "XADD s 5-1 a b")
    with pytest.raises(CannotFollow) as problem:
        play(obeyed, command)
    assert reason in problem.value.reason
    assert problem.value.is_final is is_final


def test_a_dropped_string_is_unknown_until_it_is_set(obeyed: Obeyed) -> None:
    places: Any = obeyed._keyspace
    play(obeyed, "SETBIT k 1 1", "APPEND k x", "RENAME k m", "SWAPDB 0 3", "SELECT 3", "COPY m n")
    assert places.dropped_strings == {(3, b"m"), (3, b"n")}
    assert all(not len(db) for db in places.databases)
    play(obeyed, "MSET m 1 x 2", "MOVE n 5", "INCR m")
    assert places.dropped_strings == {(5, b"n")}
    play(obeyed, "SELECT 5", "FLUSHDB", "PFADD h a", "UNLINK h", "INCR h")
    assert not places.dropped_strings
    assert places.databases[5].get(b"h") == b"1"
    assert places.databases[3].get(b"m") == b"2"


def test_an_unknown_command_drops_its_string(obeyed: Obeyed) -> None:
    places: Any = obeyed._keyspace
    play(obeyed, "SET k 1", "SET other 1", "XNEW k other", "XNEW absent other", "SET n 1", "XNEW")
    assert places.dropped_strings == {(0, b"k")}
    assert places.databases[0].get(b"other") == b"1"
    play(obeyed, "PFCOUNT n", "INCR k")
    assert places.dropped_strings == {(0, b"k"), (0, b"n")}
    assert obeyed.unknown == {"xnew": 3}
    assert obeyed.ignored == {"xnew": 3, "pfcount": 1, "incr": 1}


def test_a_restore_of_a_moved_slot_is_obeyed(obeyed: Obeyed) -> None:
    places: Any = obeyed._keyspace
    play(obeyed, "SETBIT k 1 1", "SET gone 1", "SET kept 1")
    obeyed.run([b"restore-asking", b"k", b"0", sealed(b"\0" + text(b"text"))])
    obeyed.run([b"RESTORE-ASKING", b"gone", b"0", b"\1\1\1a", b"REPLACE"])
    assert not places.dropped_strings
    assert places.databases[0].get(b"k") == b"text"
    assert places.databases[0].get(b"gone") is None
    assert not obeyed.unknown


@pytest.mark.parametrize("piece_bytes", [1, 3, 17, 1000])
def test_requests_are_read_in_pieces_of_any_size(piece_bytes: int) -> None:
    words = [[b"SET", b"k", b"a\r\n*1\r\n"], [b"PING"], [b"XADD", b"s", b"", b"v" * 300]]
    data = b"\r\n".join(
        b"*%d\r\n" % len(one) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in one)
        for one in words
    )
    reader = RequestStream(Limits(1 << 30, 1 << 30))
    found = []
    for at in range(0, len(data), piece_bytes):
        reader.feed(data[at : at + piece_bytes])
        while (request := reader.next()) is not None:
            found.append(request)
    assert found == words
    assert (reader.taken_bytes, reader.waiting_bytes) == (len(data), 0)


def test_a_word_that_has_not_arrived_needs_more_bytes() -> None:
    """The bytes of complete requests are limited; those of one request are not."""
    words = [b"SET", b"k", b"x" * 5000]
    data = encode_command(words)
    reader = RequestStream(Limits())
    assert reader.next() is None
    for at in range(0, len(data), 700):
        assert reader.needs_more or at == 0
        reader.feed(data[at : at + 700])
        if at == 0:
            assert not reader.needs_more
            assert reader.next() is None
    assert not reader.needs_more
    assert reader.next() == words
    reader.feed(data + data[:-1])
    assert not reader.needs_more
    assert reader.next() == words
    assert reader.next() is None
    assert reader.needs_more
    assert reader.waiting_bytes == len(data) - 1


@pytest.mark.parametrize(
    "data",
    [b"PING\r\n", b"*9999999999\r\n", b"*1\r\n:1\r\n", b"*1\r\n$-1\r\n",
     b"*1\r\n$9999999999\r\n", b"*" + b"1" * 30 + b"\r\n"],
)  # fmt: skip
def test_bytes_that_are_no_request_are_refused(data: bytes) -> None:
    reader = RequestStream(Limits(1 << 30, 1 << 30))
    reader.feed(data)
    with pytest.raises(ValueError, match=r"request|Protocol error"):
        reader.next()


def test_what_refuses_writes_of_clients_is_not_forgotten() -> None:
    server = InProcessServer()
    context: Any = server.executor.context
    server.executor.recheck_limits()
    one = Obeyed(context, server.keyspace, Told(lambda *words: None, lambda: None))
    context.write_error, context.memory_error = "MISCONF x", "OOM x"
    with one.running():
        play(one, "SET k v")
    assert (context.write_error, context.memory_error) == ("MISCONF x", "OOM x")
    assert server.keyspace.databases[0].get(b"k") == b"v"
