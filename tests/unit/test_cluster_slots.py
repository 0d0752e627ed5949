"""The cluster slot of a key, and the keys of a slot in the table of a node."""

from __future__ import annotations

import random
import re
from binascii import crc_hqx
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import StartError
from millstream.server.cluster.slot_map import (
    SlotMap,
    last_slot,
    new_map,
    read_map,
    refuse_nodes,
    write_map,
)
from millstream.server.config.cluster_directives import MAP_NAME
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of
from millstream.storage.keyspace.key_slots import KeySlots
from millstream.storage.keyspace.keyspace import Keyspace

TAG = re.compile(rb"^[^{]*\{([^}]+)\}", re.DOTALL)


def naive_slot(key: bytes) -> int:
    found = TAG.match(key)
    return crc_hqx(found[1] if found else key, 0) % CLUSTER_SLOTS


@given(st.binary(max_size=40) | st.text("a{}", max_size=12).map(str.encode))
def test_a_slot_is_the_crc_of_the_key_or_of_its_tag(key: bytes) -> None:
    assert cluster_slot_of(key) == naive_slot(key)


@pytest.mark.parametrize(
    ("key", "slot"),
    [
        (b"foo", 12182),
        (b"{foo}bar", 12182),
        (b"123456789", 0x31C3),
        (b"", 0),
        (b"foo{}{bar}", 8363),
    ],
)
def test_slots_are_those_of_redis(key: bytes, slot: int) -> None:
    assert cluster_slot_of(key) == slot


def test_keys_of_a_slot_are_counted_and_listed() -> None:
    chance = random.Random(1)
    slots, model = KeySlots(True), dict[int, set[bytes]]()
    keys = [b"{%d}%d" % (chance.randrange(50), n) for n in range(2000)]
    for key in keys:
        assert slots.add(key) >> 2 == naive_slot(key)
        model.setdefault(naive_slot(key), set()).add(key)
    for key in chance.sample(keys, 1500):
        slots.remove(key)
        model[naive_slot(key)].discard(key)
    for slot, there in model.items():
        assert slots.count_in(slot) == len(there)
        assert set(slots.keys_in(slot, len(there) + 1)) == there
        assert len(slots.keys_in(slot, 3)) == min(3, len(there))
    assert slots.used_cluster_slots() == sorted(slot for slot, there in model.items() if there)
    assert slots.count_in(CLUSTER_SLOTS) == 0
    assert not slots.keys_in(CLUSTER_SLOTS, 1)


def test_a_scan_of_a_node_finds_every_key() -> None:
    db = Keyspace(clustered=True).databases[0]
    names = {b"k%d" % n for n in range(3000)}
    for name in names:
        db.set(name, b"v")
    found: set[bytes] = set()
    cursor, is_over = 0, False
    while not is_over:
        cursor, some = db.scan(cursor, 100)
        found.update(some)
        is_over = cursor == 0
    assert found == names
    assert len(db.slots.used_cluster_slots()) > 2000


# ---------------------------------------------------------------- the map


def test_three_shards_have_the_slots_that_redis_cli_gives_them() -> None:
    assert [shard.ranges for shard in new_map(3).shards] == [
        ((0, 5460),),
        ((5461, 10922),),
        ((10923, 16383),),
    ]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7, 64, 1000, 1024])
def test_every_slot_has_one_owner(count: int) -> None:
    found = new_map(count)
    assert [slot for shard in found.shards for slot in shard.slots()] == list(range(CLUSTER_SLOTS))
    for number in range(count):
        exact = CLUSTER_SLOTS * (number + 1) / count - 0.5
        assert abs(last_slot(number, count) - exact) <= 1
    assert len({shard.node for shard in found.shards} | {shard.id for shard in found.shards}) == (
        2 * count
    )


def test_the_map_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_map(tmp_path) is None
    refuse_nodes(tmp_path)
    written = new_map(3)
    first, *others = written.shards
    parts = first._replace(ranges=((0, 5), (7, 5460)))
    written = SlotMap(4, 9, (parts, *others))
    write_map(tmp_path, written)
    found = read_map(tmp_path)
    assert found == written
    owners = written.owners()
    assert owners[6] is None
    assert owners[5] is parts
    assert owners[16383] is others[-1]
    with pytest.raises(StartError, match=r"directory of 3 nodes: .*--shards 3"):
        refuse_nodes(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b"5460", b"5461", "slots 5461 to 10922 are wrong"),
        (b"16383", b"16384", "are wrong"),
        (b'"0002"', b'"0007"', "not numbered"),
        (b'"epoch"', b'"epoche"', "KeyError: 'epoch'"),
        (b'"s3"\n', b'"s4"\n', "KeyError: 's4'"),
        (b"}", b"", "JSONDecodeError"),
        (b'"version": 1', b'"version": 2', "version 2"),
        (b'"node": "', b'"node": "x', "not an ID"),
    ],
)
def test_a_damaged_map_is_refused(tmp_path: Path, old: bytes, new: bytes, reason: str) -> None:
    write_map(tmp_path, new_map(3))
    path = tmp_path / MAP_NAME
    text = path.read_bytes()
    assert old in text
    path.write_bytes(text.replace(old, new))
    with pytest.raises(StartError, match=reason):
        read_map(tmp_path)
