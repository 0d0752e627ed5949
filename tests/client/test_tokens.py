"""Tokens of many shards: packed, and as small as documented. `test_core_worlds` restores them."""

from __future__ import annotations

import json
import time
from random import Random
from typing import Any

import pytest
from tests.support.waiting import wait_until

from millstream.client import ID, InvalidPosition, Shard
from millstream.client.core.merge import Merge
from millstream.client.core.packed_token import TokenPacker, load_token, packed, unpacked
from millstream.client.core.shard_order import Servers, ShardOrder
from millstream.client.core.shards import ShardState
from millstream.client.core.token import Place
from millstream.client.events import Gap
from millstream.client.ids import BEGINNING, just_below
from millstream.client.records import Record

SERVERS = Servers("server", None)
NOW_MS = 1795170387725


class Lineage:
    """The shards of a stream in the middle of reading, made at random."""

    def __init__(self, random: Random, count: int, strict: bool) -> None:
        self.random = random
        self.order = ShardOrder([f"s{n}" for n in range(count)], SERVERS)
        bound = ID(NOW_MS, random.randrange(3))
        handed_out = [BEGINNING]
        for n in range(count):
            state = self.state(n)
            if strict:
                self.advance(state, bound, handed_out)
            else:
                self.advance(state, ID(NOW_MS - random.randrange(50), 0), handed_out)
        self.greatest = max(handed_out)
        self.merge = Merge(strict)
        self.merge.rebuild(self.order.live())

    def state(self, n: int) -> ShardState:
        shard = Shard(f"s{n}")
        at = ID(NOW_MS - 100 - self.random.randrange(5000))
        place = Place(at, NOW_MS * 1024 + self.random.randrange(10**6))
        state = ShardState.at(shard, SERVERS.of(shard), place)
        self.order.add(state)
        return state

    def advance(self, state: ShardState, bound: ID, handed_out: list[ID]) -> None:
        """Hand out records up to a bound, as the merge does."""
        random = self.random
        state.fetched = bound if random.random() < 0.3 else ID(bound.ms + random.randrange(9), 5)
        if random.random() < 0.5 and bound.seq:
            state.last = record(state.name, just_below(bound))
            handed_out.append(state.last.id)
        if random.random() < 0.3:
            state.buffer.append(record(state.name, ID(bound.ms, bound.seq + random.randrange(2))))
            state.fetched = max(state.fetched, state.buffer[0].id)
        elif random.random() < 0.5:
            state.reach()
        kind = random.random()
        if kind < 0.05:
            state.gaps.append(Gap(state.name, state.place, bound))
        elif kind < 0.1:
            state.children = (Shard(f"{state.name}a"), Shard(f"{state.name}b"))
            state.final = ID(bound.ms + 100)
        elif kind < 0.15:
            state.parents = {"other"}


def record(shard: str, entry_id: ID) -> Record[str]:
    return Record(entry_id, shard, [str(entry_id), "n", "1"])


def token_of(lineage: Lineage) -> dict[str, Any]:
    packer = TokenPacker(packed_from=1)
    first = packer.token(lineage.order, lineage.merge, lineage.greatest)
    again = packer.token(lineage.order, lineage.merge, lineage.greatest)
    assert again == first  # with the texts of the first one
    found: dict[str, Any] = json.loads(json.dumps(first))
    return found


@pytest.mark.parametrize("strict", [True, False])
def test_a_packed_token_skips_and_repeats_nothing(strict: bool) -> None:
    for seed in range(300):
        lineage = Lineage(Random(seed), 1 + seed % 40, strict)
        token = token_of(lineage)
        assert token["v"] == 2
        loaded = load_token(token)
        assert set(loaded.places) == set(lineage.order.states)
        for name, state in lineage.order.states.items():
            place = loaded.places[name]
            if state.gaps or state.children or state.parents:
                assert place == state.found(), (seed, name)
                continue
            first = just_below(state.buffer[0].id) if state.buffer else state.fetched
            assert state.anchor <= place.at <= first, (seed, name)
            assert place.incarnation == state.incarnation


def test_a_token_of_1000_shards_is_small() -> None:
    random = Random(1)
    order = ShardOrder([f"orders:{n}" for n in range(1000)], SERVERS)
    for n in range(1000):  # created within a minute, read to different records, and idle now
        shard = Shard(f"orders:{n}")
        incarnation = (NOW_MS - 60_000 + 60 * n + random.randrange(60)) * 1024
        place = Place(ID(NOW_MS - random.randrange(60_000)), incarnation)
        state = ShardState.at(shard, SERVERS.of(shard), place)
        state.fetched = ID(NOW_MS + random.randrange(10))
        state.reach()
        order.add(state)
    merge = Merge(strict=True)
    merge.rebuild(order.live())
    token = TokenPacker().token(order, merge, ID(NOW_MS))
    assert len(json.dumps(token)) < 8192
    assert len(json.dumps(order.token().dump())) > 60_000


def test_streams_of_few_shards_have_tokens_of_version_1() -> None:
    lineage = Lineage(Random(5), 3, True)
    token = TokenPacker().token(lineage.order, lineage.merge, lineage.greatest)
    assert token == lineage.order.token().dump()
    assert token["v"] == 1


@pytest.mark.parametrize(
    "change",
    [
        {"shards": "x"},
        {"shards": 5},
        {"shards": packed([1])},
        {"shards": packed({"names": ["a"], "in": []})},
        {"shards": packed({"names": [1], "in": [1]})},
        {"shards": packed({"names": ["a"], "in": ["1"]})},
        {"at": 5},
        {"at": "x"},
        {"next": 1},
        {"places": {"unknown": {"at": "1.1"}}},
        {"places": {"s0": {"at": "x"}}},
        {"places": {"s0": 1}},
        {"places": "x"},
        {"more": 1},
        {"v": 3},
    ],
)
def test_a_malformed_packed_token_is_refused(change: dict[str, Any]) -> None:
    token = token_of(Lineage(Random(1), 2, True)) | change
    with pytest.raises(InvalidPosition, match="token"):
        load_token(token)


def test_a_packed_text_that_is_cut_off_is_refused() -> None:
    text = packed({"names": ["a"] * 1000})
    with pytest.raises(ValueError, match="cut off"):
        unpacked(text[: len(text) // 8 * 4])


def test_evictions_before_the_start_are_no_gap_when_restored(ms: Any) -> None:
    for n in range(3):
        last = ms.tappev("evicted", {"n": n}, count=1)
    # Otherwise the entry of the other shard could have an earlier ID.
    wait_until(lambda: time.time() * 1000 >= last.ms + 1, what="a later ID")
    ms.tappend("other", {"n": 0})
    with ms.stream(["evicted", "other"], "trim_horizon") as stream:
        assert next(stream)["n"] == "2"
        token = json.loads(json.dumps(stream.token))
    with ms.stream(["evicted", "other"], token) as stream:
        assert stream.read(timeout=5)["n"] == "0"
