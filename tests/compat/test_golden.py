"""Our replies against those recorded from a real Redis 8.6.3, byte for byte, in RESP2 and RESP3.

One test a command. The commands build on each other, so they are played once, in order.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from tests.support.resp import Double, Error, Map, Null, Push, Reply, Set, Simple
from tests.support.server import Server

FOLDER = Path(__file__).parent / "golden"


@cache
def recorded(protocol: int) -> list[tuple[str, str]]:
    """The commands of a recording, each with its reply's lines."""
    pairs: list[tuple[str, list[str]]] = []
    for line in (FOLDER / f"redis-8.6-resp{protocol}.txt").read_text().splitlines():
        if line.startswith("> "):
            pairs.append((line[2:], []))
        elif not line.startswith("#"):
            pairs[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in pairs]


def in_recorded_form(reply: Reply, depth: int = 0) -> str:
    """A reply as the recordings write it: one element a line, the RESP type in front."""
    indent = "  " * depth
    if isinstance(reply, bytes):
        return indent + "$" + repr(reply.decode("utf-8", "replace"))
    if isinstance(reply, bool):
        return indent + ("#t" if reply else "#f")
    if isinstance(reply, int):
        return f"{indent}:{reply}"
    if isinstance(reply, Null):
        return indent + reply.value
    if isinstance(reply, Simple | Error | Double):
        return indent + {Simple: "+", Error: "-", Double: ","}[type(reply)] + reply.text
    if isinstance(reply, Map):
        head, items = f"%{len(reply.pairs)}", [item for pair in reply.pairs for item in pair]
    elif isinstance(reply, Set | Push):
        head, items = f"{'~' if isinstance(reply, Set) else '>'}{len(reply.items)}", reply.items
    else:
        assert isinstance(reply, list), reply
        head, items = f"*{len(reply)}", reply
    return "\n".join([indent + head, *(in_recorded_form(item, depth + 1) for item in items)])


class Replay:
    """What a server answered to a whole recording."""

    def __init__(self, server: Server, protocol: int) -> None:
        with server.client(protocol) as client:
            commands = [shlex.split(command) for command, _ in recorded(protocol)]
            self.came = [in_recorded_form(client.call(*words)) for words in commands]


@pytest.fixture(scope="module")
def replays() -> dict[int, Replay]:
    return {}


def _cases() -> list[object]:
    return [
        pytest.param(protocol, number, id=f"RESP{protocol} {number:03} {command}")
        for protocol in (2, 3)
        for number, (command, _) in enumerate(recorded(protocol))
    ]


@pytest.mark.parametrize(("protocol", "number"), _cases())
def test_reply_is_the_recorded_one(
    server: Server, replays: dict[int, Replay], protocol: int, number: int
) -> None:
    if protocol not in replays:
        replays[protocol] = Replay(server, protocol)
    wanted = recorded(protocol)[number][1]
    came = replays[protocol].came[number]
    pattern = re.escape(wanted).replace(re.escape("<int>"), r"\d+")
    assert re.fullmatch(pattern, came), f"\nwanted:\n{wanted}\ncame:\n{came}"
