"""docs/formats.md is enough to read a block: this reader was written from that page alone.

It stays naive on purpose (one pass, no tables used) and shares nothing with storage/blocks/block.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.fakedisk import FakeDisk
from tests.support.storage_access import BlockWriter, deliver_id, hand_over_id, redeliver_id
from tests.unit.models import MAX, Entry, EntryId, Words, entry_words, ids, stepped, steps

from millstream.commands.runtime.effects import apply_effects
from millstream.storage.blocks.block import Block
from millstream.storage.files.frame_times import encode_time
from millstream.storage.files.journal_format import read_head
from millstream.storage.files.journal_reader import JournalReader
from millstream.storage.files.manifest import Manifest
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.head_eviction import evict_before
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

MASK = MAX
HEADER = "<2sBBIIIIHHQQQQ8x"


class Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, size: int) -> bytes:
        self.at += size
        assert self.at <= len(self.data)
        return self.data[self.at - size : self.at]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value & MASK

    def names(self, *, plain: bool = False) -> list[bytes]:
        count, size = self.varint(), self.varint()
        end = self.at + size
        found = []
        for _ in range(count):
            if plain:
                found.append(self.take(self.varint()))
                continue
            head, rest = self.take(self.varint()).split(b"\r\n", 1)
            found.append(rest[: int(head.removeprefix(b"$"))])
            assert rest == found[-1] + b"\r\n"
        assert self.at == end
        return found

    def dictionary(self) -> list[bytes]:
        count = int.from_bytes(self.take(2), "little")
        places = struct.unpack(f"<{count + 1}H", self.take(2 * count + 2))
        assert places[0] == self.at
        found = []
        for end in places[1:]:
            head, rest = self.take(end - self.at).split(b"\r\n", 1)
            found.append(rest[: int(head.removeprefix(b"$"))])
            assert rest == found[-1] + b"\r\n"
            assert len(found[-1]) <= 64
        return found

    def packed(self, words: list[bytes]) -> bytes:
        number, how = divmod(self.varint(), 4)
        if how == 0:
            return self.take(number)
        if how == 1:
            return words[number]
        if how == 2:
            return self.take(number).hex().encode()
        return words[number] + self.take(self.varint())

    def values(self, fields: int, words: list[bytes] | None) -> list[bytes]:
        if words is None:
            return [self.take(self.varint()) for _ in range(fields)]
        end = self.varint() + self.at
        found = [self.packed(words) for _ in range(fields)]
        assert self.at == end
        return found


def next_id(reader: Reader, form: int, last: EntryId, first_ms: int) -> EntryId:
    ms, seq = last
    if form == 0:
        return ms, (seq + 1) & MASK
    if form == 1:
        return ms + 1, 0
    if form == 2:
        return ms + reader.varint(), 0
    return first_ms + reader.varint(), reader.varint()


def decode(data: bytes) -> list[Entry]:
    """The undeleted entries of a block's disk form, hidden ones included."""
    (magic, version, _, crc, count, live, size, set_count, nodes, *first_and_last) = (
        struct.unpack_from(HEADER, data)
    )
    first_ms, first_seq, last_ms, last_seq = first_and_last
    assert magic == b"MB"
    assert version in (1, 3) or (version, set_count) == (2, 30)
    assert zlib.crc32(data[:4] + b"\0\0\0\0" + data[8:]) == crc
    tables = 4 * ((count - 1) // 32 + set_count + nodes - 1)
    assert len(data) == 64 + tables + size
    reader = Reader(data[64 + tables :])
    dictionary = reader.dictionary() if version == 3 else None
    sets: list[list[bytes]] = []
    entries: list[Entry] = []
    id_ = first_ms, first_seq - 1
    for _ in range(count):
        head = reader.take(1)[0]
        id_ = next_id(reader, head >> 5 & 3, id_, first_ms)
        number = head & 31
        if number >= 30:
            assert number == 31 or len(sets) == 30 or version == 3
            names = reader.names(plain=number == 30)
        else:
            if number == len(sets):
                sets.append(reader.names())
            names = sets[number]
        values = reader.values(len(names), dictionary)
        words = [word for pair in zip(names, values, strict=True) for word in pair]
        if not head & 128:
            entries.append((*id_, words))
    assert id_ == (last_ms, last_seq)
    assert len(entries) == live
    assert len(sets) == set_count
    assert reader.at == len(reader.data)
    return entries


def decode_pending(group: dict[str, Any]) -> list[tuple[Any, ...]]:
    """A group's pending entries in the shape of Group.pending."""
    found = []
    packed = group["pending"]
    assert len(packed) % 36 == 0
    for start in range(0, len(packed), 36):
        ms, seq = struct.unpack_from("<QQ", packed, start)
        first_ms, last_ms, count, consumer, policy = (
            int.from_bytes(packed[start + a : start + b], "little")
            for a, b in [(16, 22), (22, 28), (28, 31), (31, 34), (34, 36)]
        )
        large = {(a, b): times for a, b, times in group["large_counts"]}
        count = large.get((ms, seq), count)
        name = group["consumers"][consumer][0] if consumer else b""
        retry_ms, expire_ms = group["policies"][policy] if policy else (None, None)
        found.append((ms, seq, name, last_ms, count, first_ms, retry_ms, expire_ms))
    return found


def filled(first: EntryId, run: list[tuple[tuple[str, int], Words]], times: int) -> BlockWriter:
    made = BlockWriter()
    id_: EntryId | None = first
    for step, words in run * times:
        if id_ is None or not made.append_entry(*id_, words, 40, 0):
            break
        id_ = stepped(id_, step)
    return made


runs = st.lists(st.tuples(steps, entry_words), min_size=1, max_size=50)


@given(ids, runs, st.integers(1, 6), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_the_page_suffices_to_read_a_block(
    first: EntryId, run: list[tuple[tuple[str, int], Words]], times: int, data: st.DataObject
) -> None:
    made = filled(first, run, times)
    for ms, seq, _ in made.entries()[:: data.draw(st.integers(1, 5))]:
        if data.draw(st.booleans()):
            made.delete_entry(ms, seq)
    block = made.freeze()
    assert decode(block.to_bytes()) == block.entries()


def test_the_page_suffices_to_read_a_stream_and_its_groups() -> None:
    stream = Stream(incarnation=9)
    for i in range(1000):
        stream.append_entry(5, i, [b"name-%d" % (i % 33), b"v" * i])
    evict_before(stream, 5, 100)
    stream.delete_id(5, 500)
    group = stream.make_group(b"g", 5, 7)
    group.pending.make_consumer(b"alice", 1)
    deliver_id(group, 5, 200, 10, b"alice")
    deliver_id(group, 5, 201, 11, retry=(100, 2000))
    redeliver_id(group, 5, 201, 111)
    deliver_id(group, 5, 202, 12, b"alice")
    hand_over_id(group, 5, 202, b"", 0, 2**63 - 1)
    meta, blocks = dump_stream(stream)
    meta = msgpack.unpackb(msgpack.packb(meta))
    entries = [entry for block in blocks for entry in decode(block.to_bytes())]
    assert [e for e in entries if [*e[:2]] >= meta["first_kept"]] == stream.range()
    assert meta["length"] == len(stream) == 899
    assert set(meta) == {
        "length", "last_id", "first_kept", "max_evicted", "max_deleted", "entries_added",
        "entries_evicted", "entries_deleted", "incarnation", "groups", "producers", "open",
    }  # fmt: skip
    assert set(meta["groups"][0]) == {
        "name", "offset", "gap_floor", "entries_read", "ttl_ms", "consumers", "policies",
        "large_counts", "pending",
    }  # fmt: skip
    assert decode_pending(meta["groups"][0]) == group.pending.rows()


def example_bytes(page: str) -> bytes:
    """The hexadecimal example of the page: what stands left of the two spaces before a remark."""
    listing = page.split("```hex\n")[1].split("```")[0]
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in listing.splitlines())


def test_the_pages_example_is_a_block(request: Any) -> None:
    page = (request.config.rootpath / "docs" / "formats.md").read_text()
    example = example_bytes(page)
    entries = [
        (1000, 0, [b"sensor", b"01", b"temp", b"35.6"]),
        (1000, 1, [b"sensor", b"02", b"temp", b"7"]),
        (1005, 0, [b"alarm", b""]),
    ]
    assert Block.from_bytes(example).entries() == decode(example) == entries[:1] + entries[2:]
    made = BlockWriter()
    for ms, seq, words in entries:
        assert made.append_entry(ms, seq, words, 2, 0)
    made.delete_entry(1000, 1)
    assert made.freeze().to_bytes() == example


def test_the_pages_journal_is_a_journal(request: Any) -> None:
    """Read by the page alone, and by the server's reader."""
    page = (request.config.rootpath / "docs" / "formats.md").read_text()
    listing = page.split("```hex-journal\n")[1].split("```")[0]
    data = b"".join(bytes.fromhex(line.split("  ")[0]) for line in listing.splitlines())
    assert data[:64] == data[64:128]
    head_start, payload_start = struct.unpack_from("<II", data, 48)
    length, crc, seq, unsynced, head_crc = struct.unpack_from("<IIQII", data, 128)
    payload = data[152:]
    assert (len(payload), zlib.crc32(payload, payload_start)) == (length, crc)
    assert zlib.crc32(data[128:148], (head_start + 128) % 2**32) == head_crc
    assert (seq, unsynced, payload) == (
        1,
        0,
        encode_time(1_700_000_000) + b"\x32\x00",
    )
    assert apply_effects(Keyspace(), payload) == 1
    disk = FakeDisk()
    disk.put("journal-1.log", data)
    assert [found for _, _, found in JournalReader([disk.read("journal-1.log")], 1).frames()] == [
        payload
    ]
    assert read_head(disk.read("journal-1.log")).format.directory == bytes(range(16))


def test_the_pages_manifest_is_a_manifest(request: Any) -> None:
    page = (request.config.rootpath / "docs" / "formats.md").read_text()
    text = "millstream-manifest 2\n" + page.split("millstream-manifest 2\n")[1].split("```")[0]
    manifest = Manifest.from_bytes(text.encode())
    assert (manifest.files, manifest.directory) == (
        ("base-3.msnap", "journal-3.log", "journal-4.log"),
        bytes(range(16)),
    )
