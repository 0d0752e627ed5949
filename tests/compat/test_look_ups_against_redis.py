"""Hits, misses and keymiss events of every shared command, compared with a real redis-server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient, as_list
from tests.support.server import Server, redis_program

EVENTS = {"notify-keyspace-events": "Em", "appendfsync": "no"}
MADE = {
    "a stream": ["XADD k 1-1 a 1", "XADD k 2-1 a 1", "XGROUP CREATE k g 0",
                 "XREADGROUP GROUP g c COUNT 1 STREAMS k >"],
    "an empty stream": ["XADD k 1-1 a 1", "XGROUP CREATE k g 0", "XDEL k 1-1"],
    "a string": ["SET k 5"],
    "no key": ["SET other 5"],
}  # fmt: skip
REQUESTS = """
    XLEN k; XRANGE k - +; XREVRANGE k + -; XREAD STREAMS k 0; XREAD STREAMS k $; XREAD STREAMS k 9
    XREAD COUNT 1 STREAMS k k 0 0; XREAD STREAMS k other 0 0; XREAD BLOCK 1 STREAMS k $
    XREADGROUP GROUP g c STREAMS k >; XREADGROUP GROUP g c STREAMS k 0
    XREADGROUP GROUP nog c STREAMS k 0; XREADGROUP GROUP g c BLOCK 1 STREAMS k >
    XREADGROUP GROUP g c COUNT 1 STREAMS k k > >; XACK k g 1-1; XACK k nog 1-1
    XCLAIM k g c 0 1-1; XCLAIM k nog c 0 1-1; XAUTOCLAIM k g c 0 0; XPENDING k g
    XAUTOCLAIM k g c abc 0; XAUTOCLAIM k g c 0 0 COUNT 0; XAUTOCLAIM k nog c 0 0 FOO
    XPENDING k g - + 10; XPENDING k nog; XDEL k 1-1; XTRIM k MAXLEN 0; XADD k 9-* a 1
    XADD k NOMKSTREAM 9-* a 1; XSETID k 99-1; XINFO STREAM k; XINFO STREAM k FULL
    XINFO GROUPS k; XINFO CONSUMERS k g; XINFO CONSUMERS k nog; XGROUP CREATE k h $
    XGROUP CREATE k h $ MKSTREAM; XGROUP CREATE k g $; XGROUP SETID k g 0; XGROUP SETID k nog 0
    XGROUP DESTROY k g; XGROUP DESTROY k nog; XGROUP CREATECONSUMER k g new
    XGROUP CREATECONSUMER k nog new; XGROUP DELCONSUMER k g c; XGROUP DELCONSUMER k g no
    GET k; SET k v; SET k v NX; SET k v XX; SET k v GET; SET k v KEEPTTL; SET k v EX 100
    GETDEL k; GETEX k; GETEX k EX 100; APPEND k v; STRLEN k; INCR k; INCRBY k 2; DECR k
    DECRBY k 2; MGET k k other; MSET k v other v; SETEX k 100 v; PSETEX k 100 v; SETNX k v
    DEL k; UNLINK k; EXISTS k k; TYPE k; TOUCH k k; RENAME k new; RENAME k k; RENAMENX k new
    RENAMENX k other; MOVE k 1; COPY k new; COPY k other; COPY k other REPLACE; COPY k new DB 1
    OBJECT ENCODING k; OBJECT IDLETIME k; OBJECT REFCOUNT k; OBJECT FREQ k; EXPIRE k 100
    PEXPIRE k 100000; EXPIREAT k 99999999999; EXPIRE k -1; EXPIRETIME k; PEXPIRETIME k; TTL k
    PTTL k; PERSIST k; KEYS *; SCAN 0; RANDOMKEY; DBSIZE; MEMORY USAGE k; WATCH k; SWAPDB 0 1
    FLUSHDB
"""


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    folder: Path = tmp_path_factory.mktemp("look-ups")
    started = [
        Server(folder / "ours", EVENTS).start(),
        Server(folder / "redis", EVENTS, redis_program()).start(),
    ]
    yield started
    for server in started:
        server.kill()


def looked_up(client: RawClient, listener: RawClient, kind: str, request: str) -> list[object]:
    """Hits, misses and keymiss events of one request."""
    client.call("UNWATCH")
    client.call("FLUSHALL")
    for line in MADE[kind]:
        client.call(*line.split())
    client.call("CONFIG", "RESETSTAT")
    client.call(*request.split())
    stats = client.info("stats")
    client.call("PUBLISH", "done", request)
    events = 0
    while as_list(listener.read())[1] != b"done":
        events += 1
    return [stats["keyspace_hits"], stats["keyspace_misses"], events]


@pytest.mark.parametrize("kind", MADE)
def test_look_ups_count_as_in_redis(servers: list[Server], kind: str) -> None:
    requests = [words.strip() for words in REQUESTS.replace("\n", ";").split(";") if words.strip()]
    counted = []
    for server in servers:
        with server.client() as client, server.client() as listener:
            listener.call("SUBSCRIBE", "done")
            listener.call("SUBSCRIBE", "__keyevent@0__:keymiss")
            counted.append(
                {request: looked_up(client, listener, kind, request) for request in requests}
            )
    ours, theirs = counted
    assert ours == theirs
