"""The keys of an ordered group against a naive model: lists of all entries in ID order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.storage_access import Keys, key_hash


class NaiveKeys:
    """Each entry as [ID, key, parked]; `reads` has the keys that the current read has got."""

    def __init__(self, run: int) -> None:
        self.run = run
        self.entries: list[list[int]] = []
        self.got: set[int] = set()

    def of(self, key: int, parked: bool) -> list[int]:
        return sorted(at for at, k, p in self.entries if k == key and p == parked)

    def gets_more(self, key: int) -> bool:
        pending = self.of(key, False)
        return not pending or (key in self.got and len(pending) < self.run)

    def next_parked(self) -> int | None:
        firsts = {key: self.of(key, True) for _, key, _ in self.entries}
        return min((ids[0] for k, ids in firsts.items() if ids and self.gets_more(k)), default=None)

    def is_free(self, key: int) -> bool:
        return not self.of(key, True) and self.gets_more(key)

    def add(self, at: int, key: int, parked: bool) -> None:
        if not parked and not self.of(key, False):
            self.got.add(key)
        self.entries.append([at, key, parked])

    def find(self, at: int, parked: bool) -> list[int] | None:
        return next((e for e in self.entries if e[0] == at and e[2] == parked), None)

    def move(self, at: int, parked: bool) -> bool:
        entry = self.find(at, parked)
        if entry is None:
            return False
        if parked and not self.of(entry[1], False):
            self.got.add(entry[1])
        entry[2] = not parked
        return True

    def remove(self, at: int, parked: bool) -> bool:
        entry = self.find(at, parked)
        if entry is not None:
            self.entries.remove(entry)
        return entry is not None


STEPS = ("begin", "park", "take", "again", "end", "end", "forget", "read", "reload", "reset")


@given(
    st.integers(1, 3),
    st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 40), st.integers(0, 5)), max_size=120
    ),
)
def test_keys_are_like_lists_of_all_entries(run: int, steps: list[tuple[str, int, int]]) -> None:
    keys, naive = Keys(run), NaiveKeys(run)
    for step, at, key in steps:
        known = naive.find(at, False) or naive.find(at, True)
        if step in ("begin", "park"):
            if known is None:
                keys.begin(at, key) if step == "begin" else keys.park(at, key)
                naive.add(at, key, step == "park")
            else:
                with pytest.raises(ValueError, match="has a key already"):
                    keys.begin(at, key)
        elif step == "take":
            assert keys.take_parked(at) == naive.move(at, True)
        elif step == "again":
            assert keys.park_again(at) == naive.move(at, False)
        elif step == "end":
            assert keys.end(at) == naive.remove(at, False)
        elif step == "forget":
            assert keys.forget(at) == naive.remove(at, True)
        elif step == "reset":
            keys.forget_parked()
            naive.entries = [e for e in naive.entries if not e[2]]
        else:
            keys.next_read() if step == "read" else keys.reload()
            naive.got = set()
        pending = sorted(e[0] for e in naive.entries if not e[2])
        parked = sorted(e[0] for e in naive.entries if e[2])
        assert keys.content() == (pending, parked)
        assert keys.first_parked(at) == next((e for e in parked if e >= at), None)
        assert keys.next_parked() == naive.next_parked()
        assert [keys.is_free(k) for k in range(6)] == [naive.is_free(k) for k in range(6)]
        entry = naive.find(at, False)
        if entry is not None:
            others = naive.of(entry[1], False)
            assert keys.others(at) == [other for other in others if other != at]


def test_many_keys_with_many_entries_are_found() -> None:
    keys = Keys(1)
    for at in range(5000):
        keys.begin(at, at) if at < 1000 else keys.park(at, at % 1000)
    assert keys.next_parked() is None
    for at in range(1000):
        assert keys.end(at)
        assert keys.next_parked() == 1000
    for at in range(1000, 5000):
        assert keys.next_parked() == at
        assert keys.take_parked(at)
        assert keys.end(at)
    assert keys.content() == ([], [])


def test_parked_entries_are_found_in_id_order() -> None:
    chance = random.Random(17)
    keys, parked = Keys(1), set[int]()
    for size in (3000, 100, 2000, 0):
        while len(parked) != size:
            at = chance.randrange(10_000) if size else next(iter(parked))
            if at in parked and len(parked) > size:
                assert keys.forget(at)
                parked.remove(at)
            elif at not in parked and len(parked) < size:
                keys.park(at, at % 7)
                parked.add(at)
        for start in chance.sample(range(10_000), 200):
            assert keys.first_parked(start) == min((p for p in parked if p >= start), default=None)


def test_hashes_depend_on_the_seed_and_every_byte() -> None:
    texts = [b"", b"a", b"b", b"a" * 8, b"a" * 9, b"a" * 15 + b"b", b"a" * 16]
    hashes = {key_hash(text, seed) for text in texts for seed in (1, 2)}
    assert len(hashes) == 2 * len(texts)
