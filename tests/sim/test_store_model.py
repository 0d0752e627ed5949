"""The faults of the model of the store. That it is a store: tests/wire/test_store.py."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import pytest
from tests.sim.store_model import StoreModel, StoreState
from tests.support.virtual_time import run_at_once

from millstream.server.cluster.store.store import Change, Compare, Unreachable


def test_an_unknown_outcome_may_be_either() -> None:
    async def body() -> None:
        model = StoreModel(random.Random(5))
        model.lost_replies = 0.5
        model.slowest_s = 1.5
        store = model.of_node("n")
        outcomes = set()
        for number in range(40):
            before = model.state.revision
            try:
                done = (await store.commit([], [Change("a", b"%d" % number)])).done
            except Unreachable:
                done = False
            outcomes.add((done, model.state.revision > before))
            await asyncio.sleep(4)
        assert {(True, True), (False, True)} <= outcomes
        model.lost_replies, model.slowest_s = 0, 0.1
        model.set_cut("n")
        with pytest.raises(Unreachable):
            await store.commit([], [Change("a", b"cut")])
        assert model.state.values["a"].data != b"cut"
        await model.of_node("other").read()

    run_at_once(body())


def test_a_late_transaction_fails_its_compare() -> None:
    async def body() -> None:
        model = StoreModel(random.Random(6))
        model.slowest_s = 10
        store = model.of_node("n")
        for _ in range(20):
            with suppress(Unreachable):
                await store.commit([Compare("a", 0)], [Change("a", b"1")])
        await asyncio.sleep(20)
        assert model.state.revision == 2

    run_at_once(body())


def test_a_backup_has_its_leases_from_the_beginning() -> None:
    state = StoreState()
    lease = state.grant(10, now_s=0)
    state.commit([], [Change("a", b"1", lease.id)])
    backup = state.copy()
    state.pass_to(11)
    assert state.values == {}
    restored = backup.restarted(now_s=50)
    restored.pass_to(59)
    assert set(restored.values) == {"a"}
    restored.pass_to(60)
    assert restored.values == {}
