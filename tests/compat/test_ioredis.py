"""ioredis, two major versions of it: every stream command it wraps, and a program over a restart.

ioredis passes words through and gives flat arrays back, in both protocols. The conversation is held
with redis-server too, and the replies must be the same.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.compat.masks import differences, named_fields
from tests.support.node import Program
from tests.support.server import Server

LIBRARIES = pytest.mark.parametrize("library", ["ioredis", "ioredis-5"])
PROTOCOLS = pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])

CONVERSATION: list[list[Any]] = [
    ["xadd", "s", "NOMKSTREAM", "1-1", "a", 1],
    ["xadd", "s", "1-1", "a", 1, "b", "zwei ü"],
    ["xadd", "s", "MAXLEN", 10, "2-1", "a", 2],
    ["xadd", "s", "MAXLEN", "~", 10, "LIMIT", 5, "3-1", "a", 3],
    ["xadd", "s", "MINID", "=", "1", "4-1", "a", 4],
    ["xadd", "s", "MINID", "~", "1", "5-*", "a", 5],
    ["xadd", "s", "1-1", "a", 1],
    ["xadd", "s", "6-1", "a"],
    ["xlen", "s"],
    ["xrange", "s", "-", "+"],
    ["xrange", "s", "(1-1", "3", "COUNT", 1],
    ["xrangeBuffer", "s", "1", "1"],
    ["xrevrange", "s", "+", "-", "COUNT", 2],
    ["xread", "STREAMS", "s", "3-1"],
    ["xread", "COUNT", 1, "BLOCK", 10, "STREAMS", "s", "nokey", 0, 0],
    ["xread", "BLOCK", 1, "STREAMS", "s", "$"],
    ["xgroup", "CREATE", "s", "g", 0],
    ["xgroup", "CREATE", "s", "g", 0],
    ["xgroup", "CREATE", "other", "g", "$", "MKSTREAM", "ENTRIESREAD", 0],
    ["xgroup", "CREATECONSUMER", "s", "g", "carl"],
    ["xreadgroup", "GROUP", "g", "anna", "COUNT", 2, "STREAMS", "s", ">"],
    ["xreadgroup", "GROUP", "g", "bert", "COUNT", 1, "NOACK", "STREAMS", "s", ">"],
    ["xreadgroup", "GROUP", "g", "bert", "BLOCK", 10, "STREAMS", "s", ">"],
    ["xreadgroup", "GROUP", "g", "bert", "BLOCK", 1, "STREAMS", "s", ">"],
    ["xreadgroup", "GROUP", "g", "anna", "STREAMS", "s", 0],
    ["xreadgroup", "GROUP", "no", "anna", "STREAMS", "s", ">"],
    ["xpending", "s", "g"],
    ["xinfo", "STREAM", "s"],
    ["xinfo", "GROUPS", "s"],
    ["xinfo", "CONSUMERS", "s", "g"],
    ["xack", "s", "g", "1-1", "9-9"],
    ["xgroup", "SETID", "s", "g", "3-1", "ENTRIESREAD", 3],
    ["xgroup", "DELCONSUMER", "s", "g", "carl"],
    ["xdel", "s", "2-1"],
    ["xtrim", "s", "MAXLEN", 2],
    ["xtrim", "s", "MINID", "~", 4, "LIMIT", 10],
    ["xsetid", "s", "9-1"],
    ["xgroup", "DESTROY", "other", "g"],
    ["set", "string", "x"],
    ["xadd", "string", "*", "a", 1],
    ["type", "s"],
    ["del", "s"],
]

CLAIMS: list[list[Any]] = [
    *(["xadd", "s", f"{number}-1", "a", number] for number in range(1, 5)),
    ["xgroup", "CREATE", "s", "g", 0],
    ["xreadgroup", "GROUP", "g", "anna", "COUNT", 3, "STREAMS", "s", ">"],
    ["xclaim", "s", "g", "bert", 0, "1-1"],
    ["xclaim", "s", "g", "bert", 3_600_000, "2-1"],
    ["xclaim", "s", "g", "bert", 0, "2-1", "IDLE", 5000, "RETRYCOUNT", 7, "JUSTID"],
    ["xclaim", "s", "g", "bert", 0, "4-1", "TIME", 1_000_000, "FORCE"],
    ["xdel", "s", "3-1"],
    ["xautoclaim", "s", "g", "carl", 4000, "0-0", "COUNT", 1],
    ["xautoclaim", "s", "g", "carl", 0, "0-0", "JUSTID"],
    ["xpending", "s", "g"],
    ["xack", "s", "g", "1-1", "2-1", "4-1"],
    ["xpending", "s", "g", "-", "+", 10, "carl"],
    ["xpending", "s", "g", "IDLE", 0, "-", "+", 10],
]


def converse(server: Server, library: str, protocol: int, calls: list[list[Any]]) -> list[Any]:
    return converse_with([server], library, protocol, calls)[0]


def converse_with(
    servers: list[Server], library: str, protocol: int, calls: list[list[Any]]
) -> list[list[Any]]:
    """The same calls with each server, by one program: starting it takes longer than the calls."""
    ports = ",".join(str(server.port) for server in servers)
    with Program("converse.cjs", library, ports, protocol) as program:
        program.send(calls)
        program.end()
        replies = [program.hear() for _ in servers]
    assert all(isinstance(one, list) for one in replies), replies
    return replies


@PROTOCOLS
@LIBRARIES
@pytest.mark.parametrize(
    "calls",
    [
        CONVERSATION,
        CLAIMS,
    ],
    ids=["conversation", "claims"],
)
def test_the_client_returns_the_same_as_from_redis(
    server: Server, redis_server: Server, library: str, protocol: int, calls: list[list[Any]]
) -> None:
    both = converse_with([server, redis_server], library, protocol, calls)
    ours, theirs = map(named_fields, both)
    different = [
        f"{json.dumps(asked)}: {line}"
        for asked, our, their in zip(calls, ours, theirs, strict=True)
        for line in differences(our, their)
    ]
    assert not different, "\n".join(different)


# What Redis 8 has beyond 7.0, with the promised replies.
LATER: list[tuple[list[Any], Any]] = [
    *((["xadd", "s", f"{number}-1", "a", number], f"{number}-1") for number in range(1, 5)),
    (["xgroup", "CREATE", "s", "g", 0], "OK"),
    (
        ["xreadgroup", "GROUP", "g", "anna", "COUNT", 3, "STREAMS", "s", ">"],
        [["s", [[f"{number}-1", ["a", str(number)]] for number in range(1, 4)]]],
    ),
    (["xdelex", "s", "ACKED", "IDS", 2, "1-1", "9-9"], [2, 2]),
    (["xackdel", "s", "g", "DELREF", "IDS", 1, "1-1"], [1]),
    (
        ["xreadgroup", "GROUP", "g", "bert", "CLAIM", 3_600_000, "STREAMS", "s", ">"],
        [["s", [["4-1", ["a", "4"], 0, 0]]]],
    ),
    (["xread", "STREAMS", "s", "+"], [["s", [["4-1", ["a", "4"]]]]]),
    (["xcfgset", "s", "IDMP-DURATION", 60], "OK"),
    (["xlen", "s"], 3),
]


@PROTOCOLS
@LIBRARIES
def test_the_client_returns_the_results_of_redis_8(
    server: Server, library: str, protocol: int
) -> None:
    calls, promised = zip(*LATER, strict=True)
    # Methods are generated from a list of commands; others go through `call`.
    came = converse(server, library, protocol, [["call", *words] for words in calls])
    assert dict(zip(map(json.dumps, calls), came, strict=True)) == dict(
        zip(map(json.dumps, calls), promised, strict=True)
    )


@PROTOCOLS
@LIBRARIES
def test_no_order_is_lost_or_done_twice_over_a_restart(
    durable_server: Server, library: str, protocol: int
) -> None:
    with Program("ioredis_orders.cjs", library, durable_server.port, protocol) as program:
        assert program.hear() == "restart"
        durable_server.restart("SIGKILL")
        program.send("continue")
