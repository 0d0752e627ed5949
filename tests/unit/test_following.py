"""The stream of a Redis at a server: transactions, in this process."""

from __future__ import annotations

from random import Random

import pytest
from tests.support import rdb_files
from tests.support.following_server import OFFSET, FollowingServer, session
from tests.support.resp import encode_command

RDB = rdb_files.file(rdb_files.key(b"base", rdb_files.string(b"x")))


def followed(*commands: str) -> FollowingServer:
    stream = b"".join(encode_command(words.split()) for words in commands)
    return FollowingServer(Random(1)).deliver(session(RDB, stream), 4096)


@pytest.mark.parametrize(
    ("commands", "reason"),
    [
        (["MULTI", *["XADD s 6-* a b"] * 4000], "a MULTI of the source has no EXEC after "),
        (["MULTI", "SET k 1", "MULTI", "EXEC"], "the source sent MULTI in a wrong place"),
        (["SET k 1", "EXEC"], "the source sent EXEC in a wrong place"),
    ],
)
def test_a_wrong_transaction_ends_the_link(commands: list[str], reason: str) -> None:
    server = followed("SELECT 0", *commands, "SET never 1")
    assert reason in server.error
    assert not server.is_up
    keys = [row[1] for row in server.contents()[2:]]
    assert keys == ([b"base", b"k"] if commands[0] != "MULTI" else [b"base"])


@pytest.mark.parametrize("seed", range(4))
def test_stored_commands_run_before_the_source_is_asked_for_more(seed: int) -> None:
    """The link is cut while the RDB is converted. The position counts the commands that arrived."""
    stream = b"".join(encode_command(words.split()) for words in ["SELECT 0", *["INCR n"] * 50])
    server = FollowingServer(Random(seed))
    server.deliver(session(RDB, stream), 1 << 20, rests=False)
    server.cut_off()
    position = server.asked_position()
    assert position is not None
    server.deliver(b"+CONTINUE\r\n" + stream[position - OFFSET :], 1 << 20)
    assert server.contents()[-1] == (0, b"n", None, b"50")
    assert "it was closed" in server.error


def test_wrong_bytes_after_a_full_sync_end_the_connection_only() -> None:
    """They were stored, and are found when the RDB is loaded."""
    stream = b":1\r\n" + b"*1\r\n$4\r\nPING\r\n" * 200_000
    server = FollowingServer(Random(1)).deliver(session(RDB, stream), 1 << 20)
    assert "in place of a request" in server.error
    server.cut_off()
    assert server.asked_position() is not None


def test_a_transaction_is_applied_at_its_end() -> None:
    begun = ["SELECT 0", "MULTI", *["XADD s 6-* a b"] * 2000]
    assert [row[1] for row in followed(*begun).contents()[2:]] == [b"base"]
    server = followed(*begun, "EXEC")
    assert [row[1] for row in server.contents()[2:]] == [b"base", b"s"]
    assert (server.error, server.is_up) == ("", True)
