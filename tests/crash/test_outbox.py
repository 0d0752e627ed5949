"""The outbox of docs/examples/outbox.py: a database and a stream agree, whenever the program or the
server is killed."""

from __future__ import annotations

import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Reply
from tests.support.server import Server
from tests.support.waiting import wait_until

PROGRAM = Path(__file__).parents[2] / "docs" / "examples" / "outbox.py"
KILLS = 6
ORDERS = 2000  # more than a run gets to before it is killed


def start(database: Path, count: int, port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, PROGRAM, database, str(count), str(port)])


def calls(client: RawClient, command: str) -> int:
    """The number of times that a command has run."""
    line = client.info("commandstats").get(f"cmdstat_{command}", "calls=0,")
    return int(line.removeprefix("calls=").split(",")[0])


def reported(database: Path) -> list[tuple[bytes, bytes, bytes]]:
    """The ID, number and total of each order in the database."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute("SELECT entry_id, number, total FROM orders").fetchall()
    return sorted((i.encode(), b"%d" % number, b"%d" % total) for i, number, total in rows)


def in_stream(reply: Reply) -> list[tuple[bytes, bytes, bytes]]:
    rows = map(as_list, as_list(reply))
    return sorted((as_bytes(row[0]), as_bytes(row[2]), as_bytes(row[4])) for row in rows)


@pytest.mark.parametrize("seed", [1, 2])
def test_database_and_stream_agree_after_kills(
    new_server: Callable[..., Server], tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    server, database = new_server().start(), tmp_path / "orders.db"
    for _ in range(KILLS):
        program = start(database, ORDERS, server.port)
        with server.client() as client:
            command = chance.choice(["treserve", "tcomplete"])
            enough = calls(client, command) + chance.randint(0, 30)
            wait_until(lambda: calls(client, command), lambda count: count >= enough)  # noqa: B023
        program.send_signal(signal.SIGKILL)
        program.wait()
        if chance.random() < 0.3:
            server.kill()
            server.start()
    assert start(database, 3, server.port).wait() == 0
    with server.client() as client:
        left = in_stream(client.call("TRANGE", "orders", "-", "+"))
        assert left == reported(database)
        assert len(left) > KILLS
        writers = as_list(client.call("TPOSITION", "orders", "WRITERS"))
        assert as_list(writers[0])[3] == 0, "a reservation is left"
