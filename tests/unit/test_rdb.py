"""Values in Redis' dump format: written values are read again, and malformed ones refused.

`tests/support/payloads.py` builds payloads by other means, so that reader and writer are not only
held against each other.
"""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import payloads
from tests.support.effort import examples
from tests.support.in_process import InProcessClient, InProcessServer
from tests.support.payloads import Consumer, Entry, Group
from tests.support.storage_access import (
    acknowledge_id,
    boundary_by_nodes,
    check_stream,
    deliver_id,
    deliver_ids,
    hand_over_id,
)

from millstream.errors import PayloadError
from millstream.storage.dump import rdb, stream_reading
from millstream.storage.dump.file_writing import TARGETS, losses
from millstream.storage.dump.listpack import count_live_nodes, live_nodes, write_node
from millstream.storage.dump.node_codec import NodeReader
from millstream.storage.dump.pending import PendingReader
from millstream.storage.dump.rdb_bytes import compress, crc64
from millstream.storage.dump.reader import Reader
from millstream.storage.dump.stream_reading import (
    STREAM,
    STREAM_2,
    STREAM_3,
    STREAM_4,
    STREAM_5,
    STREAMS,
)
from millstream.storage.log.trim_nodes import node_count
from millstream.storage.streams.head_eviction import evict_before
from millstream.storage.streams.stream import Stream

NOW_MS = 1_700_000_000_000
WORDS = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"0", b"-1", b"127", b"128", b"-4096", b"4096", b"-0", b"007", b"65536",
                     b"-8388609", b"2147483648", b"9223372036854775807", b"-9223372036854775808",
                     b"9223372036854775808", b"x" * 63, b"x" * 64, b"y" * 4095, b"y" * 4096]),
)  # fmt: skip


def dumped(value: bytes | Stream) -> bytes:
    source = rdb.StreamDump(value) if isinstance(value, Stream) else rdb.StringDump(value)
    body = b"".join(source.steps())
    return body + rdb.footer(source.version, crc64(body))


def loaded(payload: bytes) -> Any:
    assert rdb.whole(rdb.is_intact(payload))
    return rdb.whole(rdb.load(payload, 1, NOW_MS + 9)).value


def read(body: bytes) -> Any:
    """The value of a body, whose checksum is not asked for."""
    return rdb.whole(rdb.load(body + bytes(rdb.FOOTER_BYTES), 1, NOW_MS + 9)).value


def refused(body: bytes) -> bool:
    try:
        read(body)
    except PayloadError:
        return True
    return False


# ---------------------------------------------------------------- checksum and compression


def test_the_checksum_is_that_of_redis() -> None:
    assert crc64(b"123456789") == 0xE9C6D914C4B8D9CA


@given(st.binary(max_size=200), st.integers(0, 200))
def test_a_checksum_continues_from_part_to_part(data: bytes, middle: int) -> None:
    assert crc64(data) == payloads.crc64(data)
    middle = min(middle, len(data))
    assert crc64(data, crc64(data, 0, 0, middle), middle) == crc64(data)


def unpacked(packed: bytes) -> bytes:
    """LZF undone, by the page of its author."""
    made, at = bytearray(), 0
    while at < len(packed):
        control = packed[at]
        at += 1
        if control < 32:
            made += packed[at : at + control + 1]
            at += control + 1
            continue
        size = control >> 5
        if size == 7:
            size += packed[at]
            at += 1
        start = len(made) - ((control & 31) << 8 | packed[at]) - 1
        at += 1
        for i in range(size + 2):
            made.append(made[start + i])
    return bytes(made)


def test_a_group_may_not_have_too_many_consumers() -> None:
    entry = payloads.raw_id((5, 1)) + bytes(8) + b"\x01"
    reader = Reader(entry + payloads.raw_id((5, 1)), 41)
    pending = PendingReader(reader, 9)
    assert list(pending.read(1)) == []
    with pytest.raises(PayloadError, match="too many consumers"):
        list(pending.give(1, 1 << 24))
    assert list(pending.give(1, (1 << 24) - 1)) == []


def test_a_long_part_that_is_kept_is_not_copied_for_each_piece() -> None:
    """The number of refills grows with the logarithm of the part, not with its pieces."""
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return bytes(1024)

    reader = Reader(b"", 0, 0, read)
    reader.mark()
    refills = 0
    for _ in range(4096):
        before = len(asked)
        reader.take(512)
        refills += len(asked) > before
    assert refills <= 60
    reader.rewind()
    assert reader.take(4096 * 512) == bytes(4096 * 512)


def decompressed(packed: bytes, size: int) -> bytes:
    data = payloads.compressed(packed, size)
    return Reader(data, len(data)).string()


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"ab" * 300, b"\0" * 9000]))))
def test_compressed_data_is_restored(parts: list[bytes]) -> None:
    data = b"".join(parts)
    packed = compress(data)
    if packed is not None:
        assert len(packed) <= len(data) - 4
        assert unpacked(packed) == data
        assert decompressed(packed, len(data)) == data


@given(st.binary(max_size=60), st.integers(0, 6000))
def test_compressed_bytes_may_have_any_value(packed: bytes, size: int) -> None:
    try:
        data = decompressed(packed, size)
    except PayloadError:
        return
    assert len(data) == size
    assert unpacked(packed) == data


def test_an_impossible_compressed_size_reserves_no_memory() -> None:
    tracemalloc.start()
    try:
        for size in (1 << 20, 1 << 40, 1 << 60, (1 << 64) - 1):
            with pytest.raises(PayloadError):
                decompressed(b"\0a\xff\xff\0", size)
            assert refused(b"\0" + payloads.compressed(b"\0a\xff\xff\0", size))
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


# ---------------------------------------------------------------- strings


@given(st.one_of(st.binary(max_size=300), WORDS, st.integers(-(2**33), 2**33).map(b"%d".__mod__)))
def test_a_string_is_restored(value: bytes) -> None:
    assert loaded(dumped(value)) == value


def test_strings_are_written_as_redis_writes_them() -> None:
    assert dumped(b"1") == bytes.fromhex("00c001") + dumped(b"1")[-10:]
    for value, body in {
        b"": "00 00", b"-1": "00 c0ff", b"128": "00 c18000", b"-32769": "00 c2ff7fffff",
        b"2147483648": "00 0a32313437343833363438", b"07": "00 02 3037", b"-0": "00 02 2d30",
    }.items():  # fmt: skip
        assert dumped(value)[:-10] == bytes.fromhex(body), value
    assert dumped(b"1")[-10:-8] == b"\x09\0"


# ---------------------------------------------------------------- streams


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A stream with deletions, trims, groups, consumers, pending and released entries."""
    stream = Stream(7)
    ms = draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(0, 40))):
        ms += draw(st.sampled_from([0, 1, 1, 300, 2**33]))
        seq = draw(st.integers(0, 3)) if ms > stream.last_ms else stream.last_seq + 1
        if (ms, seq) > stream.last_id:
            fields = draw(st.integers(1, 3))
            words = [draw(st.sampled_from([b"a", b"b", b"1", b""])), draw(WORDS)] * fields
            stream.append_entry(ms, seq, words, 5, 4096)
    known = [(entry[0], entry[1]) for entry in stream.range()]
    for ms, seq in draw(st.lists(st.sampled_from(known), max_size=8)) if known else []:
        stream.delete_id(ms, seq)
    if known and draw(st.booleans()):
        evict_before(stream, *draw(st.sampled_from(known)))
    for name in draw(st.lists(st.sampled_from([b"g", b"h", b"12"]), unique=True)):
        group = stream.make_group(name, *draw(st.sampled_from([(0, 0), *known])))
        group.entries_read = draw(st.sampled_from([-1, 0, 5, 2**62]))
        consumers = draw(st.lists(st.sampled_from([b"ann", b"bob", b"3"]), unique=True))
        for consumer in consumers:
            group.pending.make_consumer(consumer, draw(st.integers(0, NOW_MS))).active_ms = draw(
                st.sampled_from([-1, NOW_MS])
            )
        for ms, seq in known:
            if consumers and draw(st.booleans()):
                deliver_id(group, ms, seq, NOW_MS + seq, draw(st.sampled_from(consumers)))
                owner = draw(st.sampled_from([b"", *consumers]))
                count = draw(st.sampled_from([1, 0, 70, 2**24, 2**63 - 1]))
                hand_over_id(group, ms, seq, owner, 0 if not owner else NOW_MS, count)
    if draw(st.booleans()):
        stream.entries_added += draw(st.integers(0, 100))
    return stream


def facts(stream: Stream, kind: int) -> dict[str, Any]:
    """The contents of a dump of this type."""
    return {
        "entries": stream.range(),
        "nodes": node_count(stream),
        "last": stream.last_id,
        "deleted": stream.max_deleted_id,
        "added": stream.entries_added,
        "groups": {
            name: (
                (group.offset_ms, group.offset_seq, group.entries_read),
                {
                    c.name: (c.seen_ms, c.active_ms if kind >= STREAM_3 else c.seen_ms)
                    for c in group.pending.consumers.values()
                },
                [row[:5] for row in group.pending.rows()],
            )
            for name, group in stream.groups.items()
        },
    }


@given(streams())
@settings(max_examples=examples(200))
def test_a_stream_is_restored(stream: Stream) -> None:
    payload = dumped(stream)
    kind = payload[0]
    again = loaded(payload)
    check_stream(again)
    wanted = facts(stream, kind)
    if node_count(stream) != node_count(again):
        # A node of which every entry was deleted is counted until its block goes.
        wanted["nodes"] = node_count(again)
        assert stream.entries_deleted
        assert node_count(again) < node_count(stream)
    assert facts(again, kind) == wanted
    released = any(
        row[2] == b"" for group in stream.groups.values() for row in group.pending.rows()
    )
    assert kind == (STREAM_5 if released else STREAM_2)
    assert dumped(again) == payload


def sample(kind: int) -> payloads.Stream:
    """A stream with something of everything that its type holds."""
    entries = [Entry((5, i), [b"a", b"%d" % i, b"b", b"x" * i]) for i in range(1, 8)]
    entries[2].deleted = True
    entries[4].words = [b"c", b"-300"]
    more = [Entry((9, 0), [b"z", b"v" * 100]), Entry((1 << 40, 3), [b"z", b"1"])]
    group = Group(b"g", (5, 4), 4, consumers=[Consumer(b"ann", [(5, 1), (5, 4)])])
    group.pending = [((5, 1), NOW_MS, 1), ((5, 4), NOW_MS + 5, 2**40)]
    if kind >= STREAM_5:
        group.pending.insert(1, ((5, 2), 0, 3))
        group.released = [(5, 2)]
    stream = payloads.Stream([entries, more], (1 << 41, 0), (5, 3), 12, [group, Group(b"h")])
    if kind >= STREAM_4:
        stream.producers = [(b"p", [(b"m1", (5, 1)), (b"m2", (5, 2))]), (b"silent", [])]
        stream.iids_added, stream.iids_duplicates = 2, 1
    return stream


def test_a_payload_has_the_version_of_its_server_for_every_type() -> None:
    for version in (9, 10, 11, 12, 13, 14, 15):
        assert loaded(payloads.sealed(sample(STREAM_2).body(STREAM_2), version)).length == 8
        assert loaded(payloads.sealed(b"\0\xc0\x7b", version)) == b"123"
    for unknown in (16, 79, 82):
        assert not rdb.whole(rdb.is_intact(payloads.sealed(b"\0\xc0\x7b", unknown)))


@pytest.mark.parametrize("version", rdb.VALKEY_VERSIONS)
def test_payloads_of_valkey_are_read(version: int) -> None:
    assert loaded(payloads.sealed(sample(STREAM_3).body(STREAM_3), version)).length == 8
    assert loaded(payloads.sealed(b"\0\xc0\x7b", version)) == b"123"
    for kind, words in ((22, "a hash"), (STREAM_4, "type 26 is not known"), (24, "type 24")):
        with pytest.raises(PayloadError, match=words):
            loaded(payloads.sealed(bytes((kind, 0)), version))


def test_metadata_that_may_be_ignored_is_passed_over() -> None:
    value = sample(STREAM_4).body(STREAM_4)
    numbers = b"\1" + payloads.length(300) + b"\2" + payloads.length(1 << 40)
    parts = numbers + b"\3abcd\4abcdefgh\5" + payloads.text(b"x")
    for flags in (1, 3, 5):
        spec = struct.pack("<I", (0b000001_000010_000011_000100 << 5 | 2) << 3 | flags)
        for count in (1, 2, 7):
            metadata = b"\xf3" + payloads.length(count) + (spec + parts + b"\0") * count
            assert loaded(payloads.sealed(metadata + value, 13)).length == 8
            for end in range(1, len(metadata)):
                assert refused(metadata[:end])
    required = b"\xf3\1" + struct.pack("<I", (0b000001_000010_000011_000100 << 5) << 3) + b"\0"
    with pytest.raises(PayloadError, match="class BCDE, which is required"):
        read(required + value)
    with pytest.raises(PayloadError, match="too many classes"):
        read(b"\xf3\10" + value)
    with pytest.raises(PayloadError, match="type 243"):
        loaded(payloads.sealed(b"\xf3\0" + value, 80))


@pytest.mark.parametrize("form", range(6))
@pytest.mark.parametrize("kind", STREAMS)
def test_every_type_and_form_is_read(kind: int, form: int) -> None:
    source = sample(kind)
    stream = loaded(payloads.sealed(source.body(kind, form)))
    check_stream(stream)
    assert stream.range() == [(*entry.id, entry.words) for entry in source.live]
    assert stream.last_id == (1 << 41, 0)
    assert node_count(stream) == 2
    assert stream.max_deleted_id == ((5, 3) if kind >= STREAM_2 else (0, 0))
    assert stream.entries_added == (12 if kind >= STREAM_2 else 8)
    group = stream.groups[b"g"]
    assert group.entries_read == (4 if kind >= STREAM_2 else -1)
    ann = group.pending.consumers[b"ann"]
    assert (ann.seen_ms, ann.active_ms) == (NOW_MS, NOW_MS + (kind >= STREAM_3))
    rows = [(*row[:2], row[2], row[3], row[4]) for row in group.pending.rows()]
    expected = [(5, 1, b"ann", NOW_MS, 1), (5, 4, b"ann", NOW_MS + 5, 2**40)]
    if kind >= STREAM_5:
        expected.insert(1, (5, 2, b"", 0, 3))
    assert rows == expected
    if kind >= STREAM_4:
        window = stream.idempotence
        assert window.find(b"p", b"m2", 6) == (5, 2)
        assert (window.added, window.duplicates, window.tracked()) == (2, 1, (1, 2))
    else:
        assert stream.idempotence is None


def test_times_after_now_become_now() -> None:
    body = sample(STREAM_3).body(STREAM_3) + bytes(rdb.FOOTER_BYTES)
    group = rdb.whole(rdb.load(body, 1, NOW_MS - 2)).value.groups[b"g"]
    assert [row[3] for row in group.pending.rows()] == [NOW_MS - 2, NOW_MS - 2]
    ann = group.pending.consumers[b"ann"]
    assert (ann.seen_ms, ann.active_ms) == (NOW_MS - 2, NOW_MS - 2)


def test_entries_of_a_consumer_without_a_name_have_no_owner() -> None:
    source = sample(STREAM_2)
    source.groups[0].consumers = [Consumer(b"", [(5, 1)]), Consumer(b"ann", [(5, 4)])]
    group = read(source.body(STREAM_2)).groups[b"g"]
    assert [row[:3] for row in group.pending.rows()] == [(5, 1, b""), (5, 4, b"ann")]
    assert list(group.pending.consumers) == [b"ann"]


def test_a_window_is_restored() -> None:
    source = sample(STREAM_4)
    source.duration_s, source.maxsize = 7, 9
    stream = loaded(payloads.sealed(source.body(STREAM_4)))
    again = loaded(dumped(stream))
    assert again.idempotence.dump() == stream.idempotence.dump()


def test_a_large_node_and_large_entries_are_restored() -> None:
    stream = Stream(1)
    for i in range(1, 200):
        stream.append_entry(i, 0, [b"n", b"%d" % i * (i * 40)], 1000, 0)
    stream.append_entry(1000, 0, [b"f%d" % (i // 2) for i in range(128)], 100, 4096)
    stream.append_entry(1001, 0, [b"n", b"v" * 300_000], 100, 4096)
    again = loaded(dumped(stream))
    check_stream(again)
    assert again.range() == stream.range()


@pytest.mark.parametrize("size", [127, 16_382, 2_097_150])
def test_the_length_after_an_element_is_as_wide_as_in_redis(size: int) -> None:
    head = 2 if size < 4096 else 5
    for near in (size - 1, size, size + 1):
        words = [b"n", b"v" * (near - head)]
        source = payloads.Stream([[Entry((1, 1), words)]])
        assert read(source.body(STREAM_2)).range() == [(1, 1, words)]
        stream = Stream(1)
        stream.append_entry(1, 1, words)
        (node,) = (node for block in stream.blocks() for node in live_nodes(block, (0, 0)))
        assert rdb.whole(write_node(node)) == payloads.node(source.nodes[0])[1]


def node_of_fields(count: int) -> bytes:
    """The body of a stream with one compressed node of one entry, of many short fields."""
    fields = payloads.number(1) * count
    listpack = payloads.listpack(
        [*map(payloads.number, (1, 0, count)), fields, *map(payloads.number, (0, 2, 0, 0)),
         fields, payloads.number(3 + count)], 0xFFFF,
    )  # fmt: skip
    packed = compress(listpack)
    assert packed is not None
    node = payloads.text(payloads.raw_id((1, 1))) + payloads.compressed(packed, len(listpack))
    return b"\x0f\x01" + node + payloads.length(1) + payloads.ids((1, 1)) + b"\0"


def test_an_entry_has_a_limited_number_of_fields() -> None:
    assert read(node_of_fields(1 << 20)).length == 1
    body = node_of_fields(1 << 22)
    assert len(body) < 200_000
    tracemalloc.start()
    try:
        with pytest.raises(PayloadError, match="more than 1048576"):
            read(body)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # the unpacked node has 17 MB
    finally:
        tracemalloc.stop()


def test_each_string_has_a_limit_not_their_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [[Entry((i, 0), [b"n", b"v" * 200_000])] for i in range(1, 9)]
    body = payloads.Stream(entries).body(STREAM_2)
    monkeypatch.setattr(stream_reading, "LISTPACK_MAX_BYTES", 250_000)
    assert read(body).length == 8
    monkeypatch.setattr(stream_reading, "LISTPACK_MAX_BYTES", 150_000)
    with pytest.raises(PayloadError, match="too long"):
        read(body)


def test_a_long_node_is_read_in_steps() -> None:
    entries = [Entry((1, i), [b"n", b"%d" % i]) for i in range(10_000)]
    body = payloads.Stream([entries]).body(STREAM)
    steps = rdb.load(body + bytes(rdb.FOOTER_BYTES), 1, NOW_MS + 9)
    assert len(list(steps)) > 20


def test_a_dump_shows_the_stream_as_it_was_when_it_began() -> None:
    stream = Stream(1)
    for i in range(1, 1000):
        stream.append_entry(i, 0, [b"n", b"v"])
    group = stream.make_group(b"g", 0, 0)
    group.pending.make_consumer(b"ann", 1)
    deliver_ids(group, [(i, 0) for i in range(1, 500)], 5, b"ann")
    before = dumped(stream)
    source = rdb.StreamDump(stream)
    steps = source.steps()
    first = next(steps)
    for i in range(1, 400):
        acknowledge_id(group, i, 0)
    stream.delete_id(700, 0)
    evict_before(stream, 600, 0)
    stream.append_entry(2000, 0, [b"m", b"w"])
    body = first + b"".join(steps)
    assert body + rdb.footer(source.version, crc64(body)) == before


# ---------------------------------------------------------------- refusals


def test_a_payload_has_a_checksum_and_a_known_version() -> None:
    good = dumped(b"v")
    assert not rdb.whole(rdb.is_intact(b""))
    assert not rdb.whole(rdb.is_intact(good[:-1]))
    assert not rdb.whole(rdb.is_intact(good.replace(b"v", b"w")))
    assert not rdb.whole(rdb.is_intact(good[-9:]))
    for version, taken in ((1, True), (rdb.VERSION_MAX, True), (rdb.VERSION_MAX + 1, False)):
        assert rdb.whole(rdb.is_intact(payloads.sealed(b"\0\1v", version))) == taken


def checked_load(body: bytes) -> None:
    """A value that is taken is sound, and comes back from its own dump."""
    try:
        value = read(body)
    except PayloadError:
        return
    if isinstance(value, Stream):
        check_stream(value)
        assert loaded(dumped(value)).range() == value.range()


@pytest.mark.parametrize("kind", STREAMS)
def test_any_byte_may_be_another(kind: int) -> None:
    body = sample(kind).body(kind)
    for at in range(len(body)):
        for change in (1, 0x80, 0xFF, body[at]):
            checked_load(body[:at] + bytes((body[at] ^ change,)) + body[at + 1 :])


@pytest.mark.parametrize("kind", STREAMS)
def test_every_cut_and_every_addition_is_refused(kind: int) -> None:
    body = sample(kind).body(kind)
    for end in range(1, len(body)):
        assert refused(body[:end]), end
    assert refused(body + b"\0")


@pytest.mark.parametrize("size", [1 << 31, 1 << 32, 1 << 60, (1 << 63) - 1, (1 << 64) - 1])
def test_a_missing_length_reserves_no_memory(size: int) -> None:
    body = sample(STREAM_5).body(STREAM_5)
    huge = struct.pack(">BQ", 0x81, size)
    tracemalloc.start()
    try:
        for at in range(1, len(body)):
            checked_load(body[:at] + huge + body[at + 1 :])
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.data())
@settings(max_examples=examples(300))
def test_a_node_may_have_any_form(data: st.DataObject) -> None:
    elements = data.draw(
        st.lists(
            st.one_of(
                st.integers(-5, 9).map(payloads.number),
                st.integers(-(2**63), 2**63 - 1).map(payloads.number),
                st.binary(max_size=9).map(payloads.string),
            ),
            max_size=20,
        )
    )
    stream = Stream(1)
    try:
        nodes = NodeReader(stream)
        while nodes.step(5, 5, payloads.listpack(elements), 3):
            pass
    except PayloadError:
        return
    check_stream(stream)


def broken(change: str) -> bytes:
    """A stream of which one thing is wrong."""
    stream = sample(STREAM_5)
    group = stream.groups[0]
    ann = group.consumers[0]
    first, second = stream.nodes
    match change:
        case "a node below the one before":
            stream.nodes = [second, first]
        case "the same node twice":
            stream.nodes = [first, first]
        case "entries that do not rise":
            first[1].id = (5, 1)
        case "an entry below its node":
            first[1].id = (4, 0)
        case "a group twice":
            stream.groups[1].name = b"g"
        case "a consumer twice":
            group.consumers.append(Consumer(b"ann", []))
        case "an entry pending twice":
            group.pending.insert(0, group.pending[0])
        case "pending entries that do not rise":
            group.pending.reverse()
        case "an entry without an owner":
            group.released = []
        case "a released entry that is owned":
            group.released = [(5, 1), (5, 2)]
        case "a released entry named twice":
            group.released = [(5, 2), (5, 2)]
        case "an entry with two owners":
            group.consumers.append(Consumer(b"bob", [(5, 1)]))
        case "an entry owned that is not pending":
            ann.pending.append((6, 0))
        case "more entries than were added":
            stream.entries_added = 7
        case "an impossible count of entries added":
            stream.entries_added = 2**64 - 1
        case "an impossible count of entries read":
            group.entries_read = -2
        case "an impossible count of deliveries":
            group.pending[0] = ((5, 1), 5, 1 << 63)
        case "a delivery before time began":
            group.pending[0] = ((5, 1), -1, 1)
        case "a consumer seen before time began":
            ann.seen_ms = -2
        case "a message twice":
            stream.producers = [(b"p", [(b"m", (5, 1)), (b"m", (5, 2))])]
        case "a producer twice":
            stream.producers = [(b"p", [(b"m", (5, 1))]), (b"p", [(b"n", (5, 1))])]
        case "a window without an end":
            stream.duration_s = 0
        case "no fields":
            first[0].words = []
    return stream.body(STREAM_5)


@pytest.mark.parametrize("change", [
    "a node below the one before", "the same node twice", "entries that do not rise",
    "an entry below its node", "a group twice", "a consumer twice", "an entry pending twice",
    "pending entries that do not rise", "an entry without an owner",
    "a released entry that is owned", "a released entry named twice", "an entry with two owners",
    "an entry owned that is not pending", "more entries than were added",
    "an impossible count of entries added", "an impossible count of entries read",
    "an impossible count of deliveries",
    "a delivery before time began", "a consumer seen before time began", "a message twice",
    "a producer twice", "a window without an end", "no fields",
])  # fmt: skip
def test_inconsistent_payloads_are_refused(change: str) -> None:
    assert not refused(broken("nothing"))
    assert refused(broken(change))


def test_payloads_that_a_group_refuses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumers that are too many for a group would be a payload of 300 MB."""

    def refuse(meta: dict[str, Any], now_ms: int) -> Iterator[None]:
        yield
        raise ValueError(f"group {meta['name']!r} has too many consumers")

    monkeypatch.setattr(stream_reading, "load_group_in_steps", refuse)
    with pytest.raises(PayloadError, match="too many consumers"):
        read(sample(STREAM_2).body(STREAM_2))


def test_other_types_are_refused_by_name() -> None:
    for kind, name in ((1, "list"), (25, "hash"), (3, "sorted set"), (28, "array")):
        with pytest.raises(rdb.OtherTypeError, match=name):
            loaded(payloads.sealed(bytes((kind, 0)), 9))
    assert refused(b"\x63\0")


def test_nodes_stay_nodes() -> None:
    stream = Stream(1)
    for i in range(1, 101):
        stream.append_entry(i, 0, [b"n", b"%d" % i], 7, 4096)
    for block in stream.blocks():
        assert len(live_nodes(block, (0, 0))) == count_live_nodes(block, (0, 0))
    assert boundary_by_nodes(stream, 50, None, 0) == boundary_by_nodes(
        loaded(dumped(stream)), 50, None, 0
    )


def test_a_file_names_the_rules_that_it_leaves_out(
    in_process: InProcessServer, player: InProcessClient
) -> None:
    player.call("XADD s 1-1 f v")
    player.call("TGROUP s g START 0 TIMEOUT 1000")
    player.call("TPOLICY s EVICT DONE HARDLEN 7 MAXLEN 5")
    player.call("TSCHEDULE s IN 1000 x f v")
    assert losses(in_process.stream(), TARGETS["7.0"].kind) == [
        "its policy (TPOLICY MAXLEN 5 HARDLEN 7 EVICT DONE)",
        "times to live and rules of groups (TGROUP)",
        "scheduled entries (1)",
    ]
