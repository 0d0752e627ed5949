"""A transaction is one frame, even if its commands change the journal's settings, and turning the
journal off loses no acknowledged write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.data_directory import last_journal
from tests.support.resp import Reply, Simple, encode_command
from tests.support.server import Server

from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.journal_reader import JournalReader

OK = Simple("OK")
NewServer = Callable[..., Server]


def frames(directory: Path) -> list[bytes]:
    """The effects in the journal's frames."""
    reader = JournalReader([SystemDisk(directory).read(last_journal(directory).name)], 1)
    return [payload for _, _, payload in reader.frames()]


def at_once(client: RawClient, *lines: str) -> list[Reply]:
    """Replies to lines sent in one write."""
    client.send_raw(b"".join(encode_command(line.split()) for line in lines))
    return [client.read() for _ in lines]


def after_a_kill(server: Server, *keys: str) -> list[Reply]:
    server.kill()
    server.start()
    with server.client() as client:
        return [client.call("GET", key) for key in keys]


def test_writes_before_the_end_of_a_journal_are_in_it(new_server: NewServer) -> None:
    server = new_server().start()
    with server.client() as client:
        assert at_once(client, "SET acked 1", "CONFIG SET appendonly no") == [OK, OK]
    assert after_a_kill(server, "acked") == [b"1"]


@pytest.mark.parametrize("mode", ["always", "everysec"])
@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("WAITAOF 1 0 0", None),
        ("CONFIG SET appendonly no", OK),
        ("CONFIG SET appendfsync no", OK),
        ("BGSAVE", Simple("Background saving started")),
    ],
)
def test_a_transaction_is_one_frame(
    new_server: NewServer, mode: str, asked: str, answer: Reply
) -> None:
    server = new_server("data", {"appendfsync": mode}).start()
    with server.client() as client:
        replies = at_once(client, "MULTI", "SET x 1", asked, "SET y 2", "EXEC")
        if asked.startswith("WAITAOF"):
            answer = [int(mode == "always"), 0]
        assert replies[-1] == [OK, answer, OK]
        assert client.call("PING") == Simple("PONG")
        if asked != "BGSAVE":  # which begins another journal
            assert [b"x" in frame and b"y" in frame for frame in frames(server.directory)] == [True]
    assert after_a_kill(server, "x", "y") == [b"1", b"2"]


def test_a_transaction_without_writes_waits_for_nothing(
    new_server: NewServer,
) -> None:
    server = new_server("data", {"appendfsync": "everysec"}).start()
    with server.client() as client:
        assert client.call("SET", "x", "1") == OK
        assert client.call("WAITAOF", "1", "0", "0") == [1, 0]
        assert at_once(client, "MULTI", "WAITAOF 1 0 0", "EXEC")[-1] == [[1, 0]]


def test_the_journal_continues_after_off_and_on_in_a_transaction(new_server: NewServer) -> None:
    server = new_server().start()
    with server.client() as client:
        off_and_on = ("CONFIG SET appendonly no", "SET x 1", "CONFIG SET appendonly yes")
        assert at_once(client, "MULTI", *off_and_on, "SET y 2", "EXEC")[-1] == [OK] * 4
        assert client.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert client.call("SET", "z", "3") == OK
    assert after_a_kill(server, "x", "y", "z") == [b"1", b"2", b"3"]
