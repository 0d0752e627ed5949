"""A node that follows the store sees its contents, whatever happens to watches and to etcd."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.sim.store_model import StoreModel
from tests.support.effort import examples
from tests.support.virtual_time import run_at_once

from millstream.server.cluster.store.store import Change, Contents, Refused, Unreachable
from millstream.server.cluster.store.store_follower import LOOK_S, PAUSE_S, StoreFollower


class Seen:
    """Reports of a follower. The times are those of the loop."""

    def __init__(self, model: StoreModel) -> None:
        self.contents = Contents(0, {})
        self.noted_s: list[float] = []
        self.lost: list[str] = []
        follower = StoreFollower(model.of_node("n"), self._note, self._lose)
        self.task = asyncio.create_task(follower.run())

    def _note(self, contents: Contents) -> None:
        self.contents = contents
        self.noted_s.append(asyncio.get_running_loop().time())

    def _lose(self, problem: Unreachable | Refused) -> None:
        self.lost.append(str(problem))


def write(model: StoreModel, name: str, data: bytes | None) -> None:
    model.state.commit([], [Change(name, data)])
    model.wake()


def test_changes_arrive_by_the_watch_or_by_a_look() -> None:
    async def body() -> None:
        model = StoreModel(random.Random(1))
        write(model, "a", b"1")
        seen = Seen(model)
        await asyncio.sleep(1)
        assert seen.contents == model.state.read()
        write(model, "a", b"2")
        await asyncio.sleep(0.1)
        assert seen.contents == model.state.read()
        model.silent.add(None)
        for data in (b"3", None):
            write(model, "a", data)
            await asyncio.sleep(0.1)
            assert seen.contents != model.state.read()
            await asyncio.sleep(LOOK_S + PAUSE_S)
            assert seen.contents == model.state.read()
        assert seen.lost == []
        assert max(b - a for a, b in zip(seen.noted_s, seen.noted_s[1:], strict=False)) < 6
        seen.task.cancel()

    run_at_once(body())


def test_a_restored_store_is_older() -> None:
    async def body() -> None:
        model = StoreModel(random.Random(2))
        write(model, "a", b"1")
        backup = model.state.copy()
        seen = Seen(model)
        for number in range(5):
            write(model, "a", str(number).encode())
        await asyncio.sleep(1)
        newest = seen.contents.revision
        model.restore(backup)
        await asyncio.sleep(LOOK_S)
        assert seen.contents == model.state.read()
        assert seen.contents.revision < newest
        write(model, "b", b"1")
        await asyncio.sleep(0.1)
        assert seen.contents == model.state.read()
        seen.task.cancel()

    run_at_once(body())


def test_a_lost_store_is_reported_until_it_is_back() -> None:
    async def body() -> None:
        model = StoreModel(random.Random(3))
        seen = Seen(model)
        await asyncio.sleep(1)
        model.set_cut("n")
        await asyncio.sleep(20)
        assert len(seen.lost) >= 3
        write(model, "a", b"1")
        model.state.compact()
        model.set_cut()
        await asyncio.sleep(3)
        assert seen.contents == model.state.read()
        seen.task.cancel()

    run_at_once(body())


@pytest.mark.parametrize("seed", range(examples(20)))
def test_the_contents_are_right_after_any_faults(seed: int) -> None:
    async def body() -> None:
        chance = random.Random(seed)
        model = StoreModel(chance)
        seen = Seen(model)
        backup = model.state.copy()
        for _ in range(100):
            fault = chance.randrange(12)
            if fault == 0:
                model.set_cut(*chance.choice(((), ("n",), (None,))))
            elif fault == 1:
                model.silent ^= {None}
            elif fault == 2:
                model.state.compact()
            elif fault == 3:
                model.slowest_s = chance.choice((0.01, 0.5, 2.0))
                model.lost_replies = chance.choice((0.0, 0.3))
            elif fault == 4:
                backup = model.state.copy()
            elif fault == 5:
                model.restore(backup)
            else:
                data = chance.choice((None, b"1", b"2"))
                write(model, chance.choice("abc"), data)
            await asyncio.sleep(chance.choice((0, 0.01, 0.3, 3)))
        model.set_cut()
        model.slowest_s, model.lost_replies = 0.01, 0.0
        await asyncio.sleep(3 * LOOK_S)
        assert seen.contents == model.state.read()
        assert not seen.task.done()
        seen.task.cancel()

    run_at_once(body())
