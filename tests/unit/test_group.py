"""A group's pending entries behave as a dict of records would: by ID, by due time, by expiry.

The dict is the simulation's own model of a group (tests/sim/data).
"""

from __future__ import annotations

import random
import struct
from typing import Any

import msgpack
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.sim.data import ZERO, EntryId, Pending, Retry
from tests.sim.data import Group as GroupModel
from tests.support.effort import examples
from tests.support.storage_access import CHUNK_RECORDS as CHUNK
from tests.support.storage_access import (
    acknowledge_id,
    check_group,
    check_stream,
    consumer_at,
    deliver_id,
    deliver_ids,
    due_ids,
    hand_over_id,
    held_ids,
    idle_ids,
    next_event_ms,
    pending_sizes,
    redeliver_id,
    shared_pending,
    take_again_id,
)
from tests.unit.models import MAX

from millstream.errors import CommandError
from millstream.storage.dump import rdb
from millstream.storage.groups.group import Group
from millstream.storage.groups.group_snapshot import (
    PENDING_SIZE,
    dump_group,
    load_group,
    load_group_in_steps,
)
from millstream.storage.groups.managed_entries import extend, give_back
from millstream.storage.groups.pending_sweeps import delete_consumer, take_expired
from millstream.storage.streams.stream import Stream

retries = st.none() | st.tuples(
    st.sampled_from([0, 0, 1, 10, 50, 1000]), st.sampled_from([0, 0, 1, 25, 500])
)


managed = st.tuples(st.sampled_from([0, 1, 30]), st.sampled_from([0, 0, 500]))


def new_model() -> GroupModel:
    return GroupModel(ZERO, ZERO, 0, 0)


def first_delivery(now_ms: int, retry: Retry | None, consumer: bytes = b"") -> Pending:
    return Pending(now_ms, now_ms, 1, retry, consumer)


def rows(model: GroupModel) -> list[tuple[object, ...]]:
    """The pending entries in the form of `Group.pending`."""
    return [
        (*id_, r.owner, r.last_ms, r.deliveries, r.first_ms, *(r.retry or (None, None)))
        for id_, r in sorted(model.pending.items())
    ]


def reloaded(group: Group, now_ms: int = 0) -> Group:
    return load_group(msgpack.unpackb(msgpack.packb(dump_group(group))), now_ms)


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = Group(b"g")
        self.model = new_model()
        self.now_ms = 1000
        self.next_ms = 0

    def deliver_one(self, id_: EntryId, consumer: bytes, retry: tuple[int, int] | None) -> None:
        if consumer and consumer not in self.model.consumers:
            self.real.pending.make_consumer(consumer, self.now_ms)
            self.model.consumers[consumer] = None
        deliver_id(self.real, *id_, self.now_ms, consumer, retry)
        self.model.pending[id_] = first_delivery(self.now_ms, retry, consumer)

    @rule(
        ms=st.integers(0, 40) | st.integers(MAX - 3, MAX),
        seq=st.sampled_from([0, 1, 5, MAX]),
        consumer=st.sampled_from([b"", b"alice", b"bob"]),
        retry=retries,
    )
    def deliver(self, ms: int, seq: int, consumer: bytes, retry: tuple[int, int] | None) -> None:
        self.deliver_one((ms, seq), consumer, None if consumer else retry)

    @rule(count=st.integers(1, 300), retry=retries, forward=st.booleans(), every=st.integers(1, 3))
    def deliver_many(
        self, count: int, retry: tuple[int, int] | None, forward: bool, every: int
    ) -> None:
        run = [(100 + self.next_ms + every * i, 0) for i in range(count)]
        self.next_ms += every * count if every < 3 else 0  # 3: the next run falls between these
        if not forward:
            for id_ in reversed(run):
                self.deliver_one(id_, b"", retry)
            return
        deliver_ids(self.real, run, self.now_ms, b"", retry)
        for id_ in run:
            self.model.pending[id_] = first_delivery(self.now_ms, retry)

    def known_id(self, data: st.DataObject) -> EntryId:
        known = sorted(self.model.pending)
        if not known:
            return data.draw(st.tuples(st.integers(0, 5), st.integers(0, 5)))
        return known[data.draw(st.integers(0, len(known) - 1))]

    @rule(data=st.data(), count=st.integers(1, 20))
    def acknowledge(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            id_ = self.known_id(data)
            assert acknowledge_id(self.real, *id_) == (id_ in self.model.pending)
            self.model.forget([id_])
            assert not acknowledge_id(self.real, *id_)

    @rule(seed=st.integers(0, 2**32), share=st.sampled_from([0.1, 0.5, 1.0]))
    def acknowledge_in_random_order(self, seed: int, share: float) -> None:
        known = sorted(self.model.pending)
        chosen = random.Random(seed).sample(known, int(len(known) * share))
        for id_ in chosen:
            assert acknowledge_id(self.real, *id_)
            del self.model.pending[id_]

    @rule(data=st.data(), retry=retries)
    def redeliver(self, data: st.DataObject, retry: tuple[int, int] | None) -> None:
        id_ = self.known_id(data)
        is_pending = id_ in self.model.pending
        assert redeliver_id(self.real, *id_, self.now_ms, retry) == is_pending
        if is_pending:
            self.model.redeliver(id_, self.now_ms, retry)

    @rule(
        data=st.data(),
        consumer=st.sampled_from([b"", b"alice", b"bob"]),
        ago_ms=st.sampled_from([0, 0, 5, 1000]),
        deliveries=st.sampled_from([0, 1, 2**24 - 2, 2**24 - 1, 2**24, MAX // 2]),
    )
    def transfer(self, data: st.DataObject, consumer: bytes, ago_ms: int, deliveries: int) -> None:
        id_ = self.known_id(data)
        owner = consumer if consumer in self.model.consumers else b""
        last_ms = max(0, self.now_ms - ago_ms)
        record = self.model.pending.get(id_)
        done = hand_over_id(self.real, *id_, owner, last_ms, deliveries)
        assert done == (record is not None)
        if record is not None:
            record.take(owner, last_ms, None)
            record.deliveries = deliveries

    @rule(
        data=st.data(),
        mode=st.sampled_from([b"SILENT", b"FAIL"]),
        delay_ms=st.sampled_from([0, 0, 1, 10, 300]),
    )
    def give_back(self, data: st.DataObject, mode: bytes, delay_ms: int) -> None:
        id_ = self.known_id(data)
        if id_ in self.model.pending:
            count = b"-" if mode == b"SILENT" else b"="
            give_back(self.real.pending, *id_, count, self.now_ms, delay_ms)
            self.model.give_back(id_, self.now_ms, mode, delay_ms)
        else:
            give_back(self.real.pending, *id_, b"2", self.now_ms, delay_ms)
            self.model.pending[id_] = first_delivery(self.now_ms, None)
            self.model.pending[id_].give_back(self.now_ms, 2, delay_ms)

    @rule(data=st.data(), span_ms=st.sampled_from([1, 50, 1000]))
    def extend(self, data: st.DataObject, span_ms: int) -> None:
        id_ = self.known_id(data)
        record = self.model.pending.get(id_)
        if record is not None and not record.waiting:
            extend(self.real.pending, *id_, self.now_ms, span_ms)
            record.extend(self.now_ms, span_ms)

    @rule(timeout_ms=st.sampled_from([0, 1, 30, 2000]))
    def set_timeout(self, timeout_ms: int) -> None:
        """It counts for entries without a retry pair."""
        self.real.set_rules(timeout_ms=timeout_ms)
        self.model.timeout_ms = timeout_ms

    @rule(limit=st.integers(1, 40), consumer=st.sampled_from([b"", b"alice"]), retry=managed)
    def take_what_is_due(self, limit: int, consumer: bytes, retry: tuple[int, int]) -> None:
        owner = consumer if consumer in self.model.consumers else b""
        for id_ in due_ids(self.real, self.now_ms, limit):
            take_again_id(self.real, *id_, owner, self.now_ms, retry)
            self.model.take(id_, owner, self.now_ms, retry)

    @rule(consumer=st.sampled_from([b"", b"alice"]))
    def held(self, consumer: bytes) -> None:
        owner = consumer if consumer in self.model.consumers else b""
        assert held_ids(self.real, owner) == self.model.held_by(owner)

    @rule(min_idle_ms=st.sampled_from([0, 1, 5, 50, 5000]), limit=st.sampled_from([0, 1, 3, 500]))
    def idle(self, min_idle_ms: int, limit: int) -> None:
        expected = self.model.idle(self.now_ms, min_idle_ms)[:limit]
        assert idle_ids(self.real, self.now_ms, min_idle_ms, limit) == expected

    @rule(limit=st.sampled_from([0, 1, 2, 50, 10_000]), with_zero=st.booleans())
    def due(self, limit: int, with_zero: bool) -> None:
        expected = self.model.due(self.now_ms, with_zero)[:limit]
        assert due_ids(self.real, self.now_ms, limit, with_zero) == expected

    @rule(limit=st.integers(1, 40), retry=retries)
    def redeliver_what_is_due(self, limit: int, retry: tuple[int, int] | None) -> None:
        found = due_ids(self.real, self.now_ms, limit)
        assert found == self.model.due(self.now_ms, True)[:limit]
        for id_ in found:
            assert redeliver_id(self.real, *id_, self.now_ms, retry)
            self.model.redeliver(id_, self.now_ms, retry)

    @rule(limit=st.sampled_from([0, 1, 3, 130, 100_000]))
    def expire(self, limit: int) -> None:
        gone = take_expired(self.real, self.now_ms, limit)
        expected = self.model.expired(self.now_ms)
        assert len(gone) == len(set(gone)) == min(limit, len(expected))
        assert set(gone) <= set(expected)
        self.model.forget(gone)

    @rule(ms=st.sampled_from([0, 1, 9, 10, 49, 400, 2000]))
    def wait(self, ms: int) -> None:
        self.now_ms += ms

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data())
    def delete_consumer(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.model.consumers)))
        gone = self.model.owned_by(name)
        assert delete_consumer(self.real, name) == len(gone)
        del self.model.consumers[name]
        self.model.forget(gone)

    @rule()
    def reload(self) -> None:
        self.real = reloaded(self.real)

    @rule(data=st.data(), limit=st.sampled_from([None, 0, 1, 7]))
    def pending_part(self, data: st.DataObject, limit: int | None) -> None:
        start, end = self.known_id(data), self.known_id(data)
        for consumer in (None, b"", b"alice"):
            expected = [
                row
                for row in rows(self.model)
                if start <= row[:2] <= end and consumer in (None, row[2])
            ]
            assert self.real.pending.rows(*start, end, limit, consumer) == expected[:limit]

    @invariant()
    def is_the_same(self) -> None:
        check_group(self.real)
        assert self.real.pending.rows() == rows(self.model)
        assert self.real.pending.count == len(self.model.pending)
        owners = [r.owner for r in self.model.pending.values()]
        assert self.real.pending.unowned_count == owners.count(b"")
        waiting = {id_ for id_, r in self.model.pending.items() if r.waiting}
        assert self.real.pending.waiting_count == len(waiting)
        assert {
            row[:2] for row in self.real.pending.rows() if self.real.pending.is_waiting(*row[:2])
        } == waiting
        assert set(self.real.pending.consumers) == set(self.model.consumers)
        for name, consumer in self.real.pending.consumers.items():
            assert consumer.pending == owners.count(name)
            assert consumer_at(self.real, consumer.index) is consumer

    @rule()
    def next_event(self) -> None:
        records = self.model.pending.values()
        timeout_ms = self.model.timeout_ms
        moments = [
            moment for r in records for moment in (r.due_ms(False, timeout_ms), r.expires_ms())
        ]
        expected = min((moment for moment in moments if moment is not None), default=None)
        assert next_event_ms(self.real) == expected


GroupMachine.TestCase.settings = settings(
    max_examples=examples(100), stateful_step_count=30, deadline=None
)
TestGroup = GroupMachine.TestCase


# ---------------------------------------------------------------- due and expiry


def test_due_entries_are_ordered_by_time_and_id() -> None:
    group = Group(b"g")
    for ms, delivered in [(1, 30), (2, 10), (3, 20), (4, 10)]:
        deliver_id(group, ms, 0, delivered, retry=(5, 0))
    assert due_ids(group, 100, 10) == [(2, 0), (4, 0), (3, 0), (1, 0)]
    assert due_ids(group, 100, 3) == [(2, 0), (4, 0), (3, 0)]
    assert due_ids(group, 15, 10) == [(2, 0), (4, 0)]
    assert due_ids(group, 14, 10) == []
    assert due_ids(group, 100, 10) == due_ids(group, 100, 10), "asking takes nothing away"


def test_due_order_holds_for_thousands_with_equal_times() -> None:
    group = Group(b"g")
    model = new_model()
    chance = random.Random(5)
    for ms in chance.sample(range(10_000), 3000):
        delivered = 1 + chance.randrange(5)
        retry = (chance.choice([0, 1, 2]), 0)
        deliver_id(group, ms, 0, delivered, retry=retry)
        model.pending[ms, 0] = first_delivery(delivered, retry)
    check_group(group)
    for limit in (1, 100, 1500, 9000):
        for with_zero in (False, True):
            assert due_ids(group, 5, limit, with_zero) == model.due(5, with_zero)[:limit]


def test_retry_zero_is_due_at_once_and_wakes_no_reader() -> None:
    group = Group(b"g")
    deliver_id(group, 1, 0, 50, retry=(0, 0))
    assert due_ids(group, 50, 10) == [(1, 0)]
    assert due_ids(group, 50, 10, with_zero=False) == []
    assert next_event_ms(group) is None


def test_a_redelivery_keeps_the_pair_or_replaces_it() -> None:
    group = Group(b"g")
    deliver_id(group, 1, 0, 0, retry=(10, 100))
    redeliver_id(group, 1, 0, 10)
    assert group.pending.rows() == [(1, 0, b"", 10, 2, 0, 10, 100)]
    assert next_event_ms(group) == 20
    redeliver_id(group, 1, 0, 20, (30, 40))
    assert group.pending.rows() == [(1, 0, b"", 20, 3, 0, 30, 40)]
    assert next_event_ms(group) == 40, "expiry counts from the first delivery"
    assert take_expired(group, 39, 10) == []
    assert take_expired(group, 40, 10) == [(1, 0)]
    assert next_event_ms(group) is None


def test_spans_past_the_end_of_time_never_end() -> None:
    group = Group(b"g")
    deliver_id(group, 1, 0, 1000, retry=(MAX, MAX))
    deliver_id(group, 2, 0, 1000, retry=(MAX - 1000, 0))
    check_group(group)
    assert due_ids(group, MAX - 1, 10) == []
    assert take_expired(group, MAX - 1, 10) == []
    assert next_event_ms(group) is None


def test_an_acknowledged_record_no_longer_wakes() -> None:
    group = Group(b"g")
    deliver_id(group, 1, 0, 1, retry=(10, 0))
    deliver_id(group, 2, 0, 6, retry=(10, 0))
    assert next_event_ms(group) == 11
    acknowledge_id(group, 1, 0)
    assert next_event_ms(group) == 16
    acknowledge_id(group, 2, 0)
    assert next_event_ms(group) is None


def test_the_time_to_live_waits_for_blocked_clients() -> None:
    group = Group(b"g")
    assert not group.is_over(MAX)
    group.set_ttl(50, 100)
    assert next_event_ms(group) == 150
    assert not group.is_over(149)
    assert group.is_over(150)
    group.pending.blocked_clients = 1
    assert not group.is_over(10_000)
    assert next_event_ms(group) is None
    group.pending.blocked_clients = 0
    group.set_ttl(MAX, 100)
    assert not group.is_over(10_000)


# ---------------------------------------------------------------- what looking for them costs


def mixed_ages(count: int) -> Group:
    group = Group(b"g")
    chance = random.Random(7)
    for ms in range(count):
        deliver_id(group, ms, 0, chance.randrange(100_000), retry=(10, 200_000))
    return group


def test_reading_all_due_entries_examines_each_record_once() -> None:
    group = mixed_ages(50_000)
    before = group.pending.work_counter
    assert len(due_ids(group, 10**6, 10**6)) == 50_000
    assert group.pending.work_counter - before < 3 * 50_000


def test_reading_a_few_due_entries_examines_few_chunks() -> None:
    group = mixed_ages(50_000)
    before = group.pending.work_counter
    assert len(due_ids(group, 10**6, 10)) == 10
    assert group.pending.work_counter - before < 20 * CHUNK


def test_reading_a_few_of_many_due_entries_examines_one_chunk() -> None:
    group = Group(b"g")
    for ms in range(50_000):
        deliver_id(group, ms, 0, 5, retry=(10, 0))
    before = group.pending.work_counter
    assert due_ids(group, 100, 10) == [(ms, 0) for ms in range(10)]
    assert group.pending.work_counter - before < 3 * CHUNK


def test_each_record_is_examined_once_after_acks_of_the_older() -> None:
    group = mixed_ages(50_000)
    rows = sorted(group.pending.rows(), key=lambda row: row[3])
    for row in rows[:25_000]:
        acknowledge_id(group, *row[:2])
    before = group.pending.work_counter
    assert next_event_ms(group) == rows[25_000][3] + 10
    assert group.pending.work_counter - before < 4 * 50_000
    before = group.pending.work_counter
    next_event_ms(group)
    assert group.pending.work_counter - before < 4 * CHUNK


def test_taking_expired_entries_examines_only_their_chunks() -> None:
    group = Group(b"g")
    for ms in range(50_000):
        deliver_id(group, ms, 0, 1000 + ms, retry=(10, 10_000))
    before = group.pending.work_counter
    assert len(take_expired(group, 11_099, 10_000)) == 100
    check_group(group)
    assert group.pending.work_counter - before < 5 * CHUNK


# ---------------------------------------------------------------- chunks


def test_sparse_chunks_left_by_acknowledgements_are_joined() -> None:
    group = Group(b"g")
    for ms in range(CHUNK * 100):
        deliver_id(group, ms, 0, 5, retry=(10, 0))
    for ms in range(CHUNK * 100):
        if ms % CHUNK:
            acknowledge_id(group, ms, 0)
    check_group(group)
    assert [row[0] for row in group.pending.rows()] == list(range(0, CHUNK * 100, CHUNK))
    assert group.memory_bytes < 400 + 100 * 200


def test_memory_includes_the_rules_of_a_group() -> None:
    group = Group(b"g")
    without = group.memory_bytes
    group.set_ttl(1000, 1)
    assert group.memory_bytes >= without + 32
    group.set_ttl(0, 1)
    assert group.memory_bytes == without


UNEVEN: dict[str, list[EntryId]] = {
    "ever further apart": [(2**at, seq) for at in range(64) for seq in (0, 1, MAX)],
    "one millisecond": [(7, seq) for seq in range(40 * CHUNK)],
    "a crowd between two": [(0, 1), *((MAX // 2 + at, 0) for at in range(40 * CHUNK)), (MAX, MAX)],
    "a crowd at the end": [
        *((at, 0) for at in range(CHUNK)),
        *((MAX, at) for at in range(9 * CHUNK)),
    ],
}


@pytest.mark.parametrize("case", UNEVEN)
def test_records_are_found_however_their_times_lie(case: str) -> None:
    group = Group(b"g")
    ids = UNEVEN[case]
    for id_ in ids:
        deliver_id(group, *id_, 1000, b"", None)
    there = set(ids)
    source = random.Random(case)
    for ms, seq in source.sample(ids, len(ids)):
        neighbours = [(ms, seq + 1), (ms, seq - 1), (ms + 1, seq), (ms - 1, seq), (ms // 2, seq)]
        for near in neighbours:
            if near not in there and 0 <= near[0] <= MAX and 0 <= near[1] <= MAX:
                assert not acknowledge_id(group, *near)
        assert acknowledge_id(group, ms, seq)
        there.remove((ms, seq))
    assert group.pending.count == 0


def test_the_last_record_of_a_full_group_is_fast() -> None:
    group = Group(b"g")
    for ms in range(CHUNK):
        deliver_id(group, ms, 0, 5)
    full = group.memory_bytes
    for ms in range(CHUNK - 1):
        acknowledge_id(group, ms, 0)
    check_group(group)
    assert full - group.memory_bytes > CHUNK * 36 * 3 // 4


@pytest.mark.parametrize("seed", range(10))
def test_a_shared_snapshot_ignores_changes_of_the_group(seed: int) -> None:
    chance = random.Random(seed)
    group = Group(b"g")
    group.pending.make_consumer(b"a", 1)
    for ms in range(2000):
        deliver_id(group, 2 * ms, 0, ms, *((b"a", None) if ms % 3 == 0 else (b"", (5, 500))))
    expected = dump_group(group)["pending"]
    shared = shared_pending(group)
    for _ in range(1500):
        ms = chance.randrange(4000)
        kind = chance.randrange(4)
        if kind == 0:
            acknowledge_id(group, ms, 0)
        elif kind == 1:
            redeliver_id(group, ms, 0, 9999, (1, 1) if chance.random() < 0.5 else None)
        elif kind == 2:
            deliver_id(group, ms, 1, 9999)
        elif chance.random() < 0.02:
            take_expired(group, chance.randrange(1500), 50)
    if seed % 2:
        delete_consumer(group, b"a")
    check_group(group)
    again = shared_pending(group)
    now = dump_group(group)["pending"]
    assert bytes(shared) == expected != now
    del group
    assert bytes(shared) == expected
    assert bytes(again) == now


# ---------------------------------------------------------------- retry pairs and consumers


def test_thousands_of_consumers_are_made_and_deleted() -> None:
    """With a search for a free number each this would take minutes."""
    group = Group(b"g")
    for _ in range(2):
        for number in range(100_000):
            group.pending.make_consumer(b"%d" % number, 1)
        assert len(dump_group(group)["consumers"]) == 100_001
        for name in list(group.pending.consumers):
            delete_consumer(group, name)


def test_more_pairs_in_use_than_numbers_are_refused() -> None:
    group = Group(b"g")
    for i in range(65_535):
        deliver_id(group, i, 0, 0, retry=(i, 1))
    with pytest.raises(CommandError, match="RETRY"):
        deliver_id(group, 70_000, 0, 0, retry=(70_000, 1))
    acknowledge_id(group, 5, 0)
    deliver_id(group, 70_000, 0, 0, retry=(70_000, 1))
    check_group(group)


def test_very_many_snapshots_share_a_chunk() -> None:
    group = Group(b"g")
    deliver_id(group, 1, 0, 5)
    expected = dump_group(group)["pending"]
    shared = [shared_pending(group) for _ in range(2**16 + 10)]
    acknowledge_id(group, 1, 0)
    check_group(group)
    assert bytes(shared[0]) == bytes(shared[-1]) == expected
    first, last = shared[0], shared[-1]
    del shared
    assert bytes(first) == bytes(last) == expected


def test_one_pending_entry_takes_two_small_allocations() -> None:
    # The allocator's sizes are multiples of 16, less its 8 bytes.
    assert pending_sizes() == (72, 88)


def test_equal_pairs_share_one_number() -> None:
    group = Group(b"g")
    assert (
        group.pending.retry_number(10, 0)
        == group.pending.retry_number(10, 0)
        != group.pending.retry_number(10, 1)
    )
    assert group.pending.retry_number(MAX, MAX) not in (0, group.pending.retry_number(10, 0))


def test_unused_retry_pairs_free_their_numbers() -> None:
    group = Group(b"g")
    for i in range(65_535):
        number = group.pending.retry_number(i, 1)
        assert number == i + 1
    deliver_id(group, 1, 0, 0, retry=(7, 1))
    fresh = group.pending.retry_number(100_000, 1)
    assert 0 < fresh < 65_536
    assert len([pair for pair in dump_group(group)["policies"] if pair is not None]) == 2
    assert group.pending.rows()[0][-2:] == (7, 1)
    deliver_id(group, 2, 0, 0, retry=(100_000, 1))
    check_group(group)
    assert reloaded(group).pending.rows() == group.pending.rows()


def test_a_consumers_number_is_reused_without_its_entries() -> None:
    group = Group(b"g")
    first = group.pending.make_consumer(b"a", 1)
    group.pending.make_consumer(b"b", 1)
    for ms in range(300):
        deliver_id(group, ms, 0, 5, [b"a", b"b", b""][ms % 3])
    assert delete_consumer(group, b"a") == 100
    again = group.pending.make_consumer(b"c", 2)
    assert (again.index, again.pending) == (first.index, 0)
    group = reloaded(group)
    check_group(group)
    assert group.pending.consumers[b"b"].pending == 100
    assert delete_consumer(group, b"b") == 100
    assert (group.pending.count, group.pending.unowned_count) == (100, 100)
    again = reloaded(group).pending.make_consumer(b"d", 3)
    assert again.index == 2


@pytest.mark.parametrize("count", [1, CHUNK - 1, CHUNK, CHUNK + 1, 1000])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_delivery_leads_to_id_order(count: int, seed: int) -> None:
    group = Group(b"g")
    order = list(range(count))
    random.Random(seed).shuffle(order)
    for ms in order:
        deliver_id(group, ms // 7, ms % 7, 9)
    check_group(group)
    assert [row[:2] for row in group.pending.rows()] == [(ms // 7, ms % 7) for ms in range(count)]
    random.Random(seed + 1).shuffle(order)
    for ms in order:
        assert acknowledge_id(group, ms // 7, ms % 7)
        check_group(group)
    assert group.pending.count == 0


def test_a_pending_entry_takes_few_bytes() -> None:
    """36 bytes a record; chunks filled in order stay full."""
    group = Group(b"g")
    for ms in range(20_000):
        deliver_id(group, ms, 0, 9)
    assert PENDING_SIZE == 36
    assert group.memory_bytes < 20_000 * 40


# ---------------------------------------------------------------- dump and load


def test_a_reload_keeps_all_but_the_times_of_the_last_use() -> None:
    group = Group(b"\x00g", 5, MAX)
    group.gap_floor_ms, group.gap_floor_seq = 3, MAX
    group.entries_read = 12
    group.set_ttl(5000, 77)
    group.pending.make_consumer(b"a", 4).active_ms = 6
    group.pending.make_consumer(b"idle", 5)
    deliver_id(group, 1, 0, 8, b"a")
    deliver_id(group, 2, MAX, 9, retry=(10, MAX))
    loaded = reloaded(group, now_ms=1000)
    assert dump_group(loaded) == dump_group(group)
    assert next_event_ms(loaded) == 19
    assert not loaded.is_over(5999)
    assert loaded.is_over(6000), "the TTL starts again at the load"
    assert [(c.name, c.seen_ms, c.active_ms) for c in loaded.pending.consumers.values()] == [
        (b"a", 4, 6),
        (b"idle", 5, -1),
    ]


def packed(
    ms: int, consumer: int = 0, retry_number: int = 0, first_ms: int = 5, last_ms: int = 5
) -> bytes:
    return struct.pack("<QQ", ms, 0) + b"".join(
        value.to_bytes(size, "little")
        for value, size in [(first_ms, 6), (last_ms, 6), (1, 3), (consumer, 3), (retry_number, 2)]
    )


def meta_with(**changes: Any) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "name": b"g",
        "offset": [0, 0],
        "gap_floor": [0, 0],
        "entries_read": -1,
        "ttl_ms": 0,
        "consumers": [None, [b"a", 1, 1]],
        "policies": [None, [10, 20]],
        "pending": packed(1, 1) + packed(2, 0, 1),
    }
    return meta | changes


def test_a_group_is_read_from_the_documented_form() -> None:
    loaded = load_group(meta_with(), 0)
    assert loaded.pending.rows() == [
        (1, 0, b"a", 5, 1, 5, None, None),
        (2, 0, b"", 5, 1, 5, 10, 20),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"pending": packed(1)[:-1]},
        {"pending": packed(1) + b"\0"},
        {"pending": packed(2) + packed(1)},
        {"pending": packed(1) + packed(1)},
        {"pending": packed(1, consumer=2)},
        {"pending": packed(1, consumer=2**24 - 1)},
        {"consumers": [None, None], "pending": packed(1, consumer=1)},
        {"consumers": [None, [b"a", 1, 1], [b"a", 1, 1]]},
        {"pending": packed(1, retry_number=2)},
        {"pending": packed(1, retry_number=2**15)},
        {"pending": packed(1, retry_number=2**16 - 1)},
        {"policies": [None, None], "pending": packed(1, retry_number=1)},
        {"policies": [], "pending": b""},
        {"policies": [[1, 2]], "pending": b""},
        {"policies": [None, [10]], "pending": packed(1, retry_number=1)},
        {"policies": [None, [10, 20, 30]], "pending": packed(1, retry_number=1)},
        {"policies": [None, [-1, 20]], "pending": packed(1, retry_number=1)},
        {"policies": [None, [2**64, 20]], "pending": packed(1, retry_number=1)},
        {"policies": [None, [b"x", 20]], "pending": packed(1, retry_number=1)},
        {"policies": [None, [1, 2], [1, 2]], "pending": b""},
    ],
)
def test_inconsistent_pending_entries_are_not_loaded(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="group"):
        load_group(meta_with(**changes), 0)


def test_a_group_with_many_pending_entries_is_loaded_in_steps() -> None:
    rows = [packed(ms, consumer=1) for ms in range(10_000)]
    meta = meta_with(pending=b"".join(rows))
    pauses = len(list(load_group_in_steps(meta, 0)))
    assert pauses > 2
    assert dump_group(rdb.whole(load_group_in_steps(meta, 0))) == dump_group(load_group(meta, 0))
    border = 10_000 // pauses
    for at in range(1, 10_000, border // 3):
        again = [*rows[:at], rows[at - 1], *rows[at:]]
        with pytest.raises(ValueError, match="do not rise"):
            list(load_group_in_steps(meta_with(pending=b"".join(again)), 0))
    again = [*rows[:4096], rows[4095], *rows[4096:]]  # the first of a step
    with pytest.raises(ValueError, match="do not rise"):
        list(load_group_in_steps(meta_with(pending=b"".join(again)), 0))


@pytest.mark.parametrize("seed", range(20))
def test_a_stream_keeps_its_groups_while_others_change(seed: int) -> None:
    chance = random.Random(seed)
    stream = Stream(1)
    model: dict[bytes, Group] = {}
    for _ in range(60):
        name = b"%d" % chance.randrange(chance.choice([1, 3]))
        if name not in model:
            model[name] = stream.make_group(name, 0, 0)
        else:
            assert stream.drop_group(name)
            del model[name]
        assert not stream.drop_group(b"none")
        assert list(stream.groups.items()) == list(model.items())
        assert stream.live_group_count(1) == len(model)
        for name in (b"0", b"1", b"2"):
            assert stream.group(name) is model.get(name)
        check_stream(stream)


@pytest.mark.parametrize("seed", range(20))
def test_a_group_keeps_its_consumers_while_others_change(seed: int) -> None:
    chance = random.Random(seed)
    group = Group(b"g")
    model: dict[bytes, int] = {}  # pending entries
    for ms in range(1, 80):
        name = b"%d" % chance.randrange(chance.choice([1, 3]))
        if name not in model:
            group.pending.make_consumer(name, 1)
            model[name] = 0
        elif chance.random() < 0.4:
            assert delete_consumer(group, name) == model.pop(name)
        else:
            deliver_id(group, ms, 0, 1, name)
            model[name] += 1
        for one in (group, load_group(dump_group(group), 1)):
            check_group(one)
            assert {name: c.pending for name, c in one.pending.consumers.items()} == model
            assert len({c.index for c in one.pending.consumers.values()}) == len(model)
            assert one.pending.consumer(b"none") is None
