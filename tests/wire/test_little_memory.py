"""Near a limit of address space: the server refuses what needs memory, frees what a client deletes,
saves and stops."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import partial

import pytest
from tests.support.client import RawClient
from tests.support.resp import Error, Simple
from tests.support.server import Server, server_program
from tests.support.waiting import wait_until

NewServer = Callable[..., Server]
LIMIT_BYTES = 160 << 20
JOURNALS = {
    "off": {"appendonly": "no", "save": "3600 1"},
    "everysec": {"appendfsync": "everysec"},
    "always": {"appendfsync": "always"},
}


@pytest.fixture
def new_server(new_server: NewServer) -> NewServer:
    return partial(new_server, program=server_program(), wrapper=["prlimit", f"--as={LIMIT_BYTES}"])


def fill(client: RawClient) -> tuple[int, Error]:
    """Write until there is no memory; the number of values, and the error."""
    for number in range(1000):
        reply = client.call("SET", f"k{number}", b"x" * 1_000_000)
        if isinstance(reply, Error):
            return number, reply
    raise AssertionError("the limit is not reached")


@pytest.mark.parametrize("journal", JOURNALS)
def test_a_server_without_memory_frees_saves_and_stops(new_server: NewServer, journal: str) -> None:
    server = new_server(directives=JOURNALS[journal]).start()
    assert "ulimit -v, LimitAS) and maxmemory is 0" in server.log
    with server.client() as client:
        count, error = fill(client)
        assert count > 10
        assert error.text.startswith("OOM")
        refused = client.call("SET", "small", "v")
        assert isinstance(refused, Error)
        assert refused.text.startswith("OOM the operating system gives this process no more memory")
        assert client.info("server")["redis_version"]
        assert client.call("DEL", "k0") == 1
        assert client.call("DBSIZE") == count - 1
    assert server.stop() == 0
    assert server.log.splitlines()[-1].endswith("stopped")
    assert len(server.log) < 5000
    server.wrapper = []
    server.start()
    with server.client() as client:
        assert client.call("DBSIZE") == count - 1


def test_writes_are_accepted_when_memory_is_free_again(new_server: NewServer) -> None:
    server = new_server(directives=JOURNALS["off"]).start()
    with server.client() as client:
        count, _ = fill(client)
        client.call("DEL", *(f"k{number}" for number in range(count)))
        wait_until(lambda: client.call("SET", "small", "v"), lambda reply: reply == Simple("OK"))
    assert "there is memory again" in server.log


def test_maxmemory_below_the_limit_gives_no_warning(new_server: NewServer) -> None:
    server = new_server(directives={"maxmemory": "60mb"}).start()
    assert "LimitAS" not in server.log


FAILING = """
import sys
from millstream.server import life, main

started = life.Server.start

async def start(server):
    await started(server)

    def fail(left):
        if left:
            server.loop.call_soon(fail, left - 1)
        raise MemoryError

    server.loop.call_soon(fail, 20_000)

life.Server.start = start
main.server_main()
"""


def test_a_callback_that_always_fails_does_not_fill_the_log(new_server: NewServer) -> None:
    server = new_server(program=[sys.executable, "-c", FAILING], wrapper=[]).start()
    wait_until(lambda: "were left out" in server.log, what="the number left out")
    assert server.log.count("Exception in callback") < 30
    left_out = map(int, re.findall(r"(\d+) more", server.log))
    assert sum(left_out) + server.log.count("Exception in callback") == 20_001
    assert server.stop() == 0
