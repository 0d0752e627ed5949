"""The example of docs/contributing.md is a handler file that runs as it stands."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.resp import Null
from tests.support.server import Server

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "support" / "example_family.py"
# A server whose command table has the example's commands, too.
START = f"""
import runpy
runpy.run_path({str(EXAMPLE)!r})
from millstream.server.main import server_main
server_main()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(
        tmp_path / "data",
        {"notify-keyspace-events": "KEA"},
        program=[sys.executable, "-c", START],
    )
    try:
        yield server.start()
    finally:
        server.stop()


def looked_up(client: RawClient) -> tuple[int, int]:
    info = client.info("stats")
    return int(info["keyspace_hits"]), int(info["keyspace_misses"])


def changes(client: RawClient) -> int:
    return int(client.info("persistence")["rdb_changes_since_last_save"])


def test_the_page_shows_the_file() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text()
    [block] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert block == EXAMPLE.read_text()


def test_a_read_counts_a_hit_and_a_miss(server: Server) -> None:
    with server.client() as client:
        client.call("XADD", "s", "1-1", "a", "1")
        assert client.call("XLAST", "s") == b"1-1"
        assert looked_up(client) == (1, 0)
        assert client.call("XLAST", "no") is Null.BULK
        assert looked_up(client) == (1, 1)


def test_a_change_is_counted_sent_as_an_event_and_lasts(server: Server) -> None:
    with server.client() as client, server.client() as subscriber:
        client.call("XADD", "s", "1-1", "a", "1")
        client.call("XADD", "s", "2-1", "a", "1")
        subscriber.call("SUBSCRIBE", "__keyevent@0__:xdel")
        assert changes(client) == 2
        assert client.call("XDROPLAST", "s") == 1
        assert changes(client) == 3
        assert subscriber.read() == [b"message", b"__keyevent@0__:xdel", b"s"]
    server.restart()
    with server.client() as client:
        assert client.call("XLAST", "s") == b"1-1"
