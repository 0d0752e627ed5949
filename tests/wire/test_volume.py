"""Sizes and numbers: from 0 bytes to 1 MB, and 10,000 commands at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Reply, encode_command
from tests.support.server import Server
from tests.wire.hostile import connect

PIPELINED = 10_000
SIZES_BYTES = [0, 1, 63, 64, 127, 128, 255, 256, 4095, 4096, 4097, 16_383, 16_384, 65_536, 1 << 20]


def entry_key(reply: Reply) -> tuple[int, int]:
    """A `ms.seq` id as two numbers."""
    ms, seq = as_bytes(reply).split(b".")
    return int(ms), int(seq)


@pytest.mark.parametrize("size_bytes", SIZES_BYTES)
def test_binary_keys_fields_and_values_are_returned_unchanged(
    client: RawClient, size_bytes: int
) -> None:
    random_bytes = random.Random(size_bytes).randbytes
    key, field, value = (random_bytes(size_bytes) for _ in range(3))
    entry_id = client.call("TAPPEND", key, field, value, b"small", b"")
    entry: list[Reply] = [entry_id, field, value, b"small", b""]
    assert client.call("TREAD", key, "0", "10") == [entry]
    assert client.call("TRANGE", key, "-", "+") == [entry]
    dashed = as_bytes(entry_id).replace(b".", b"-")
    assert client.call("XRANGE", key, "-", "+") == [[dashed, entry[1:]]]


@pytest.mark.parametrize("size_bytes", SIZES_BYTES)
def test_a_binary_group_name_is_returned_unchanged(client: RawClient, size_bytes: int) -> None:
    group = random.Random(size_bytes).randbytes(size_bytes)
    entry_id = client.call("TAPPEND", "s", "f", "v")
    read = ("TREAD", "s", "0", "1", "GROUP", group, "0", "RETRY", "0", "0")
    assert client.call(*read) == [[entry_id, b"f", b"v"]]
    assert as_list(as_list(client.call("XINFO", "GROUPS", "s"))[0])[1] == group
    assert client.call("TACK", "s", group, as_bytes(entry_id)) == 1


def test_big_entries_are_surrounded_by_small_ones(client: RawClient) -> None:
    values = [b"x" * size for size in (1, 1 << 20, 2, 100_000, 3, 5000, 4)]
    for number, value in enumerate(values, start=1):
        client.call("XADD", "s", f"{number}-1", "f", value)
    wanted = [[b"%d.1" % n, b"f", value] for n, value in enumerate(values, start=1)]
    assert client.call("TREAD", "s", "0", "100") == wanted
    assert client.call("TREAD", "s", "2.1", "2") == wanted[2:4]


def test_an_entry_may_have_thousands_of_fields(client: RawClient) -> None:
    words = [b"%s%d" % (kind, n) for n in range(5000) for kind in (b"f", b"v")]
    entry_id = client.call("TAPPEND", "s", *words)
    assert client.call("TREAD", "s", "0", "1") == [[entry_id, *words]]


@pytest.mark.parametrize("protocol", [2, 3])
def test_pipelined_appends_are_answered_and_read_back_in_order(
    server: Server, protocol: int
) -> None:
    with server.client(protocol) as client:
        commands = [("TAPPEND", "s", "n", str(n)) for n in range(PIPELINED)]
        ids = client.pipeline(commands)
        keys = [entry_key(reply) for reply in ids]
        assert keys == sorted(set(keys))
        wanted = [[entry_id, b"n", b"%d" % n] for n, entry_id in enumerate(ids)]
        assert client.call("TREAD", "s", "0", str(PIPELINED)) == wanted
        assert client.call("TRANGE", "s", "-", "+") == wanted


def test_a_cursor_reads_everything_once_in_order(client: RawClient) -> None:
    client.pipeline([("TAPPEND", "s", "n", str(n)) for n in range(PIPELINED)])
    seen: list[Reply] = []
    last_id = b"0"
    while entries := as_list(client.call("TREAD", "s", last_id, "137")):
        seen += [as_list(entry)[2] for entry in entries]
        last_id = as_bytes(as_list(entries[-1])[0])
    assert seen == [b"%d" % n for n in range(PIPELINED)]


def test_a_group_delivers_every_entry_once_in_order(client: RawClient) -> None:
    client.pipeline([("TAPPEND", "s", "n", str(n)) for n in range(PIPELINED)])
    read = ("TREAD", "s", "0", "100", "GROUP", "g", "0", "RETRY", "1000000", "0")
    replies = client.pipeline([read] * (PIPELINED // 100 + 1))
    seen = [as_list(entry)[2] for reply in replies for entry in as_list(reply)]
    assert seen == [b"%d" % n for n in range(PIPELINED)]
    assert as_list(client.call("XPENDING", "s", "g"))[0] == PIPELINED


def test_commands_may_arrive_byte_by_byte(client: RawClient) -> None:
    for byte in b"*4\r\n$7\r\nTAPPEND\r\n$1\r\ns\r\n$1\r\nf\r\n$3\r\n\r\n\x00\r\nPING\r\n":
        client.send_raw(bytes([byte]))
    entry_id = client.read()
    assert client.read() == client.call("PING")
    assert client.call("TREAD", "s", "0", "1") == [[entry_id, b"f", b"\r\n\x00"]]


def test_replies_reach_a_client_that_reads_late(server: Server) -> None:
    value = b"x" * 10_000
    with server.client() as slow, server.client() as other:
        slow.pipeline([("XADD", "s", f"{n}-1", "f", value) for n in range(1, 501)])
        for _ in range(4):
            slow.send("TREAD", "s", "0", "500")
        # 20 MB wait for `slow`; no other client waits.
        assert other.call("XLEN", "s") == 500
        for _ in range(4):
            entries = as_list(slow.read())
            assert len(entries) == 500
            assert entries[499] == [b"500.1", b"f", value]


def test_messages_stay_in_order_while_a_slow_client_catches_up(server: Server) -> None:
    """Messages arrive while the socket has space again and older messages still wait."""
    messages = [b"%d " % number * 2000 for number in range(2000)]
    chance = random.Random(1)
    expected = b"".join(encode_command([b"message", b"c", message]) for message in messages)
    found = bytearray()
    with connect(server.port, 4096) as listener, ThreadPoolExecutor(1) as threads:
        listener.sendall(encode_command(["SUBSCRIBE", "c"]))
        assert listener.recv(1000) == b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
        published = threads.submit(_publish, server, messages)
        while len(found) < len(expected):
            piece = listener.recv(chance.choice([1000, 100_000]))
            assert piece, "the server has closed the connection"
            found += piece
        assert published.result() == [1] * len(messages)
    is_same = found == expected
    assert is_same, f"the first difference is after {_length_of_same_start(found, expected)} bytes"


def _length_of_same_start(one: bytes | bytearray, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))


def _publish(server: Server, messages: list[bytes]) -> list[Reply]:
    with server.client() as publisher:
        return [publisher.call("PUBLISH", b"c", message) for message in messages]
