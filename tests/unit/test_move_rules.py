"""Ranges of slots, the map after a move, and the plans of `millstream cluster`."""

from __future__ import annotations

import random

import pytest

from millstream.server.cluster.cluster_view import ClusterView, Found
from millstream.server.cluster.slot_moves.move_rules import (
    count_of,
    moved_map,
    overlap,
    owned_by,
    owners_of,
    parse_slots,
    planned,
    shared_out,
)
from millstream.server.cluster.store.records import (
    MAP,
    MoveRecord,
    RecordError,
    ShardRecord,
    SlotRanges,
    Step,
    decode,
    encode,
)
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS
from millstream.storage.keyspace.slot_ranges import ranges_of, slots_of

NAMES = ("s1", "s2", "s3", "")


def random_map(chance: random.Random) -> SlotRanges:
    bounds = sorted(chance.sample(range(1, CLUSTER_SLOTS), 20))
    ends = zip([0, *bounds], [*bounds, CLUSTER_SLOTS], strict=True)
    rows = [(first, end - 1, chance.choice(NAMES)) for first, end in ends]
    return moved_map(SlotRanges(1, tuple(row for row in rows if row[2])), (), "s1")


def owners(slot_map: SlotRanges) -> dict[int, str]:
    return {slot: name for first, last, name in slot_map.ranges for slot in range(first, last + 1)}


def view_with(slot_map: SlotRanges, *names: str, **moves: MoveRecord) -> ClusterView:
    shards = {name: Found(ShardRecord("f" * 40, 1, "", (), 1, 0), 1, 0) for name in names}
    found = {move: Found(record, at, 0) for at, (move, record) in enumerate(moves.items())}
    return ClusterView(1, slot_map, shards, {}, {}, {}, {}, found, 1, False)


def test_maps_and_ranges_are_as_those_of_single_slots() -> None:
    chance = random.Random(1)
    for _ in range(30):
        slot_map = random_map(chance)
        slots = chance.sample(range(CLUSTER_SLOTS), 50)
        first = chance.randrange(CLUSTER_SLOTS - 3000)
        ranges = ranges_of([*slots, *range(first, first + 2000)])
        expected = owners(slot_map)
        assert owners_of(slot_map, ranges) == {expected.get(slot, "") for slot in slots_of(ranges)}
        expected.update(dict.fromkeys(slots_of(ranges), "s2"))
        after = moved_map(slot_map, ranges, "s2")
        assert owners(after) == expected
        assert after.epoch == slot_map.epoch + 1
        assert decode(SlotRanges, encode(after), MAP) == after
        assert overlap(ranges, ((slots[0], slots[0]),))
        assert not overlap(ranges, ranges_of(set(range(CLUSTER_SLOTS)) - {*slots_of(ranges)}))


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("5", ((5, 5),)),
        ("7-9, 0-3,4", ((0, 4), (7, 9))),
        (" 0-3 7-9 ", ((0, 3), (7, 9))),
        ("16383", ((16383,) * 2,)),
    ],
)
def test_slots_are_read(text: str, slots: object) -> None:
    assert parse_slots(text) == slots


@pytest.mark.parametrize("text", ["a", "5-", "-5", "9-7", "16384", "0-16384", "1--2", "²"])
def test_wrong_slots_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a slot or range of slots"):
        parse_slots(text)


@pytest.mark.parametrize("text", [",", "1,,2", "1, ,2", "1,", ",1"])
def test_a_comma_without_a_slot_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a comma has no slot before or after it"):
        parse_slots(text)


@pytest.mark.parametrize("text", ["", " "])
def test_no_slots_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no slots are given"):
        parse_slots(text)


@pytest.mark.parametrize(
    ("text", "slot"), [("5,5", 5), ("1-10,5", 5), ("5,1-10", 5), ("0-9,20,8-12", 8)]
)
def test_a_slot_given_twice_is_refused(text: str, slot: int) -> None:
    with pytest.raises(ValueError, match=f"Slot {slot} specified multiple times"):
        parse_slots(text)


def test_slots_of_several_shards_are_several_moves() -> None:
    slot_map = SlotRanges(3, ((0, 99, "s1"), (100, 199, "s2"), (200, 299, "s3")))
    view = view_with(slot_map, "s1", "s2", "s3")
    found = planned(view, ((50, 250),), "s2", 9)
    assert [(one.source, one.slots) for one in found] == [
        ("s1", ((50, 99),)),
        ("s3", ((200, 250),)),
    ]
    moving = view_with(slot_map, "s1", "s2", "s3", a=found[0])
    for bad, slots, target, problem in (
        (view, ((50, 250),), "s9", "there is no shard s9"),
        (view, ((250, 350),), "s1", "slot has no owner: 300"),
        (view, ((100, 199),), "s2", "owns these slots already"),
        (moving, ((0, 50),), "s3", "move to shard s2 already"),
    ):
        with pytest.raises(ValueError, match=problem):
            planned(bad, slots, target, 9)


def test_slots_are_shared_out_with_few_moves() -> None:
    chance = random.Random(2)
    for emptied in ((), ("s2",), ("s4", "s1")):
        slot_map = random_map(chance)
        view = view_with(slot_map, "s1", "s2", "s3", "s4", "s5")
        moves = shared_out(view, emptied, 9)
        after = slot_map
        for move in moves:
            assert owners_of(after, move.slots) == {move.source}
            after = moved_map(after, move.slots, move.target)
        counts = {name: count_of(owned_by(after, name)) for name in view.shards}
        assert all(counts[name] == 0 for name in emptied)
        kept = [counts[name] for name in view.shards if name not in emptied]
        assert max(kept) - min(kept) <= 1
        before = {name: count_of(owned_by(slot_map, name)) for name in view.shards}
        least = sum(max(0, counts[name] - before[name]) for name in view.shards)
        assert sum(count_of(move.slots) for move in moves) == least
    with pytest.raises(ValueError, match="no other shard"):
        shared_out(view, list(view.shards), 9)
    with pytest.raises(ValueError, match="wait for their end"):
        shared_out(view_with(slot_map, "s1", "s2", a=moves[0]), (), 9)


def test_records_of_moves_are_read_and_checked() -> None:
    record = MoveRecord(((0, 5), (9, 9)), "s1", "s2", Step.HANDING, 5, (3, 4), "why", 2, 6, 7)
    assert decode(MoveRecord, encode(record), "move/1") == record
    for wrong, field in (
        (record._replace(slots=((5, 4),)), "slots"),
        (record._replace(slots=((0, 5), (5, 6))), "slots"),
        (record._replace(slots=()), "slots"),
        (record._replace(step="other"), "step"),
        (record._replace(terms=(1,)), "terms"),
        (record._replace(source="S 1"), "source"),
    ):
        with pytest.raises(RecordError, match=f"wrong {field}"):
            decode(MoveRecord, encode(wrong), "move/1")
