"""A stream remembers of every producer one number, and forgets the one that was silent longest."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.support.effort import examples

from millstream.storage.streams.producers import Producers, SharedProducers

names = st.integers(0, 400).map(lambda number: b"p%d" % number)
seqs = st.integers(0, 2**64 - 1)


class ProducersMachine(RuleBasedStateMachine):
    """Against an OrderedDict: the producer that appended last stands at the end."""

    @initialize(start=st.sampled_from([0, 3, 127, 300]))
    def start(self, start: int) -> None:
        self.real = Producers()
        self.naive: OrderedDict[bytes, int] = OrderedDict()
        self.shared: list[tuple[SharedProducers, dict[bytes, int]]] = []
        self.others: list[tuple[Producers, dict[bytes, int]]] = []
        for number in range(start):
            self.put(b"p%d" % number, number)

    def put(self, name: bytes, seq: int) -> None:
        self.real.put(name, seq)
        self.naive[name] = seq
        self.naive.move_to_end(name)

    @rule(some=st.lists(st.tuples(names, seqs), min_size=1, max_size=40))
    def append(self, some: list[tuple[bytes, int]]) -> None:
        for name, seq in some:
            self.put(name, seq)

    @precondition(lambda self: self.naive)
    @rule(data=st.data(), seq=seqs)
    def append_again(self, data: st.DataObject, seq: int) -> None:
        self.put(data.draw(st.sampled_from(list(self.naive))), seq)

    @rule(name=names)
    def ask(self, name: bytes) -> None:
        assert self.real.dump().get(name) == self.naive.get(name)

    @precondition(lambda self: self.naive)
    @rule(count=st.integers(1, 50))
    def forget_the_most_silent(self, count: int) -> None:
        for _ in range(min(count, len(self.naive))):
            assert self.real.drop_oldest() == self.naive.popitem(last=False)[0]

    @rule(name=names)
    def forget(self, name: bytes) -> None:
        assert self.real.drop(name) == (self.naive.pop(name, None) is not None)

    @rule()
    def share(self) -> None:
        self.shared.append((self.real.share(), dict(self.naive)))

    @precondition(lambda self: self.shared)
    @rule(first=st.booleans())
    def write_what_was_shared(self, first: bool) -> None:
        shared, wanted = self.shared.pop(0 if first else -1)
        assert b"".join(shared.packed()) == msgpack.packb(wanted)

    @rule(go_on_in_the_copy=st.booleans())
    def copy(self, go_on_in_the_copy: bool) -> None:
        other = self.real.copy()
        if go_on_in_the_copy:
            self.real, other = other, self.real
        self.others.append((other, dict(self.naive)))

    @precondition(lambda self: self.others)
    @rule(data=st.data())
    def look_at_a_copy(self, data: st.DataObject) -> None:
        other, wanted = self.others.pop(data.draw(st.integers(0, len(self.others) - 1)))
        other.check()
        assert list(other.dump().items()) == list(wanted.items())

    @rule()
    def reload(self) -> None:
        self.real = Producers.load(msgpack.unpackb(msgpack.packb(self.real.dump())))

    @invariant()
    def is_the_same(self) -> None:
        self.real.check()
        assert list(self.real.dump().items()) == list(self.naive.items())
        assert len(self.real) == len(self.naive)


ProducersMachine.TestCase.settings = settings(max_examples=examples(60), deadline=None)
TestProducers = ProducersMachine.TestCase


def spark_name(number: int) -> bytes:
    return b"0b2bd5b6-9a2f-4a57-8f5e-0a3f3a7f6a11:%d" % number


def test_a_producer_takes_little_more_than_its_name() -> None:
    producers = Producers()
    for number in range(100_000):
        producers.put(spark_name(number), number)
    named = sum(len(spark_name(number)) for number in range(100_000))
    assert (producers.memory_bytes - named) / 100_000 < 130


def test_a_stream_with_one_producer_stays_small() -> None:
    producers = Producers()
    producers.put(b"only", 1)
    assert producers.memory_bytes < 500


def test_a_snapshot_packs_the_producers_of_its_time_in_parts() -> None:
    producers = Producers()
    for number in range(10_000):
        producers.put(spark_name(number), number)
    wanted = msgpack.packb(producers.dump())
    shared = producers.share()
    producers.put(spark_name(5000), 1)
    producers.drop_oldest()
    parts = list(shared.packed())
    assert b"".join(parts) == wanted
    assert max(map(len, parts)) < len(wanted) // 10
    del shared
    producers.check()


def test_an_empty_table_has_no_oldest_producer_to_drop() -> None:
    with pytest.raises(IndexError):
        Producers().drop_oldest()


@pytest.mark.parametrize(
    "rows", [[], {"p": 1}, {b"p": -1}, {b"p": 2**64}, {b"p": "1"}, {b"p": 1.0}]
)
def test_malformed_producers_are_not_loaded(rows: Any) -> None:
    with pytest.raises(ValueError, match=r"malformed|not a map"):
        Producers.load(rows)
