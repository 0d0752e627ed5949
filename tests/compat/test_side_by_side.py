"""The same commands to our server and to a real redis-server 7.0: equal replies, line by line."""

from __future__ import annotations

import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed
from tests.support.resp import Map, Reply, show
from tests.support.server import Server

LINES = [
    line
    for line in (Path(__file__).parent / "side_by_side.txt").read_text().splitlines()
    if line and not line.startswith("#")
]
TREE_FIGURES = (b"radix-tree-keys", b"radix-tree-nodes")


class Play:
    """A server's replies to all lines, or to those before the first that is not answered."""

    def __init__(self, server: Server, protocol: int) -> None:
        self.replies: list[Reply] = []
        with server.client(protocol) as client, suppress(TimeoutError, ConnectionClosed):
            for line in LINES:
                self.replies.append(client.call(*shlex.split(line)))


def masked(line: str, reply: Reply, other: Reply) -> str:
    """Without what differs from run to run (times) or from version to version (new fields)."""
    if re.match(r"XPENDING \S+ \S+ (IDLE \S+ )?\S+ \S+ \d+", line) and isinstance(reply, list):
        for entry in reply:
            assert isinstance(entry, list)
            assert type(entry[2]) is int
        return show([[*entry[:2], *entry[3:]] for entry in reply if isinstance(entry, list)])
    if line.startswith("XINFO STREAM") and isinstance(reply, list | Map):
        ours, theirs = fields(reply), fields(other)
        common = {k: v for k, v in ours.items() if k in theirs and k not in TREE_FIGURES}
        return "\n".join(f"{k!r}: {show(v)}" for k, v in sorted(common.items()))
    if re.match(r"XADD \S+ \* ", line):
        return re.sub(r"\d{13}-\d+", "<id>", show(reply))
    return show(reply)


def fields(reply: Reply) -> dict[bytes, Reply]:
    flat = [x for p in reply.pairs for x in p] if isinstance(reply, Map) else reply
    assert isinstance(flat, list)
    return {k: v for k, v in zip(flat[::2], flat[1::2], strict=True) if isinstance(k, bytes)}


@pytest.fixture(scope="module")
def plays() -> dict[tuple[str, int], Play]:
    return {}


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
@pytest.mark.parametrize("number", range(len(LINES)), ids=lambda n: f"{n:03} {LINES[n]}")
def test_same_reply(
    server: Server,
    redis_server: Server,
    plays: dict[tuple[str, int], Play],
    number: int,
    protocol: int,
) -> None:
    for name, played in (("ours", server), ("redis", redis_server)):
        if (name, protocol) not in plays:
            plays[name, protocol] = Play(played, protocol)
    assert number < len(plays["ours", protocol].replies), "no reply to this or an earlier line"
    ours = plays["ours", protocol].replies[number]
    theirs = plays["redis", protocol].replies[number]
    line = LINES[number]
    if isinstance(theirs, list | Map) and line.startswith("XINFO STREAM"):
        missing = fields(theirs).keys() - fields(ours).keys()
        assert not missing
    assert type(ours) is type(theirs), (show(ours), show(theirs))
    assert masked(line, ours, theirs) == masked(line, theirs, ours)
