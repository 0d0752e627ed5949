"""The skiplist of sealed blocks finds by id and by rank what a plain list finds."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.effort import examples
from tests.support.storage_access import BlockList, BlockWriter, find_rank

from millstream.storage.blocks.block import Block


def block_of(first: int, count: int) -> Block:
    made = BlockWriter()
    for i in range(count):
        assert made.append_entry(first + 2 * i, 0, [b"f", b"%d" % i], 0, 0)
    return made.freeze()


def ms_of(block: Block) -> list[int]:
    return [ms for ms, _, _ in block.entries()]


class SkipListMachine(RuleBasedStateMachine):
    """Ids are the even numbers of milliseconds; odd ones lie between entries and blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.real = BlockList()
        self.model: list[tuple[int, list[int]]] = []  # first id of the block, its live ids
        self.next_ms = 10
        self.kept: list[tuple[Sequence[Block], list[list[int]]]] = []  # points in time

    @rule(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=30))
    def push(self, sizes: list[int]) -> None:
        for size in sizes:
            self.real.push(block_of(self.next_ms, size))
            self.model.append((self.next_ms, [self.next_ms + 2 * i for i in range(size)]))
            self.next_ms += 2 * size + 2

    @rule(times=st.sampled_from([100, 128, 200]))
    def push_pages(self, times: int) -> None:
        self.push([1] * times)

    @rule()
    def keep(self) -> None:
        self.kept.append((self.real.shared(), [list(live) for _, live in self.model]))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        del self.kept[data.draw(st.integers(0, len(self.kept) - 1))]

    @rule(data=st.data())
    def read_in_slices(self, data: st.DataObject) -> None:
        for blocks, model in self.kept:
            ends = st.integers(-3, len(model) + 3)
            for start, stop in data.draw(st.lists(st.tuples(ends, ends), max_size=4)):
                assert [ms_of(block) for block in blocks[start:stop]] == model[start:stop]

    @rule(times=st.integers(1, 150))
    def drop_head(self, times: int) -> None:
        for _ in range(min(times, len(self.model))):
            self.real.drop_head()
            self.model.pop(0)

    @precondition(lambda self: len(self.model) > 1)
    @rule(data=st.data(), most=st.integers(1, 5))
    def cut(self, data: st.DataObject, most: int) -> None:
        place = data.draw(st.integers(1, len(self.model) - 1))
        part = self.real.cut(self.model[place][0], 0)
        assert part is not None
        del self.model[:place]
        while part.free_step(most):
            self.real.check()
            assert self.real.parts == 1
        assert self.real.parts == 0

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.model) - 1))
        ms = data.draw(st.sampled_from(self.model[place][1]))
        self.delete_one(place, ms)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), from_end=st.booleans())
    def delete_whole_blocks(self, data: st.DataObject, from_end: bool) -> None:
        for _ in range(data.draw(st.integers(1, 12))):
            if not self.model:
                break
            place = len(self.model) - 1
            if not from_end:
                place = data.draw(st.integers(0, place))
            for ms in list(self.model[place][1]):
                self.delete_one(place, ms)

    def delete_one(self, place: int, ms: int) -> None:
        before = list(self.real)[place]
        entries = before.entries()
        assert self.real.delete(ms, 0)
        assert before.entries() == entries, "a block in someone's hands has changed"
        assert not self.real.delete(ms, 0)
        self.model[place][1].remove(ms)
        if not self.model[place][1]:
            del self.model[place]

    @rule(ms=st.integers(0, 600).map(lambda n: 2 * n + 1))
    def delete_what_is_not_there(self, ms: int) -> None:
        assert not self.real.delete(ms, 0)

    @invariant()
    def is_the_same(self) -> None:
        self.real.check()
        assert len(self.real) == self.real.blocks == len(self.model)
        assert self.real.live == sum(len(live) for _, live in self.model)
        assert [ms_of(block) for block in self.real] == [m[1] for m in self.model]
        assert self.real.data_bytes == sum(b.size_bytes - 64 for b in self.real)

    @invariant()
    def what_was_kept_stays(self) -> None:
        for blocks, model in self.kept:
            assert len(blocks) == len(model)
            assert [ms_of(block) for block in blocks] == model

    @invariant()
    def finds_the_same(self) -> None:
        assert self.real.find(9, 0) is None
        rank = 0
        step = 1 + len(self.model) // 100
        for at, (first, live) in enumerate(self.model):
            if at % step:
                rank += len(live)
                continue
            for ms in (first, live[-1], live[-1] + 1):
                found = self.real.find(ms, 5)
                assert found is not None
                assert (found[0].first_id, found[1]) == ((first, 0), rank)
            for nth in (rank, rank + len(live) - 1):
                found = find_rank(self.real, nth)
                assert found is not None
                assert (found[0].first_id, found[1]) == ((first, 0), rank)
            rank += len(live)
        assert find_rank(self.real, rank) is None


SkipListMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=25, deadline=None
)
TestSkipList = SkipListMachine.TestCase


def test_a_point_in_time_is_a_sequence() -> None:
    made = BlockList()
    for i in range(300):
        made.push(block_of(10 * i, 1))
    blocks = made.shared()
    del made
    assert ms_of(blocks[0]) == [0]
    assert ms_of(blocks[-1]) == [2990]
    assert [ms_of(block)[0] for block in blocks] == list(range(0, 3000, 10))
    with pytest.raises(IndexError):
        blocks[300]
    with pytest.raises(ValueError, match="in order"):
        blocks[::-1]
    assert len(BlockList().shared()[:]) == 0


def test_the_last_owner_of_many_blocks_frees_them_in_parts() -> None:
    made = BlockList()
    for i in range(1000):
        made.push(block_of(10 * i, 1))
    blocks = made.shared()
    every = blocks[:]
    del made

    def holders() -> list[int]:
        return [sys.getrefcount(block) for block in every]

    held = holders()[0]
    left = [len(blocks)]
    while blocks.free_step(100):
        left.append(len(blocks))
        assert left[-2] - 256 < left[-1] < left[-2]
        assert holders() == [held] * left[-1] + [held - 1] * (1000 - left[-1])
    assert len(blocks) == 0
    assert blocks[:] == []
    assert holders() == [held - 1] * 1000


def test_an_empty_list_finds_nothing() -> None:
    empty = BlockList()
    assert empty.find(5, 5) is None
    assert find_rank(empty, 0) is None
    assert not empty.delete(5, 5)
    empty.check()


def test_removing_last_blocks_one_by_one_keeps_the_ranks() -> None:
    made = BlockList()
    for i in range(200):
        made.push(block_of(100 * i + 100, 3))
    for i in range(199, 99, -1):
        for k in range(3):
            assert made.delete(100 * i + 100 + 2 * k, 0)
        made.check()
    for i in range(100, 200):
        made.push(block_of(100 * i + 100, 3))
    made.check()
    found = find_rank(made, 599)
    assert found is not None
    assert found[0].first_id == (20000, 0)


def test_thousands_of_blocks_are_added_and_removed_at_both_ends() -> None:
    made = BlockList()
    for i in range(5000):
        made.push(block_of(10 * i, 1))
        if i >= 1000:
            made.drop_head()
    made.check()
    assert made.live == 1000
    found = find_rank(made, 500)
    assert found is not None
    assert found[0].first_id == (45000, 0)


def test_seeks_end_in_many_blocks_at_uneven_times() -> None:
    """A long pause after the first block leads the search for a page far away from it."""
    made = BlockList()
    made.push(block_of(1, 1))
    begin = 10**12
    for i in range(400_000):
        made.push(block_of(begin + 10 * i, 1))
    for i in range(0, 400_000, 101):
        found = made.find(begin + 10 * i, 0)
        assert found is not None
        assert found[0].first_id == (begin + 10 * i, 0)
