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


def played(server: Server, protocol: int) -> list[Reply]:
    """A server's replies to all lines, or to those before the first that is not answered."""
    replies: list[Reply] = []
    with server.client(protocol) as client, suppress(TimeoutError, ConnectionClosed):
        for line in LINES:
            replies.append(client.call(*shlex.split(line)))
    return replies


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


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_the_replies_are_the_same(server: Server, redis_server: Server, protocol: int) -> None:
    ours, theirs = played(server, protocol), played(redis_server, protocol)
    assert len(theirs) == len(LINES), f"Redis does not answer {LINES[len(theirs)]}"
    assert len(ours) == len(LINES), f"no reply to {LINES[len(ours)]}"
    different = []
    for line, one, other in zip(LINES, ours, theirs, strict=True):
        if isinstance(other, list | Map) and line.startswith("XINFO STREAM"):
            missing = fields(other).keys() - fields(one).keys()
            assert not missing, line
        if type(one) is not type(other) or masked(line, one, other) != masked(line, other, one):
            different.append(f"{line}\nours:\n{show(one)}\ntheirs:\n{show(other)}")
    assert not different, "\n".join(different)
