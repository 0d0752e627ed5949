"""redis-py, as its users use it: sync and asyncio, RESP2 and RESP3, and no warning on the way.

Where redis-server knows the commands too, redis-py must return the same objects from both.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import redis
import redis.asyncio
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, POLL_S

pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"]),
]

# (method, arguments, keyword arguments); ids are explicit, so that two servers answer alike.
CONVERSATION: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("ping", (), {}),
    ("xadd", ("s", {"a": "1", "b": "2"}), {"id": "1-1"}),
    ("xadd", ("s", {b"\x00": b"\xff"}), {"id": "2-1", "maxlen": 100, "approximate": True}),
    ("xadd", ("s", {"a": "3"}), {"id": "3-1"}),
    ("xlen", ("s",), {}),
    ("xrange", ("s",), {}),
    ("xrange", ("s", "2", "+"), {"count": 1}),
    ("xrevrange", ("s",), {"count": 2}),
    ("xread", ({"s": "1-1"},), {"count": 1}),
    ("xread", ({"s": "$"},), {"block": 10}),
    ("xgroup_create", ("s", "g", "0"), {}),
    ("xreadgroup", ("g", "alice", {"s": ">"}), {"count": 2}),
    ("xreadgroup", ("g", "bob", {"s": ">"}), {"noack": True}),
    ("xreadgroup", ("g", "bob", {"s": ">"}), {}),
    ("xreadgroup", ("g", "bob", {"s": ">"}), {"block": 10}),
    ("xreadgroup", ("g", "alice", {"s": "0"}), {}),
    ("xpending", ("s", "g"), {}),
    ("xack", ("s", "g", "1-1", "9-9"), {}),
    ("xinfo_groups", ("s",), {}),
    ("xdel", ("s", "1-1"), {}),
    ("xtrim", ("s",), {"maxlen": 1, "approximate": False}),
    ("xgroup_destroy", ("s", "g"), {}),
    ("set", ("str", "x"), {}),
    ("get", ("str",), {}),
    ("exists", ("s", "nokey"), {}),
    ("type", ("s",), {}),
    ("delete", ("s",), {}),
]


def connect(server: Server, protocol: int) -> Any:
    return redis.Redis(port=server.port, protocol=protocol)


def converse(server: Server, protocol: int) -> list[Any]:
    with connect(server, protocol) as client:
        return [getattr(client, name)(*args, **kwargs) for name, args, kwargs in CONVERSATION]


async def converse_async(server: Server, protocol: int) -> list[Any]:
    async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client:
        return [await getattr(client, name)(*args, **kwargs) for name, args, kwargs in CONVERSATION]


def test_a_sync_client_gets_the_replies_of_redis(
    server: Server, redis_server: Server, protocol: int
) -> None:
    ours, theirs = converse(server, protocol), converse(redis_server, protocol)
    for (name, args, _), our, their in zip(CONVERSATION, ours, theirs, strict=True):
        assert our == their, (name, args)


def test_an_asyncio_client_gets_the_replies_of_redis(
    server: Server, redis_server: Server, protocol: int
) -> None:
    ours = asyncio.run(converse_async(server, protocol))
    theirs = asyncio.run(converse_async(redis_server, protocol))
    for (name, args, _), our, their in zip(CONVERSATION, ours, theirs, strict=True):
        assert our == their, (name, args)


def test_sync_client_speaks_the_drafts_commands(server: Server, protocol: int) -> None:
    with connect(server, protocol) as client:
        call = client.execute_command
        first = call("TAPPEND", "s", "f", "v")
        ms, seq = first.split(b".")
        assert ms.isdigit()
        assert seq.isdigit()
        second = call("TAPPEV", "s", "COUNT", 10, "f", b"\x00")
        assert call("TREAD", "s", 0, 10) == [[first, b"f", b"v"], [second, b"f", b"\x00"]]
        assert call("TRANGE", "s", "-", "+", "COUNT", 1) == [[first, b"f", b"v"]]
        read = call("TREAD", "s", 0, 1, "GROUP", "g", 0, "RETRY", 0, 0, "WITHINFO")
        assert read == [[first, second], [first, b"f", b"v"]]
        assert call("TACK", "s", "g", first) == 1
        assert call("TREAD", "s", "", 10, "BLOCK", 10) is None
        assert client.xrange("s")[0] == (first.replace(b".", b"-"), {b"f": b"v"})
        with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'tappend'"):
            call("TAPPEND", "s", "f")


def test_asyncio_client_speaks_the_drafts_commands(server: Server, protocol: int) -> None:
    async def talk() -> None:
        async with redis.asyncio.Redis(port=server.port, protocol=protocol) as client:
            call = client.execute_command
            waiting = asyncio.create_task(call("TREAD", "s", "", 10, "BLOCK", 0))
            async with asyncio.timeout(DEADLINE_S):
                while (await client.info("clients"))["blocked_clients"] != 1:
                    await asyncio.sleep(POLL_S)
            entry_id = await call("TAPPEND", "s", "f", "v")
            assert await waiting == [[entry_id, b"f", b"v"]]
            read = await call("TREAD", "s", 0, 10, "GROUP", "g", 0, "RETRY", 0, 0)
            assert read == [[entry_id, b"f", b"v"]]
            assert await call("TACK", "s", "g", entry_id) == 1

    asyncio.run(talk())


def test_a_client_blocked_in_a_thread_is_woken(server: Server, protocol: int) -> None:
    got: list[Any] = []
    with connect(server, protocol) as blocked, server.client() as other:
        thread = threading.Thread(
            target=lambda: got.append(blocked.execute_command("TREAD", "s", "", 1, "BLOCK", 0))
        )
        thread.start()
        other.wait_blocked(1)
        other.call("XADD", "s", "1-1", "f", "v")
        thread.join(10)
    assert got == [[[b"1.1", b"f", b"v"]]]


@pytest.mark.parametrize(
    "transaction",
    [False, True],
    ids=["pipeline", "transaction"],
)
def test_pipelines_and_transactions(server: Server, protocol: int, transaction: bool) -> None:
    with (
        connect(server, protocol) as client,
        client.pipeline(transaction=transaction) as pipeline,
    ):
        pipeline.xadd("s", {"f": "v"}, id="1-1")
        pipeline.execute_command("TRANGE", "s", "-", "+")
        pipeline.execute_command("TACK", "s", "g", "1.1")
        assert pipeline.execute() == [b"1-1", [[b"1.1", b"f", b"v"]], 0]


def test_a_string_with_a_time_to_live(server: Server, protocol: int) -> None:
    with connect(server, protocol) as client:
        assert client.set("k", "v", ex=100)
        assert 0 < client.ttl("k") <= 100
        assert client.get("k") == b"v"


def test_clients_get_the_replies_of_their_first_requests(server: Server, protocol: int) -> None:
    with connect(server, protocol) as client:
        assert client.info()["redis_version"].startswith("8.10.")
        assert client.info("server")["server"] == "millstream"
        assert client.client_setname("name")
        assert client.client_getname() in (b"name", "name")
        assert client.client_id() > 0
        assert any(c["name"] == "name" for c in client.client_list())
        assert client.config_get("appendfsync") in (
            {"appendfsync": "always"},
            {b"appendfsync": b"always"},
        )
        assert "tappend" in client.command()
