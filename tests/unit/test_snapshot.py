"""The snapshot: everything comes back, every part alone, and no byte changes unnoticed."""

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fakedisk import FakeDisk
from tests.support.fakepersistence import BLOCK_ENTRIES, FakeBlock, FakeCaptured, blocks

from millstream.errors import DataError
from millstream.storage.files import snapshot_writer
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.files.snapshot_writer import Identity, SnapshotWriter

U64 = 2**64 - 1
GLOBAL = {"databases": 16, "names": [b"a", [1, U64]]}

ints = st.integers(0, U64)
meta = st.dictionaries(
    st.text(max_size=8),
    ints | st.binary(max_size=1500) | st.lists(ints, max_size=4) | st.none(),
    max_size=5,
)
captured = st.builds(
    FakeCaptured,
    st.integers(0, 15),
    st.binary(max_size=40),
    st.sampled_from(["stream", "string"]),
    meta,
    st.lists(ints, max_size=40).map(lambda numbers: blocks(sorted(numbers))),
)


def write(keys: list[FakeCaptured], compressed: bool = True) -> tuple[FakeDisk, SnapshotWriter]:
    disk = FakeDisk()
    file = disk.create("base-1.msnap")
    writer = SnapshotWriter(
        file,
        Identity(
            uuid=b"u" * 16,
            created_ms=1_700_000_000_000,
            seq=U64,
            directory=b"d" * 16,
            salt=b"salt",
        ),
        compressed=compressed,
    )
    for one in keys:
        writer.add(one)
    writer.finish(GLOBAL)
    return disk, writer


def read(disk: FakeDisk) -> tuple[list[FakeCaptured], SnapshotReader]:
    reader = SnapshotReader(disk.read("base-1.msnap"))
    keys = [
        FakeCaptured(
            record.db,
            record.key,
            record.kind,
            reader.meta(record),
            list(reader.blocks(record, FakeBlock)),
        )
        for section in range(len(reader.summary.sections))
        for record in reader.records(section)
    ]
    return keys, reader


def sample() -> list[FakeCaptured]:
    return [
        FakeCaptured(0, b"stream", "stream", {"last": [9, U64]}, blocks(list(range(1, 40)))),
        FakeCaptured(3, b"long", "string", {"value": bytes(range(256)) * 8}, []),
        FakeCaptured(0, b"short", "string", {"value": b"v"}, []),
    ]


@settings(deadline=None)
@given(st.lists(captured, max_size=20), st.booleans())
def test_reading_returns_the_written_data(keys: list[FakeCaptured], compressed: bool) -> None:
    disk, _ = write(keys, compressed)
    found, reader = read(disk)
    assert found == keys
    summary = reader.summary
    assert (summary.uuid, summary.created_ms, summary.seq) == (b"u" * 16, 1_700_000_000_000, U64)
    assert summary.keys == len(keys)
    assert summary.entries == sum(block.live for key in keys for block in key.blocks)
    assert summary.global_meta == GLOBAL
    reader.check()


@settings(deadline=None)
@given(st.lists(captured, max_size=20), st.integers(1, 30), st.integers(100, 5000))
def test_limits_of_chunks_and_sections_change_nothing(
    keys: list[FakeCaptured], entries: int, size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_writer, "CHUNK_ENTRIES_MAX", entries)
        patch.setattr(snapshot_writer, "CHUNK_BYTES_MAX", size)
        patch.setattr(snapshot_writer, "_SECTION_BYTES", size)
        patch.setattr(snapshot_writer, "_STEP_BYTES", size // 3)
        disk, _ = write(keys)
    found, reader = read(disk)
    assert found == keys
    per_chunk: dict[int, int] = {}
    for section in range(len(reader.summary.sections)):
        for record in reader.records(section):
            for piece in record.pieces:
                per_chunk[piece.chunk] = per_chunk.get(piece.chunk, 0) + piece.entries
    assert all(count < entries + 4 for count in per_chunk.values())
    places = {number: place.items for number, place in enumerate(reader.summary.chunks)}
    assert {number: count for number, count in places.items() if count} == per_chunk


def test_small_streams_share_a_chunk_and_a_long_one_has_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_writer, "CHUNK_ENTRIES_MAX", 100)
    small = [FakeCaptured(0, b"%d" % key, "stream", {}, blocks([key])) for key in range(1, 51)]
    long = FakeCaptured(0, b"long", "stream", {}, blocks(list(range(1, 301))))
    disk, _ = write([*small, long])
    reader = SnapshotReader(disk.read("base-1.msnap"))
    records = reader.records(0)
    assert {record.pieces[0].chunk for record in records[:50]} == {0}
    pieces = records[50].pieces
    assert [piece.chunk for piece in pieces] == [0, 1, 2, 3]
    assert sum(piece.entries for piece in pieces) == 300
    assert (pieces[0].min_ms, pieces[0].min_seq) == (1, 0)
    assert (pieces[-1].max_ms, pieces[-1].max_seq) == (300, U64)
    assert all(one.max_ms < two.min_ms for one, two in itertools.pairwise(pieces))


class CountingFile:
    """Notes which ranges are read."""

    def __init__(self, disk: FakeDisk) -> None:
        self._file = disk.read("base-1.msnap")
        self.name, self.size = self._file.name, self._file.size
        self.ranges: list[tuple[int, int]] = []

    def read_at(self, offset: int, length: int) -> bytes:
        self.ranges.append((offset, length))
        return self._file.read_at(offset, length)


def test_the_index_is_read_without_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_writer, "CHUNK_ENTRIES_MAX", 8)
    disk, _ = write(sample())
    file = CountingFile(disk)
    reader = SnapshotReader(file)
    record = reader.records(0)[0]
    first_chunk, last_chunk = reader.summary.chunks[0], reader.summary.chunks[-1]
    chunks = range(first_chunk.offset, last_chunk.offset + last_chunk.length)
    assert not [place for place in file.ranges if place[0] in chunks]
    file.ranges.clear()
    piece = record.pieces[2]
    reader.chunk(piece.chunk)
    place = reader.summary.chunks[piece.chunk]
    assert file.ranges == [(place.offset, place.length + 16)]


def read_all(disk: FakeDisk) -> Any:
    keys, reader = read(disk)
    reader.check()
    return keys


@pytest.mark.parametrize("compressed", [False, True])
def test_every_flipped_byte_is_refused_with_file_and_offset(
    monkeypatch: pytest.MonkeyPatch, compressed: bool
) -> None:
    monkeypatch.setattr(snapshot_writer, "CHUNK_ENTRIES_MAX", 16)
    disk, _ = write(sample(), compressed)
    data = disk.content("base-1.msnap")
    assert read_all(disk) == sample()
    for at in range(len(data)):
        broken = bytearray(data)
        broken[at] ^= 1 << at % 8
        disk.put("base-1.msnap", bytes(broken))
        with pytest.raises(DataError, match=r"base-1\.msnap (is damaged at offset \d|has format)"):
            read_all(disk)


def test_chunks_are_packed_on_request_and_else_hardly_longer() -> None:
    keys = [FakeCaptured(0, b"k", "stream", {}, blocks(list(range(20_000))))]
    raw = sum(len(block.to_bytes()) for block in keys[0].blocks)
    stored, packed = write(keys, False)[0], write(keys, True)[0]
    assert raw < len(stored.content("base-1.msnap")) < raw * 1.01 + snapshot_writer.TAIL_SIZE
    assert len(packed.content("base-1.msnap")) < raw / 2
    assert read_all(stored) == read_all(packed) == keys


def test_every_cut_is_refused() -> None:
    disk, _ = write(sample())
    data = disk.content("base-1.msnap")
    for size in range(len(data)):
        disk.put("base-1.msnap", data[:size])
        with pytest.raises(DataError, match=r"base-1\.msnap is damaged at offset"):
            read_all(disk)


def test_a_block_that_does_not_fit_names_the_chunk() -> None:
    disk, _ = write(sample())
    reader = SnapshotReader(disk.read("base-1.msnap"))
    record = reader.records(0)[0]
    shifted = record.pieces[0]._replace(offset=1, length=record.pieces[0].length - 1)
    with pytest.raises(DataError, match="in chunk 0 at unpacked byte 1: the block is broken"):
        list(reader.blocks(record._replace(pieces=(shifted,)), FakeBlock))


def test_writing_pauses_between_small_pieces() -> None:
    pauses = 0

    def pause() -> None:
        nonlocal pauses
        pauses += 1

    file = FakeDisk().create("base-1.msnap")
    writer = SnapshotWriter(
        file,
        Identity(
            uuid=b"u" * 16,
            created_ms=0,
            seq=0,
            directory=b"d" * 16,
            salt=b"salt",
        ),
        pause=pause,
    )
    writer.add(FakeCaptured(0, b"k", "stream", {}, blocks(list(range(100_000)))))
    assert pauses >= 100_000 // BLOCK_ENTRIES // snapshot_writer.RUN_BLOCKS_MAX
