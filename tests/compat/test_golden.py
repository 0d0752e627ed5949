"""Our replies against those recorded from a real Redis 8.6.3, byte for byte, in RESP2 and RESP3.

The commands build on each other, so they are played in order.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed
from tests.support.recordings import in_recorded_form, read_recording
from tests.support.server import Server

FOLDER = Path(__file__).parent / "golden"


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_the_replies_are_the_recorded_ones(server: Server, protocol: int) -> None:
    others = []
    with server.client(protocol) as client:
        for command, wanted in read_recording(FOLDER / f"redis-8.6-resp{protocol}.txt"):
            try:
                came = in_recorded_form(client.call(*shlex.split(command)))
            except (TimeoutError, ConnectionClosed) as error:
                raise AssertionError(f"no reply to {command}: {error!r}") from error
            pattern = re.escape(wanted).replace(re.escape("<int>"), r"\d+")
            if not re.fullmatch(pattern, came):
                others.append(f"{command}\nwanted:\n{wanted}\ncame:\n{came}")
    assert not others, "\n".join(others)
