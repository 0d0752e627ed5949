"""The time that a server may wait, from the words of a command."""

from __future__ import annotations

import math
from typing import Any

import pytest
from redis.exceptions import ResponseError
from tests.client.apis import Api
from tests.client.conftest import url_of
from tests.support.server import Server

from millstream.client.core.reads_and_waits import block_s, is_read


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (("XREAD", "BLOCK", 1500, "STREAMS", "s", "$"), 1.5),
        (("xread", "block", "1500", "streams", "s", "$"), 1.5),
        ((b"xread", b"block", b"1500", b"streams", b"s", b"$"), 1.5),
        (("TREAD", "s", "$", 1, "BLOCK", 0), math.inf),
        (("XREAD", "STREAMS", "BLOCK", "5"), 0.0),
        (("GET", "BLOCK", 5), 0.0),
        (("WAIT", 1, 700), 0.7),
        ((b"waitaof", 1, 0, b"700"), 0.7),
        (("WAIT", 1, 0), math.inf),
        (("WAIT", 1), 0.0),
        (("XREAD", "BLOCK", "soon", "STREAMS", "s", "$"), 0.0),
        (("XREAD BLOCK 1500 STREAMS s $",), 1.5),
        ((b"xread  block\t1500 streams s $",), 1.5),
        (("XREAD BLOCK", 1500, "STREAMS", "s", "$"), 1.5),
        (("WAIT 1 700",), 0.7),
        (("",), 0.0),
        (("TPOSITION", "k", "WAIT", "5.0", 700), 0.7),
        (("tposition k writer wait wait 5.0 700",), 0.7),
        (("TPOSITION", "k", "WRITER", "WAIT"), 0.0),
    ],
)
def test_the_time_that_a_command_waits(words: tuple[Any, ...], seconds: float) -> None:
    assert block_s(words) == seconds


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        (("xrange", "s", "-", "+"), True),
        ((b"XINFO", "STREAM", "s"), True),
        (("XINFO STREAM", "s"), True),
        (("tread", "s", 0, 1), True),
        (("tread", "s", 0, 1, "group", "g", 0), False),
        (("tread s 0 1 group g 0",), False),
        ((b"TREAD s 0 1",), True),
        (("xadd s * n 1",), False),
        (("xadd", "s", "*", "n", 1), False),
    ],
)
def test_which_commands_may_be_repeated(words: tuple[Any, ...], reads: bool) -> None:
    assert is_read(words) == reads


@pytest.mark.parametrize("name", ["xread", b"XREAD", "tread"])
def test_a_command_in_any_spelling_may_outlast_the_timeout(
    api: Api, server: Server, name: Any
) -> None:
    ms = api.connect(url_of(server), timeout=0.2)
    words = ["s", "$", 1, "block", 400] if name == "tread" else ["block", 400, "streams", "s", "$"]
    assert not ms.execute_command(name, *words)


@pytest.mark.parametrize("text", ["XREAD BLOCK 400 STREAMS s $", b"tread s $ 1 block 400"])
def test_a_command_as_one_text_may_wait_longer_than_the_timeout(
    api: Api, server: Server, text: Any
) -> None:
    ms = api.connect(url_of(server), timeout=0.2)
    assert not ms.execute_command(text)
    with ms.pipeline(transaction=False) as pipe:
        pipe.execute_command(text)
        assert not pipe.execute()[0]


def test_an_error_of_a_pipeline_names_the_key_of_one_text(ms: Any) -> None:
    ms.set("k", "v")
    with ms.pipeline(transaction=False) as pipe:
        pipe.execute_command("TINFO k")
        with pytest.raises(ResponseError, match="'k' is not a stream"):
            pipe.execute()


@pytest.mark.parametrize("transaction", [False, True])
def test_a_pipeline_waits_as_long_as_its_commands(
    api: Api, server: Server, transaction: bool
) -> None:
    ms = api.connect(url_of(server), timeout=0.2)
    with ms.pipeline(transaction=transaction) as pipe:
        pipe.xread({"s": "$"}, block=500)
        pipe.tread("s", "$", 1, block=500)
        pipe.ping()
        nothing, none, pong = pipe.execute()
        assert (not nothing, none, pong) == (True, [], True)
        pipe.watch("s")
        assert not pipe.xread({"s": "$"}, block=500)  # sent at once


def test_the_order_and_the_filter_of_a_group(ms: Any) -> None:
    order, where = ("FIELD", "k"), [("k", "IN", ["a", "b"])]
    assert ms.tgroup("rules", "g", start=0, timeout=9000, order=order, run=2, where=where)
    added = [ms.tappend("rules", {"k": k}) for k in "aacab"]
    read = [record.id for record in ms.tread("rules", 0, 10, group="g")]
    assert read == [added[0], added[1], added[4]]
    with pytest.raises(ResponseError, match="ORDER can change only while"):
        ms.tgroup("rules", "g", order="ALL")
    assert ms.tgroup("rules", "g", where=[])
    assert ms.tgroup("rules", "h", start=0, timeout=9000, order="ALL")
    assert [record.id for record in ms.tread("rules", 0, 10, group="h")] == added[:1]
