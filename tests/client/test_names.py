"""Children with one key on several servers: each is a separate shard with its own name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.client.apis import Api, rest, take
from tests.client.conftest import url_of
from tests.client.test_real_servers import saved
from tests.support.server import Server

from millstream.client import InvalidPosition, InvalidStream, Shard
from millstream.client.core.shard_order import child_name


@pytest.mark.parametrize(
    ("key", "name", "child"),
    [
        ("orders", "orders", "orders.1"),
        ("orders", "orders@oslo", "orders.1@oslo"),
        ("orders", "left", "orders.1@left"),
        (b"orders", "orders@oslo", "orders.1@oslo"),
    ],
)
def test_a_child_is_named_as_its_parent_is(key: str | bytes, name: str, child: str) -> None:
    assert child_name("orders.1", Shard(key, None, name)) == child


@pytest.fixture
def two(api: Api, servers: Callable[[int], list[Server]]) -> tuple[Any, Any]:
    """Connections to two servers with one sealed stream each, and one child under the same key."""
    first, second = (api.connect(url_of(server)) for server in servers(2))
    return first, second


def split(ms: Any, key: str, mark: str) -> None:
    ms.tappend(key, {"n": f"{mark}1"})
    ms.tseal(key, "child")
    ms.tappend("child", {"n": f"{mark}2"})
    ms.tseal("child", "grandchild")
    ms.tappend("grandchild", {"n": f"{mark}3"})
    ms.tseal("grandchild")


WANTED = {"a1", "a2", "a3", "b1", "b2", "b3"}


def test_children_with_one_key_on_two_servers_are_both_read(api: Api, two: Any) -> None:
    first, second = two
    for ms, mark in ((first, "a"), (second, "b")):
        split(ms, "orders", mark)
    shards = [api.shard("orders", first, "orders@a"), api.shard("orders", second, "orders@b")]
    with first.stream(shards, "trim_horizon") as stream:
        records = rest(stream)
    assert {record["n"] for record in records} == WANTED
    assert {record.shard for record in records} == {
        f"{key}@{mark}" for key in ("orders", "child", "grandchild") for mark in "ab"
    }
    for cut in range(7):  # continued from a token after any record
        with first.stream(shards, "trim_horizon", batch=1) as stream:
            before = [record.id for record in take(stream, cut)]
            token = saved(stream)
        with first.stream(shards, token) as stream:
            after = [record.id for record in rest(stream)]
        assert before + after == [record.id for record in records]


def test_children_of_unnamed_shards_are_both_read(api: Api, two: Any) -> None:
    first, second = two
    split(first, "left", "a")
    split(second, "right", "b")
    shards = ["left", api.shard("right", second)]
    with first.stream(shards, "trim_horizon") as stream:
        found = [record["n"] for record in take(stream, 3)]
        token = saved(stream)
    with first.stream(shards, token) as stream:
        found += [record["n"] for record in rest(stream)]
    assert sorted(found) == sorted(WANTED)


def test_a_child_of_two_named_parents_is_read_once(ms: Any) -> None:
    shards = [Shard("left", None, "left@a"), Shard("right", None, "right@b")]
    for key in ("left", "right"):
        ms.tappend(key, {"n": key})
    with ms.pipeline() as pipe:
        pipe.tseal("left", "both")
        pipe.tseal("right", "both")
        pipe.execute()
    ms.tappend("both", {"n": "both"})
    ms.tseal("both")
    for position in ("trim_horizon", "token"):
        if position == "token":
            with ms.stream(shards, "trim_horizon", batch=1) as stream:
                take(stream, 1)
                place: Any = saved(stream)
        else:
            place = position
        with ms.stream(shards, place) as stream:
            assert [record["n"] for record in rest(stream)][-1:] == ["both"]


def test_resolve_may_name_a_child(api: Api, two: Any) -> None:
    first, second = two
    first.tappend("orders", {"n": 1})
    final = first.tseal("orders", "child", elsewhere=True)
    second.tcreate("child", final, ["orders"])
    second.tappend("child", {"n": 2})
    asked: list[str] = []

    def resolve(name: str) -> Shard:
        asked.append(name)
        return api.shard(name, second, name + "@second")

    with first.stream("orders", "trim_horizon", resolve=resolve) as stream:
        assert [record.shard for record in take(stream, 2)] == ["orders", "child@second"]
        token = saved(stream)
    second.tappend("child", {"n": 3})
    with first.stream("orders", token, resolve=resolve) as stream:
        assert take(stream, 1)[0]["n"] == "3"
    assert set(asked) == {"child"}


def test_an_error_of_resolve_keeps_the_other_answers(ms: Any) -> None:
    calls: list[str] = []

    def resolve(name: str) -> None:
        calls.append(name)
        if name == "child" and calls.count("child") < 3:
            raise ZeroDivisionError

    for key in ("s", "t"):
        ms.tappend(key, {"n": key})
    with ms.stream(["s", "t"], "trim_horizon", resolve=resolve) as stream:
        take(stream, 2)
        ms.tseal("s", "child")
        ms.tseal("t", "other")
        ms.tappend("child", {"n": "child"})
        ms.tappend("other", {"n": "other"})
        found, errors = [], 0
        while len(found) < 2:
            try:
                found.append(take(stream, 1)[0]["n"])
            except ZeroDivisionError:
                errors += 1
    assert found == ["child", "other"]
    assert errors == 2


def test_a_resolve_that_has_to_be_awaited_is_refused(ms: Any) -> None:
    async def resolve(name: str) -> None: ...

    ms.tappend("s", {"n": 1})
    ms.tseal("s", "t")
    with pytest.raises(InvalidStream, match="plain function"):
        ms.stream("s", "latest", resolve=resolve)


@pytest.mark.parametrize("keys", [5, {"a": 1}, {"a": None}, ["a"]])
def test_wrong_keys_in_a_token_are_refused(ms: Any, keys: Any) -> None:
    with ms.stream("s") as stream:
        token = {**saved(stream), "keys": keys}
        with pytest.raises(InvalidPosition, match="keys"):
            stream.move_to(token)
