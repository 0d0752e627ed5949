"""The store of a cluster does what its protocol says: the model of the simulation, and etcd."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from itertools import count
from typing import TypeVar

import pytest
from tests.sim.store_model import StoreModel
from tests.support.virtual_time import run_at_once

from millstream.server.cluster.store.etcd_store import EtcdStore, parse_endpoints
from millstream.server.cluster.store.store import (
    Change,
    Changes,
    Compare,
    LeaseEnded,
    Store,
)

Result = TypeVar("Result")
Body = Callable[[Callable[[], Store]], Awaitable[None]]
SHORT_S = 20.0

numbers = count(1)


@pytest.fixture(params=["model", "etcd"])
def play(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    """Runs a coroutine with a function that makes stores of one new cluster, one for each node."""
    if request.param == "model":
        model = StoreModel(random.Random(7))
        return lambda body: run_at_once(_limited(body, lambda: model.of_node("n")))
    etcd = request.getfixturevalue("etcd")
    name = f"store{next(numbers)}"
    return lambda body: asyncio.run(
        _limited(body, lambda: EtcdStore(name, parse_endpoints(etcd.urls), None))
    )


async def _limited(body: Body, make: Callable[[], Store]) -> None:
    async with asyncio.timeout(SHORT_S):
        await body(make)


async def until(watch: AsyncGenerator[Changes, None], name: str) -> dict[str, bytes | None]:
    """The last values of all names that a watch shows up to the one that is named."""
    seen: dict[str, bytes | None] = {}
    async with aclosing(watch):
        async for changes in watch:
            for one, value in changes.values.items():
                seen[one] = None if value is None else value.data
            if name in changes.values:
                break
    return seen


def test_a_transaction_writes_all_or_nothing(play: Callable[[Body], None]) -> None:
    async def body(make: Callable[[], Store]) -> None:
        store = make()
        empty = await store.read()
        assert empty.values == {}
        one = await store.commit([Compare("a", 0)], [Change("a", b"1"), Change("b/c", b"")])
        assert one.done
        assert one.revision > empty.revision
        found = await make().read()
        assert {name: value.data for name, value in found.values.items()} == {"a": b"1", "b/c": b""}
        assert {value.version for value in found.values.values()} == {one.revision}
        for wrong in (0, one.revision - 1, one.revision + 1):
            refused = await store.commit(
                [Compare("b/c", one.revision), Compare("a", wrong)],
                [Change("a", b"2"), Change("d", b"3"), Change("b/c", None)],
            )
            assert not refused.done
        assert (await store.read()).values == found.values
        two = await store.commit(
            [Compare("a", one.revision), Compare("d", 0)],
            [Change("a", b"\0\xff"), Change("b/c", None), Change("e", None)],
        )
        assert two.done
        last = (await store.read()).values
        assert {name: value.data for name, value in last.items()} == {"a": b"\0\xff"}
        assert last["a"].version == two.revision > one.revision

    play(body)


def test_values_end_with_their_lease(play: Callable[[Body], None]) -> None:
    async def body(make: Callable[[], Store]) -> None:
        store = make()
        kept, left, revoked = [await store.grant(1) for _ in range(3)]
        assert kept.id != left.id
        assert 1 <= left.ttl_s <= 10
        changes = [Change(str(one.id), b"x", one.id) for one in (kept, left, revoked)]
        begun = await store.commit([], [*changes, Change("free", b"x", left.id)])
        assert await store.keep_alive(kept.id) == kept.ttl_s
        await store.commit([], [Change("free", b"y")])  # without the lease from now on
        await store.revoke(revoked.id)
        assert await store.keep_alive(revoked.id) is None
        await store.revoke(revoked.id)
        watch = asyncio.create_task(until(store.watch(begun.revision), str(left.id)))
        while not watch.done():
            assert await store.keep_alive(kept.id) == kept.ttl_s
            await asyncio.wait({watch}, timeout=kept.ttl_s / 4)
        assert watch.result() == {"free": b"y", str(revoked.id): None, str(left.id): None}
        assert set((await store.read()).values) == {"free", str(kept.id)}
        assert await store.keep_alive(left.id) is None
        with pytest.raises(LeaseEnded):
            await store.commit([], [Change("free", None), Change("late", b"x", left.id)])
        assert "free" in (await store.read()).values

    play(body)


def test_a_watch_shows_each_change_once(play: Callable[[Body], None]) -> None:
    async def body(make: Callable[[], Store]) -> None:
        store = make()
        first = await store.commit([], [Change("a", b"0"), Change("gone", b"0")])
        early = asyncio.create_task(until(store.watch(first.revision), "end"))
        for number in range(1, 5):
            await store.commit([], [Change("a", str(number).encode()), Change(f"n{number}", b"")])
        await store.commit([], [Change("gone", None), Change("end", b"")])
        expected = {"a": b"4", **{f"n{n}": b"" for n in range(1, 5)}, "gone": None, "end": b""}
        assert await early == expected
        assert await until(make().watch(first.revision), "end") == expected
        watch = make().watch((await store.read()).revision)
        with suppress(TimeoutError):
            async with aclosing(watch), asyncio.timeout(0.3):
                raise AssertionError(await anext(watch))

    play(body)


def test_one_of_many_writers_wins(play: Callable[[Body], None]) -> None:
    """A counter that eight writers increase with compares loses no step."""

    async def body(make: Callable[[], Store]) -> None:
        async def increase(store: Store) -> int:
            attempts = 0
            done = False
            while not done:
                value = (await store.read()).values.get("n")
                version, number = (value.version, int(value.data)) if value else (0, 0)
                change = Change("n", str(number + 1).encode())
                done = (await store.commit([Compare("n", version)], [change])).done
                attempts += 1
            return attempts

        attempts = await asyncio.gather(*(increase(make()) for _ in range(8)))
        assert (await make().read()).values["n"].data == b"8"
        assert sum(attempts) > 8

    play(body)
