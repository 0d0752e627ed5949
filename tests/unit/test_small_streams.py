"""The compact form of small streams holds what the stream holds, and wrong bytes are refused.

`decode` was written from docs/formats.md alone.
"""

from __future__ import annotations

import random
from typing import Any

import msgpack
import pytest
from tests.support.captures import whole
from tests.support.storage_access import check_stream, deliver_id, upcoming_id

from millstream.errors import BlockError
from millstream.storage.blocks.block import Block, seal_forms
from millstream.storage.capture.capture import Capture
from millstream.storage.capture.small_loader import SmallLoader
from millstream.storage.capture.small_rows import (
    chunk_of,
    is_small_section,
    section_head,
    small_rows,
)
from millstream.storage.capture.small_streams import SmallStreams
from millstream.storage.groups.group import Group
from millstream.storage.groups.pending_sweeps import delete_consumer
from millstream.storage.keyspace.key_slots import SLOTS, KeySlots
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.head_eviction import evict_before, evict_every
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

NOW_MS = 1_700_000_000_000
BATCH_BYTES = 1 << 20
LARGE = 2**64 - 1


def random_stream(chance: random.Random) -> Stream:
    """Entries, deletions, trims and groups, within the limits of the compact form."""
    stream = Stream(chance.choice([0, 1, LARGE, NOW_MS << 10]))
    last = chance.choice([(0, 0), (NOW_MS, 5), (LARGE - 100_000, 0)])
    for _ in range(chance.choice([0, 1, 2, 20, 60])):
        last = (last[0] + chance.choice([0, 1, 1, 300]), chance.choice([0, last[1] + 1]))
        if last <= stream.last_id:
            last = (stream.last_id[0] + 1, 0)
        words = [chance.choice([b"f", b"sensor", b""]), chance.randbytes(chance.randrange(9))]
        stream.append_entry(*last, words * chance.randrange(1, 3))
    ids = [(ms, seq) for ms, seq, _ in stream.range()]
    for entry_id in ids:
        if chance.random() < 0.1:
            stream.delete_id(*entry_id)
    if ids and chance.random() < 0.3:
        evict_before(stream, *chance.choice(ids))
    if chance.random() < 0.1:
        evict_every(stream)
    if chance.random() < 0.2:
        stream.raise_last_id(*upcoming_id(stream, NOW_MS))
    for number in range(chance.choice([0, 0, 1, 4])):
        random_group(chance, stream, b"group%d" % number)
    return stream


def random_group(chance: random.Random, stream: Stream, name: bytes) -> None:
    group: Group = stream.make_group(name, *chance.choice([(0, 0), stream.last_id]))
    group.entries_read = chance.choice([-1, 0, 7])
    group.set_ttl(chance.choice([0, 5000]), NOW_MS)
    for number in range(chance.randrange(4)):
        group.pending.make_consumer(b"c%d" % number, NOW_MS + number)
    if chance.random() < 0.3 and group.pending.consumer(b"c0") is not None:
        delete_consumer(group, b"c0")
    owners = [b"", *group.pending.consumers]
    for ms, seq, _ in stream.range():
        if chance.random() < 0.4:
            retry = chance.choice([None, (1000, 0), (5, 99)])
            deliver_id(group, ms, seq, NOW_MS, chance.choice(owners), retry)


def written(streams: dict[bytes, Stream], expiries: dict[bytes, int]) -> tuple[bytes, bytes]:
    """A section and its chunk."""
    batch = SmallStreams(BATCH_BYTES)
    for key, stream in streams.items():
        assert batch.add(3, key, stream, expiries.get(key))
    assert batch.keys == len(streams)
    assert batch.entries == sum(block.live for one in streams.values() for block in one.blocks())
    rows, forms = batch.take()
    seal_forms(forms)
    return section_head(7 if forms else None) + rows, forms


def state_of(stream: Stream, expires_ms: int | None = None) -> tuple[dict[str, Any], list[bytes]]:
    meta, blocks = dump_stream(stream)
    if expires_ms is not None:
        meta["expires_ms"] = expires_ms
    return meta, [block.to_bytes() for block in blocks]


def some_streams(seed: int) -> tuple[dict[bytes, Stream], dict[bytes, int]]:
    chance = random.Random(seed)
    streams = {chance.randbytes(chance.randrange(20)): random_stream(chance) for _ in range(8)}
    return streams, {key: NOW_MS + 1 for key in streams if chance.random() < 0.2}


def decode(section: bytes, chunk: bytes) -> list[tuple[int, bytes, dict[str, Any], list[bytes]]]:
    """Each stream as (database, key, map of the stream, disk forms of its blocks)."""
    place = 0

    def byte() -> int:
        nonlocal place
        place += 1
        return section[place - 1]

    def number() -> int:
        value = shift = 0
        while (part := byte()) >= 128:
            value |= (part - 128) << shift
            shift += 7
        return value | part << shift

    def signed() -> int:
        value = number()
        return value // 2 if value % 2 == 0 else -(value // 2) - 1

    def text(size: int) -> bytes:
        nonlocal place
        place += size
        return section[place - size : place]

    def pair() -> list[int]:
        return [number(), number()]

    def group() -> dict[str, Any]:
        made: dict[str, Any] = {"name": text(number()), "offset": pair(), "gap_floor": pair()}
        made |= {"entries_read": signed(), "ttl_ms": number(), "consumers": [None]}
        for _ in range(number()):
            size = number()
            made["consumers"].append([text(size - 1), signed(), signed()] if size else None)
        made["policies"] = [None] + [pair() if number() else None for _ in range(number())]
        return made | {"large_counts": [], "pending": text(36 * number())}

    assert byte() == 0xC1
    number()
    offset = 0
    found = []
    while place < len(section):
        db, key, flags = number(), text(number()), byte()
        meta: dict[str, Any] = {"incarnation": number(), "entries_added": number()}
        meta |= {"entries_evicted": number(), "entries_deleted": number()}
        if flags & 1:
            meta["expires_ms"] = number()
        meta["first_kept"] = pair() if flags & 4 else [0, 0]
        hidden = number() if flags & 4 else 0
        meta["max_evicted"] = pair() if flags & 8 else [0, 0]
        meta["max_deleted"] = pair() if flags & 16 else [0, 0]
        blocks, live, last = [], 0, [0, 0]
        if flags & 128:
            size, live, first = number(), number(), pair()
            last = pair()
            last[0] += first[0]
            blocks = [chunk[offset : offset + size]]
            assert Block.from_bytes(blocks[0]).first_id == tuple(first)
            offset += size
        meta["last_id"] = pair() if flags & 64 else last
        meta["length"] = live - hidden
        meta["groups"] = [group() for _ in range(number())] if flags & 32 else []
        found.append((db, key, meta | {"producers": {}, "open": flags & 2 != 0}, blocks))
    assert offset == len(chunk)
    return found


@pytest.mark.parametrize("first", [0, 30])
def test_the_compact_form_is_as_documented(first: int) -> None:
    for seed in range(first, first + 30):
        read_as_documented(seed)


def read_as_documented(seed: int) -> None:
    streams, expiries = some_streams(seed)
    section, chunk = written(streams, expiries)
    assert is_small_section(section)
    assert chunk_of(section) == (7 if chunk else None)
    expected = [(3, key, *state_of(streams[key], expiries.get(key))) for key in streams]
    assert decode(section, chunk) == expected
    rows = small_rows(section)
    for row, (db, key, meta, blocks) in zip(rows, expected, strict=True):
        assert row[:5] == [db, key, "stream", meta, None]
        for (number, offset, length, *_), block in zip(row[5], blocks, strict=True):
            assert (number, chunk[offset : offset + length]) == (7, block)


@pytest.mark.parametrize("first", [0, 30])
def test_loaded_streams_are_as_they_were(first: int) -> None:
    for seed in range(first, first + 30):
        write_and_load(seed)


def write_and_load(seed: int) -> None:
    streams, expiries = some_streams(seed)
    section, chunk = written(streams, expiries)
    keyspace = Keyspace()
    keyspace.set_time(NOW_MS)
    loader = SmallLoader(section, chunk)
    assert loader.chunk_number == (7 if chunk else None)
    while loader.step(keyspace, 3):
        pass
    assert loader.entries == sum(map(len, streams.values()))
    database = keyspace.databases[3]
    assert set(database.keys()) == set(streams)
    for key, stream in streams.items():
        loaded = database.table[key]
        check_stream(loaded)
        assert state_of(loaded) == state_of(stream)
        assert database.expiry_ms(key) == expiries.get(key, 0)
        same = upcoming_id(stream, NOW_MS)
        for one in (stream, loaded):
            one.append_entry(*same, [b"f", b"v"])
        assert state_of(loaded) == state_of(stream)


@pytest.mark.parametrize("seed", range(30))
def test_wrong_bytes_are_refused_or_read_within_their_bounds(seed: int) -> None:
    chance = random.Random(seed)
    section, chunk = written(*some_streams(seed))
    for _ in range(60):
        bad_section, bad_chunk = bytearray(section), bytearray(chunk)
        damaged = bad_section if chance.random() < 0.7 or not bad_chunk else bad_chunk
        place = chance.randrange(len(damaged))
        if chance.random() < 0.3:
            del damaged[place:]
        else:
            damaged[place] = chance.randrange(256)
        if not bad_section or bad_section[0] != 0xC1:
            continue
        keyspace = Keyspace()
        try:
            small_rows(bytes(bad_section))
            loader = SmallLoader(bytes(bad_section), bytes(bad_chunk))
            while loader.step(keyspace, 100):
                pass
        except (ValueError, OverflowError, BlockError):
            continue
        for database in keyspace.databases:
            for stream in database.table.values():
                assert isinstance(stream, Stream)
                stream.range()
                dump_stream(stream)


def test_only_small_streams_have_a_compact_form() -> None:
    batch = SmallStreams(BATCH_BYTES)

    def is_small(stream: Stream) -> bool:
        return batch.add(0, b"k", stream, None)

    assert is_small(Stream(1))
    long_one = Stream(1)
    for ms in range(1, 1000):
        long_one.append_entry(ms, 0, [b"f", b"v"])
    assert not is_small(long_one)
    large = Stream(1)
    large.append_entry(1, 0, [b"f", bytes(20_000)])
    assert not is_small(large)
    followed, sealed = Stream(1), Stream(1)
    followed.set_followed()
    sealed.set_sealed()
    assert not is_small(followed)
    assert not is_small(sealed)
    with_groups = Stream(1)
    for number in range(5):
        with_groups.make_group(b"%d" % number, 0, 0)
    assert not is_small(with_groups)
    with_consumers = Stream(1)
    group = with_consumers.make_group(b"g", 0, 0)
    for number in range(17):
        group.pending.make_consumer(b"%d" % number, 1)
    assert not is_small(with_consumers)
    assert batch.keys == 1


def test_a_capture_of_small_and_other_keys_is_complete() -> None:
    keyspace = Keyspace()
    for number in range(300):
        key = b"%d" % number
        database = keyspace.databases[number % 2]
        if number % 5 == 0:
            database.set(key, b"v")
        else:
            stream = database.make_stream(key, number)
            for ms in range(1, 900 if number % 50 == 1 else 3):
                stream.append_entry(ms, 0, [b"f", b"v"])
    found = {(one.db, one.key): one.kind for one in whole(Capture(keyspace), 40)}
    assert found == {
        (number % 2, b"%d" % number): "stream" if number % 5 else "string" for number in range(300)
    }


def test_no_section_of_maps_is_read_as_small_streams() -> None:
    for count in (0, 1, 15, 16, 70_000):
        assert not is_small_section(msgpack.packb([None] * count))
    assert not is_small_section(b"")


@pytest.mark.parametrize("seed", range(10))
def test_the_slots_have_every_key_once(seed: int) -> None:
    chance = random.Random(seed)
    slots = KeySlots()
    model: set[bytes] = set()
    names = [b"%d" % number for number in range(chance.choice([3, 3000]))]
    # Keys that share a slot.
    slot_of = slots.slot_of
    first = slot_of(names[0])
    names += [name for name in (b"x%d" % n for n in range(200_000)) if slot_of(name) == first]
    for _ in range(6000):
        name = chance.choice(names)
        if name in model:
            slots.remove(name)
            model.remove(name)
        else:
            assert slots.add(name) == slot_of(name)
            model.add(name)
    assert slots.keys == len(model)
    listed: list[bytes] = []
    slot = slots.used_from(0)
    while slot < SLOTS:
        keys = slots.keys_of(slot)
        assert {slot_of(key) for key in keys} == {slot}
        listed += keys
        slot = slots.used_from(slot + 1)
    assert sorted(listed) == sorted(model)
    cursor, scanned = slots.scan(0, 10)
    while cursor:
        cursor, more = slots.scan(cursor, 10)
        scanned += more
    assert scanned == listed
    assert {slots.key_at(chance.randrange(2**40)) for _ in range(50)} <= (model or {None})
    with pytest.raises(KeyError):
        slots.remove(b"no such key")
    while slots.free_step(100):
        pass
    assert slots.keys == 0
    assert slots.key_at(5) is None
