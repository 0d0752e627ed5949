"""Our replies against those recorded from a real Redis 8.6.3, byte for byte, in RESP2 and RESP3.

One test a command. The commands build on each other, so they are played once, in order.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed
from tests.support.recordings import in_recorded_form, read_recording
from tests.support.server import Server

FOLDER = Path(__file__).parent / "golden"


@cache
def recorded(protocol: int) -> list[tuple[str, str]]:
    """The commands of a recording: words and reply."""
    return read_recording(FOLDER / f"redis-8.6-resp{protocol}.txt")


class Replay:
    """The replies of a server to a whole recording, by the number of the command."""

    def __init__(self, server: Server, protocol: int) -> None:
        self.came: dict[int, str] = {}
        with server.client(protocol) as client:
            for number, (command, _) in enumerate(recorded(protocol)):
                try:
                    self.came[number] = in_recorded_form(client.call(*shlex.split(command)))
                except (TimeoutError, ConnectionClosed) as error:
                    self.came[number] = f"no reply: {error!r}"
                    return


@pytest.fixture(scope="module")
def replays() -> dict[int, Replay]:
    return {}


def _cases() -> list[object]:
    return [
        pytest.param(
            protocol,
            number,
            id=f"RESP{protocol} {number:03} {command}",
        )
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
    came = replays[protocol].came.get(number, "not asked: an earlier command was not answered")
    pattern = re.escape(wanted).replace(re.escape("<int>"), r"\d+")
    assert re.fullmatch(pattern, came), f"\nwanted:\n{wanted}\ncame:\n{came}"
