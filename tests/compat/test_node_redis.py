"""node-redis, two major versions of it: its stream methods with all options, and a restart.

node-redis makes objects of the replies. The conversation is held with redis-server too, and the
objects must be the same. Version 5 has no RESP3 objects for stream reads; version 6 has.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.compat.masks import differences
from tests.compat.test_ioredis import converse, converse_with
from tests.support.node import Program
from tests.support.server import Server

CLIENTS = pytest.mark.parametrize(
    ("library", "protocol"),
    [("redis", 2), ("redis", 3), ("redis-5", 2)],
    ids=["redis-RESP2", "redis-RESP3", "redis-5-RESP2"],
)

STREAM = {"key": "s", "id": ">"}

CONVERSATION: list[list[Any]] = [
    ["xAdd_NOMKSTREAM", "s", "1-1", {"a": "1"}],
    ["xAdd", "s", "1-1", {"a": "1", "b": "zwei ü"}],
    ["xAdd", "s", "2-1", {"a": "2"}, {"TRIM": {"strategy": "MAXLEN", "threshold": 10}}],
    ["xAdd", "s", "3-1", {"a": "3"}, {"TRIM": {"strategy": "MAXLEN", "strategyModifier": "~",
                                               "threshold": 10, "limit": 5}}],
    ["xAdd", "s", "4-1", {"a": "4"}, {"TRIM": {"strategy": "MINID", "strategyModifier": "=",
                                               "threshold": 1}}],
    ["xAdd", "s", "1-1", {"a": "1"}],
    ["xAddNoMkStream", "nokey", "1-1", {"a": "1"}],
    ["xLen", "s"],
    ["xRange", "s", "-", "+"],
    ["xRange", "s", "(1-1", "3", {"COUNT": 1}],
    ["xRevRange", "s", "+", "-", {"COUNT": 2}],
    ["xRead", [{"key": "s", "id": "2-1"}, {"key": "nokey", "id": "0"}]],
    ["xRead", {"key": "s", "id": "0"}, {"COUNT": 1, "BLOCK": 10}],
    ["xRead", {"key": "s", "id": "$"}, {"BLOCK": 1}],
    ["xGroupCreate", "s", "g", "0"],
    ["xGroupCreate", "s", "g", "0"],
    ["xGroupCreate", "other", "g", "$", {"MKSTREAM": True, "ENTRIESREAD": 0}],
    ["xGroupCreateConsumer", "s", "g", "carl"],
    ["xReadGroup", "g", "anna", STREAM, {"COUNT": 2}],
    ["xReadGroup", "g", "bert", STREAM, {"COUNT": 1, "NOACK": True}],
    ["xReadGroup", "g", "bert", STREAM, {"BLOCK": 10}],
    ["xReadGroup", "g", "bert", STREAM, {"BLOCK": 1}],
    ["xReadGroup", "g", "anna", {"key": "s", "id": "0"}],
    ["xReadGroup", "no", "anna", STREAM],
    ["xPending", "s", "g"],
    ["xPending", "other", "g"],
    ["xPendingRange", "s", "g", "-", "+", 10],
    ["xPendingRange", "s", "g", "(1-1", "3", 10, {"IDLE": 0, "consumer": "anna"}],
    ["xInfoStream", "s"],
    ["xInfoGroups", "s"],
    ["xInfoConsumers", "s", "g"],
    ["xAck", "s", "g", "9-9"],
    ["xAck", "s", "g", ["1-1", "2-1"]],
    ["xGroupSetId", "s", "g", "2-1"],
    ["xGroupDelConsumer", "s", "g", "carl"],
    ["xDel", "s", ["2-1", "9-9"]],
    ["xTrim", "s", "MAXLEN", 2],
    ["xTrim", "s", "MINID", 4, {"strategyModifier": "~", "LIMIT": 10}],
    ["xSetId", "s", "9-1"],
    ["xSetId", "s", "9-1", {"ENTRIESADDED": 9, "MAXDELETEDID": "3-1"}],
    ["xGroupDestroy", "other", "g"],
    ["type", "s"],
]  # fmt: skip

CLAIMS: list[list[Any]] = [
    *(["xAdd", "s", f"{number}-1", {"a": str(number)}] for number in range(1, 5)),
    ["xGroupCreate", "s", "g", "0"],
    ["xReadGroup", "g", "anna", STREAM, {"COUNT": 3}],
    ["xClaim", "s", "g", "bert", 0, "1-1"],
    ["xClaim", "s", "g", "bert", 3_600_000, ["2-1"]],
    ["xClaim", "s", "g", "bert", 0, "2-1", {"IDLE": 5000, "RETRYCOUNT": 7}],
    ["xClaim", "s", "g", "bert", 0, "4-1", {"TIME": 1_000_000, "FORCE": True, "LASTID": "4-1"}],
    ["xClaimJustId", "s", "g", "carl", 0, ["1-1", "2-1"]],
    ["xDel", "s", "3-1"],
    ["xAutoClaim", "s", "g", "carl", 0, "0-0", {"COUNT": 1}],
    ["xAutoClaim", "s", "g", "dora", 0, "0-0"],
    ["xAutoClaimJustId", "s", "g", "emil", 0, "0-0"],
    ["xPendingRange", "s", "g", "-", "+", 10],
    ["xPending", "s", "g"],
]


@CLIENTS
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
    ours, theirs = converse_with([server, redis_server], library, protocol, calls)
    different = [
        f"{json.dumps(asked)}: {line}"
        for asked, our, their in zip(calls, ours, theirs, strict=True)
        for line in differences(our, their)
    ]
    assert not different, "\n".join(different)


# What Redis 8 has beyond 7.0, with the promised objects.
LATER: list[tuple[list[Any], Any]] = [
    *((["xAdd", "s", f"{number}-1", {"a": str(number)}], f"{number}-1") for number in range(1, 6)),
    (["xGroupCreate", "s", "g", "0"], "OK"),
    (["xReadGroup", "g", "anna", STREAM, {"COUNT": 1}],
     [{"name": "s", "messages": [{"id": "1-1", "message": {"a": "1"}}]}]),
    (["xDelEx", "s", ["1-1", "9-9"], "ACKED"], [2, 2]),
    (["xAckDel", "s", "g", ["1-1", "1-1"], "DELREF"], [1, -1]),
    (["xAdd", "s", "6-1", {"a": "6"},
      {"TRIM": {"strategy": "MAXLEN", "threshold": 4, "policy": "KEEPREF"}}], "6-1"),
    (["xTrim", "s", "MAXLEN", 3, {"policy": "DELREF"}], 1),
    (["xRead", {"key": "s", "id": "+"}],
     [{"name": "s", "messages": [{"id": "6-1", "message": {"a": "6"}}]}]),
    (["xLen", "s"], 3),
]  # fmt: skip

ONLY_6: list[tuple[list[Any], Any]] = [
    (["xAdd", "s", "1-1", {"a": "1"}], "1-1"),
    (["xCfgSet", "s", {"IDMP_DURATION": 60, "IDMP_MAXSIZE": 10}], "OK"),
    (["xAdd", "s", "*", {"a": "2"}, {"IDMP": {"pid": "shop", "iid": "2"}}], "an id"),
    (["xAdd", "s", "*", {"a": "2"}, {"IDMP": {"pid": "shop", "iid": "2"}}], "an id"),
    (["xAdd", "s", "*", {"a": "3"}, {"IDMPAUTO": {"pid": "shop"}}], "an id"),
    (["xAdd", "s", "*", {"a": "3"}, {"IDMPAUTO": {"pid": "shop"}}], "an id"),
    (["xLen", "s"], 3),
]


@CLIENTS
def test_the_client_returns_the_results_of_redis_8(
    server: Server, library: str, protocol: int
) -> None:
    calls, promised = zip(*LATER, strict=True)
    came = converse(server, library, protocol, list(calls))
    assert list(zip(calls, came, strict=True)) == list(zip(calls, promised, strict=True))


@pytest.mark.parametrize("protocol", [2, 3], ids=["RESP2", "RESP3"])
def test_a_repeated_append_answers_the_first_ones_id(server: Server, protocol: int) -> None:
    calls, promised = zip(*ONLY_6, strict=True)
    came = converse(server, "redis", protocol, list(calls))
    assert [
        wanted if wanted == "an id" and "-" in str(reply) else reply
        for reply, wanted in zip(came, promised, strict=True)
    ] == list(promised)
    assert (came[2], came[4]) == (came[3], came[5])


@CLIENTS
def test_no_order_is_lost_or_done_twice_over_a_restart(
    durable_server: Server, library: str, protocol: int
) -> None:
    with Program("node_redis_orders.cjs", library, durable_server.port, protocol) as program:
        assert program.hear() == "restart"
        durable_server.restart("SIGKILL")
        program.send("continue")
