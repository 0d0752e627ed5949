"""A block gives back what was put in, and bytes that are not a block are refused, never read.

Reading from Python is `entries`; replies (`encode`), ranks and walks go through a stream whose only
content is the block, so each way of reading the layout is compared with a naive list.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import struct
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.effort import TIMES, examples, ways
from tests.support.storage_access import (
    BlockList,
    BlockWriter,
    bulk_size_of,
    encode_between,
    id_at,
    verdicts,
)
from tests.unit.models import (
    MAX,
    Entry,
    EntryId,
    Words,
    bulk,
    encoded,
    entry_words,
    ids,
    stepped,
    steps,
)
from tests.unit.test_formats import decode

from millstream.errors import BlockError
from millstream.storage.blocks.block import Block
from millstream.storage.blocks.value_packing import packed
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream, load_stream

END = (MAX, MAX)
HEADER = 64


def open_block(entries: list[Entry], node_entries: int = 0, node_bytes: int = 0) -> BlockWriter:
    made = BlockWriter()
    for ms, seq, words in entries:
        assert made.append_entry(ms, seq, words, node_entries, node_bytes)
    return made


def stream_of(block: Block) -> Stream:
    """A stream that holds just this block, as loading a snapshot makes it."""
    meta = dump_stream(Stream())[0]
    return load_stream(meta | {"length": block.live, "last_id": list(block.last_id)}, [block], 0)


def reads_as(block: Block, entries: list[Entry]) -> None:
    """Every way to read the block agrees with `entries`."""
    block.check()
    assert block.entries() == entries
    again = Block.from_bytes(block.to_bytes())
    assert again.entries() == entries
    assert again.to_bytes() == block.to_bytes()
    assert block.size_bytes == len(block.to_bytes())
    if not entries:
        return
    stream = stream_of(again)
    assert stream.range() == entries
    for dotted in (False, True):
        everything = (0, 0), END, MAX, dotted
        parts = [encoded([entry], dotted) for entry in entries]
        assert encode_between(stream, *everything) == (len(entries), b"".join(parts))
        backward = len(entries), b"".join(reversed(parts))
        assert encode_between(stream, *everything, reverse=True) == backward
    for rank, (ms, seq, _) in enumerate(entries):
        assert id_at(stream, rank) == (ms, seq)
        assert stream.rank(ms, seq) == rank


# ---------------------------------------------------------------- model


class OpenBlockMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.real = BlockWriter()
        self.model: list[Entry] = []
        self.last: EntryId | None = None
        self.frozen: list[tuple[Block, list[Entry]]] = []

    @rule(first=ids, step=steps, words=entry_words, count=st.integers(1, 50))
    def append(self, first: EntryId, step: tuple[str, int], words: Words, count: int) -> None:
        for i in range(count):
            id_ = first if self.last is None else stepped(self.last, step if i == 0 else ("seq", 1))
            if id_ is None or not self.real.append_entry(*id_, words, 0, 0):
                return
            self.last = id_
            self.model.append((*id_, words))

    @rule(count=st.integers(1, 40), offset=st.integers(0, 40))
    def append_sets(self, count: int, offset: int) -> None:
        for i in range(count):
            self.append_one([b"set-%d" % (i + offset), b"%d" % i])

    def append_one(self, words: Words) -> None:
        id_ = (7, 7) if self.last is None else stepped(self.last, ("ms", 3))
        if id_ is not None and self.real.append_entry(*id_, words, 0, 0):
            self.last = id_
            self.model.append((*id_, words))

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 40))
    def delete(self, data: st.DataObject, count: int) -> None:
        start = data.draw(st.integers(0, len(self.model) - 1))
        for ms, seq, _ in self.model[start : start + count]:
            assert self.real.delete_entry(ms, seq)
            assert not self.real.delete_entry(ms, seq)
        del self.model[start : start + count]

    @rule(id_=ids)
    def delete_any(self, id_: EntryId) -> None:
        known = [entry[:2] for entry in self.model]
        assert self.real.delete_entry(*id_) == (id_ in known)
        self.model = [entry for entry in self.model if entry[:2] != id_]

    @precondition(lambda self: self.last is not None)
    @rule()
    def freeze(self) -> None:
        self.frozen.append((self.real.freeze(), list(self.model)))
        reads_as(*self.frozen[-1])

    @invariant()
    def is_the_same(self) -> None:
        self.real.check()
        assert self.real.entries() == self.model
        assert len(self.real) == self.real.live == len(self.model)
        for block, entries in self.frozen:
            assert block.entries() == entries, "a sealed block has changed"


OpenBlockMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=20, deadline=None
)
TestOpenBlock = OpenBlockMachine.TestCase


# ---------------------------------------------------------------- many in a row


def row_of_blocks(counts: list[int]) -> list[Block]:
    return [
        open_block([(number + 1, seq, [b"n", b"%d" % seq]) for seq in range(count)]).freeze()
        for number, count in enumerate(counts)
    ]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12),
    st.integers(0, 2000),
    st.integers(0, 100),
)
def test_a_row_of_blocks_is_packed_up_to_its_limits_and_unpacked(
    counts: list[int], bytes_max: int, entries_max: int
) -> None:
    row = row_of_blocks(counts)
    data, taken, entries, live = Block.pack(row, bytes_max, entries_max)
    assert data == b"".join(block.to_bytes() for block in row[:taken])
    assert entries == live == sum(counts[:taken])
    before = len(data) - row[taken - 1].size_bytes
    assert taken == 1 or (before < bytes_max and entries - counts[taken - 1] < entries_max)
    assert taken == len(row) or len(data) >= bytes_max or entries >= entries_max
    again, end = Block.unpack(memoryview(b"head" + data + b"tail"), 4, taken)
    assert end == 4 + len(data)
    assert [block.to_bytes() for block in again] == [block.to_bytes() for block in row[:taken]]


def test_a_wrong_block_in_a_row_is_reported_with_its_position() -> None:
    row = row_of_blocks([5, 5, 5])
    data = b"".join(block.to_bytes() for block in row)
    second = row[0].size_bytes
    for size in range(len(data)):
        with pytest.raises(BlockError) as caught:
            Block.unpack(memoryview(data[:size]), 0, 3)
        assert caught.value.at == size // second * second
    for at in (second, second + 8, second + 16, second + HEADER):  # magic, count, size, a table
        with pytest.raises(BlockError) as caught:
            Block.unpack(memoryview(changed(data, at, data[at] ^ 1)), 0, 3)
        assert caught.value.at in (second, 2 * second)  # a wrong length shows at what follows


# ---------------------------------------------------------------- contents


@pytest.mark.parametrize("size", [0, 1, 9, 10, 15, 16, 17, 99, 100, 127, 128, 16383, 16384, 2**20])
def test_names_and_values_of_any_size_are_restored(size: int) -> None:
    long = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    words = [b"before", b"1", long, b"2", b"after", long, long, long, b"", b""]
    entries = [(1, 0, words), (1, 1, [b"a", long]), (2, 5, [long, b""])]
    reads_as(open_block(entries[:1]).freeze(), entries[:1])
    if size < 8000:  # else they do not fit into one block
        reads_as(open_block(entries).freeze(), entries)
    assert bulk_size_of(size) == len(bulk(long))


@pytest.mark.parametrize(
    "first", [(0, 0), (0, 1), (5, MAX - 40), (MAX, MAX - 500), (MAX - 3, 0), (1 << 63, 1 << 63)]
)
def test_ids_of_any_size_and_distance_are_restored(first: EntryId) -> None:
    for step in (("seq", 1), ("ms", 1), ("ms", 1000), ("seq", 2), ("both", 1)):
        for count in (1, 31, 32, 33, 63, 64, 65, 96, 97, 400):
            entries: list[Entry] = []
            id_: EntryId | None = first
            for i in range(count):
                if id_ is None:
                    break
                entries.append((*id_, [b"n", b"%d" % i]))
                id_ = stepped(id_, step)
            reads_as(open_block(entries).freeze(), entries)


def test_more_field_name_sets_than_a_block_numbers() -> None:
    entries: list[Entry] = [
        (i + 1, 0, [b"name-%d" % (i * 7 % 45), b"v%d" % i, b"b", b""]) for i in range(300)
    ]
    reads_as(open_block(entries).freeze(), entries)


def test_sets_that_differ_in_order_size_or_repetition_stay_apart() -> None:
    kinds: list[Words] = [
        [b"a", b"1", b"b", b"2"],
        [b"b", b"2", b"a", b"1"],
        [b"a", b"1"],
        [b"a", b"1", b"a", b"2"],
        [b"ab", b"1"],
        [b"", b"1"],
        [b"", b"1", b"", b"2"],
        [b"\r\n", b"$1\r\na\r\n"],
        [b"$1\r\na", b""],
    ]
    entries = [(i + 1, 0, kinds[i * 4 % len(kinds)]) for i in range(100)]
    reads_as(open_block(entries).freeze(), entries)


def test_many_fields_in_one_entry() -> None:
    entries: list[Entry] = [
        (1, 0, [b"f%d" % (i // 2) if i % 2 == 0 else b"v" * i for i in range(64)])
    ]
    reads_as(open_block(entries).freeze(), entries)


def test_deleted_entries_are_passed_over_and_keep_their_names() -> None:
    entries: list[Entry] = [(i + 1, 0, [b"n%d" % (i % 5), b"%d" % i]) for i in range(200)]
    for gone in (range(5), range(30, 100), range(195, 200), range(0, 200, 2), range(199)):
        made = open_block(entries)
        for i in gone:
            assert made.delete_entry(*entries[i][:2])
        reads_as(made.freeze(), [e for i, e in enumerate(entries) if i not in gone])


def test_a_block_whose_entries_are_all_deleted_reads_as_empty() -> None:
    made = open_block([(i + 1, 0, [b"a", b"b"]) for i in range(70)])
    for i in range(70):
        assert made.delete_entry(i + 1, 0)
    block = made.freeze()
    reads_as(block, [])
    assert (block.count, block.live, block.first_id, block.last_id) == (70, 0, (1, 0), (70, 0))


@pytest.mark.parametrize("count", [1, 2, 9, 10, 11, 31, 32, 33, 39])
def test_a_reopened_block_continues_as_if_it_were_never_frozen(count: int) -> None:
    def entry(i: int) -> tuple[int, int, Words]:
        return i + 1, 0, [b"name-%d" % (i % 35), b"v" * (i % 7)]

    once = BlockWriter()
    for i in range(count):
        assert once.append_entry(*entry(i), 10, 0)
    once.delete_entry(count, 0)
    block = once.freeze()
    before = block.to_bytes()
    again = BlockWriter.reopen(block)
    assert again is not None
    again.check()
    for made in (once, again):
        for i in range(count, 50):
            assert made.append_entry(*entry(i), 10, 0) == (i < 40)
        made.delete_entry(1, 0)
    assert again.freeze().to_bytes() == once.freeze().to_bytes()
    assert block.to_bytes() == before


def test_an_empty_block_cannot_be_sealed() -> None:
    with pytest.raises(ValueError, match="empty"):
        BlockWriter().freeze()
    BlockWriter().check()
    assert BlockWriter().entries() == []
    assert not BlockWriter().delete_entry(0, 0)


@pytest.mark.parametrize("wrong", [[], [b"a"], [b"a"] * 66])
def test_an_entry_without_whole_fields_is_refused(wrong: Words) -> None:
    with pytest.raises(ValueError, match="fields"):
        BlockWriter().append_entry(1, 1, wrong)


def test_ids_that_do_not_rise_are_refused() -> None:
    made = open_block([(5, 5, [b"a", b"b"])])
    for id_ in [(5, 5), (5, 4), (4, 9), (0, 0)]:
        with pytest.raises(ValueError, match="rise"):
            made.append_entry(*id_, [b"a", b"b"])


# ---------------------------------------------------------------- limits


def run_until_full(node_entries: int, node_bytes: int, value: bytes) -> Block:
    made = BlockWriter()
    i = 0
    while made.append_entry(i, 1, [b"v", value], node_entries, node_bytes):
        i += 1
    made.check()
    return made.freeze()


def nodes_of(block: Block) -> list[int]:
    """Entries in each node."""
    data = block.to_bytes()
    count, _, _, sets, nodes = struct.unpack_from("<IIIHH", data, 8)
    at = HEADER + 4 * ((count - 1) // 32 + sets)
    starts = struct.unpack_from(f"<{nodes - 1}I", data, at)
    return [after - before for before, after in pairwise([0, *starts, count])]


@pytest.mark.parametrize("node_entries", [1, 10, 100, 1000])
def test_a_block_is_full_after_four_nodes(node_entries: int) -> None:
    assert nodes_of(run_until_full(node_entries, 0, b"x")) == [node_entries] * 4


def test_without_limits_a_block_ends_by_its_own() -> None:
    assert nodes_of(run_until_full(0, 0, b"")) == [4096]
    block = run_until_full(0, 0, b"x" * 1000)
    assert 65536 - 1100 < block.size_bytes - HEADER <= 65536 + 100


def test_a_node_ends_before_its_byte_limit() -> None:
    for count in nodes_of(run_until_full(100, 512, b"x" * 100)):
        assert count * 101 < 512 <= (count + 1) * 104


@pytest.mark.parametrize(("node_bytes", "size"), [(4096, 4095), (1, 0), (100, 5000)])
def test_an_entry_larger_than_a_node_is_alone_in_its_block(node_bytes: int, size: int) -> None:
    made = BlockWriter()
    assert made.append_entry(1, 0, [b"v", b"x" * size], 100, node_bytes)
    assert not made.append_entry(2, 0, [b"v", b""], 100, node_bytes)
    made = BlockWriter()
    if node_bytes > 10:
        assert made.append_entry(1, 0, [b"v", b"small"], 100, node_bytes)
        assert not made.append_entry(2, 0, [b"v", b"x" * size], 100, node_bytes)


# ---------------------------------------------------------------- damage


def small_block() -> bytes:
    """Few bytes with every kind of part: tables, id forms, literal sets, deleted entries."""
    made = open_block([(9, 3, [b"a", b"1", b"", b"xy"]), (9, 4, [b"a", b"", b"", b""])], 2)
    made.append_entry(10, 0, [b"", b""], 2, 0)
    made.append_entry(400, 0, [b"a", b"3", b"", b"4"], 2, 0)
    made.append_entry(401, 7, [b"long-name-", b"z" * 130], 2, 0)
    made.delete_entry(10, 0)
    return made.freeze().to_bytes()


def wide_block() -> bytes:
    """With a checkpoint and with sets that are not numbered."""
    return open_block([(i, i, [b"%d" % i, b""]) for i in range(35)]).freeze().to_bytes()


def long_block() -> bytes:
    """With lanes enough to be walked in pairs and one alone, and with what an entry can have in
    each: sets defined on the way, ids of every form, long values, deleted entries."""
    rows = [(5, at, [b"a", b"%d" % at]) for at in range(40)]
    rows += [(6 + at, 0, [b"b", b"", b"c", b"x"]) for at in range(30)]
    rows += [(40 + 3 * at, 0, [b"a", b"y" * (150 if at == 20 else 2)]) for at in range(45)]
    rows += [(500 + at, 7, [b"d", b"z"]) for at in range(5)]
    made = open_block(rows)
    for ms, seq, _ in rows[::29]:
        made.delete_entry(ms, seq)
    return made.freeze().to_bytes()


def packed_block() -> bytes:
    """With values packed in every way, a checkpoint, and a field-name set without a number."""
    made = open_block([(9, at, log_words(at)) for at in range(36)])
    for at in range(7):
        made.append_entry(10 + at, 0, [b"only-%d" % at, b"v"], 0, 0)
    made.delete_entry(9, 3)
    block = packed(made.freeze())
    assert block is not None
    return block.to_bytes()


def log_words(at: int) -> Words:
    path = b"/api/v1/%d" % (at * 7919)
    return [
        b"level",
        [b"INFO", b"WARNING"][at % 2],
        b"path",
        path,
        b"id",
        b"%016x" % (at * MAX // 40),
    ]


MAKERS = [small_block, wide_block, long_block]
ALL_MAKERS = [*MAKERS, packed_block]


def sealed(data: bytes) -> bytes:
    """The same bytes with the checksum that fits them."""
    crc = zlib.crc32(data[:4] + b"\0\0\0\0" + data[8:])
    return data[:4] + struct.pack("<I", crc) + data[8:]


def changed(data: bytes, at: int, value: int) -> bytes:
    return data[:at] + bytes([value]) + data[at + 1 :]


def quickly_refused(data: bytes | memoryview) -> None:
    """The quick check, which can only refuse, must not accept blocks that the full one refuses."""
    try:
        quick, fault = verdicts(data)
    except ValueError:
        return
    assert not (quick and fault)


def refused_or_sound(data: bytes) -> bool:
    """True if refused; accepted bytes must be read whole, and as the documented format."""
    try:
        block = Block.from_bytes(data)
    except ValueError:
        quickly_refused(data)
        return True
    reads_as(block, decode(data))
    return False


@pytest.mark.parametrize("make", MAKERS)
def test_sound_blocks_pass_the_quick_way(make: object) -> None:
    assert verdicts(make()) == (True, None)  # type: ignore[operator]


def test_packed_blocks_pass_only_the_full_check() -> None:
    assert verdicts(packed_block()) == (False, None)


@pytest.mark.parametrize("make", ALL_MAKERS)
def test_no_truncation_is_read(make: object) -> None:
    data = make()  # type: ignore[operator]
    for size in range(len(data)):
        for cut in (data[:size], sealed(data[:size]) if size >= 8 else b""):
            with pytest.raises(ValueError, match=r"block"):
                Block.from_bytes(cut)
    with pytest.raises(ValueError, match="block"):
        Block.from_bytes(data + b"\0")


@pytest.mark.parametrize("make", ALL_MAKERS)
def test_no_changed_byte_is_read(make: object) -> None:
    data = make()  # type: ignore[operator]
    for at, byte in enumerate(data):
        for value in {byte ^ 1, byte ^ 0x80, byte ^ 0xFF, 0, 255} - {byte}:
            with pytest.raises(ValueError, match=r"block"):
                Block.from_bytes(changed(data, at, value))


@pytest.mark.parametrize("make", ALL_MAKERS)
def test_no_changed_byte_under_a_right_checksum_leads_astray(make: object) -> None:
    data = make()  # type: ignore[operator]
    refused = 0
    for at, byte in enumerate(data):
        tried = {*ways(at, byte, 1, 2, 4, 8, 16, 32, 64, 128), byte ^ 128, 255}
        for value in (set(range(256)) if TIMES > 1 and len(data) < 400 else tried) - {byte}:
            refused += refused_or_sound(sealed(changed(data, at, value)))
    assert refused > len(data)


@pytest.fixture
def before_forbidden() -> Iterator[Callable[[bytes], memoryview]]:
    """Puts bytes where reading past the last of them ends the process."""
    page = mmap.PAGESIZE
    with mmap.mmap(-1, 2 * page) as memory:
        view = memoryview(memory)
        place = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + page
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        forbidden = ctypes.c_void_p(place), ctypes.c_size_t(page)
        assert protect(*forbidden, 0) == 0

        def put(data: bytes) -> memoryview:
            view[page - len(data) : page] = data
            return view[page - len(data) : page]

        yield put
        assert protect(*forbidden, mmap.PROT_READ | mmap.PROT_WRITE) == 0
        gc.collect()
        view.release()


@pytest.mark.parametrize("make", ALL_MAKERS)
def test_no_changed_byte_makes_the_check_read_past_the_block(
    make: object, before_forbidden: Callable[[bytes], memoryview]
) -> None:
    data = make()  # type: ignore[operator]
    assert verdicts(before_forbidden(data))[1] is None
    for at, byte in enumerate(data):
        for value in {byte ^ 1, byte ^ 2, byte ^ 0x40, byte ^ 0x80, 0, 127, 255} - {byte}:
            quickly_refused(before_forbidden(changed(data, at, value)))


@given(
    st.sampled_from([make() for make in ALL_MAKERS]),
    st.lists(st.tuples(st.integers(2**16), st.integers(0, 255)), min_size=1, max_size=6),
    st.binary(max_size=4),
    st.integers(0, 2**16),
)
@settings(max_examples=examples(400), deadline=None)
def test_no_mix_of_changes_under_a_right_checksum_leads_astray(
    data: bytes, changes: list[tuple[int, int]], extra: bytes, place: int
) -> None:
    for at, value in changes:
        data = changed(data, 8 + at % (len(data) - 8), value)
    place = HEADER + place % (len(data) - HEADER)
    data = data[:place] + extra + data[place:]
    size = struct.unpack_from("<I", data, 16)[0] + len(extra)
    data = data[:16] + struct.pack("<I", size & 0xFFFFFFFF) + data[20:]
    refused_or_sound(sealed(data))


def built(entries: bytes, count: int, sets: list[int], last: EntryId, **changes: int) -> bytes:
    """A block's disk form put together by hand, with a right checksum."""
    tables = [*changes.pop("checkpoints", []), *sets, *changes.pop("nodes", [])]  # type: ignore[misc]
    head = struct.pack(
        "<2sBBIIIIHHQQQQ8x", b"MB", 1, 0, 0, count, changes.pop("live", count), len(entries),
        len(sets), changes.pop("node_count", 1), changes.pop("first_ms", 5), 0, *last,
    )  # fmt: skip
    assert not changes
    return sealed(head + struct.pack(f"<{len(tables)}I", *tables) + entries)


GOOD = b"\x00\x01\x08\x07$1\r\na\r\n\x01x"


def test_a_block_built_by_hand_is_read() -> None:
    assert Block.from_bytes(built(GOOD, 1, [1], (5, 0))).entries() == [(5, 0, [b"a", b"x"])]
    two = GOOD + b"\x00\x01y"
    assert len(Block.from_bytes(built(two, 2, [1], (5, 1))).entries()) == 2


def named(names: bytes, fields: int = 1) -> bytes:
    return built(b"\x00%c%c%s\x00" % (fields, len(names), names), 1, [1], (5, 0))


def after_thirty_sets(entry: bytes, **changes: int) -> bytes:
    """A block of 30 entries, each with its own set, and one more entry."""
    entries, places = b"", []
    for number in range(30):
        places.append(len(entries) + 1)
        entries += b"%c\x01\x08\x07$1\r\n%c\r\n\x01x" % (number, 65 + number)
    return built(entries + entry, 31, places, (5, 30), **changes)


PLAIN = b"\x1e\x03\x07\x01a\x00\x03$\r\n\x01x\x00\x00"
FRAMED = b"\x1f\x01\x08\x07$1\r\na\r\n\x01x"  # as earlier versions wrote it


@pytest.mark.parametrize(
    ("entry", "words"), [(PLAIN, [b"a", b"x", b"", b"", b"$\r\n", b""]), (FRAMED, [b"a", b"x"])]
)
def test_sets_without_a_number_have_plain_or_framed_names(entry: bytes, words: Words) -> None:
    block = Block.from_bytes(after_thirty_sets(entry))
    assert block.entries()[-1] == (5, 30, words)
    block = Block.from_bytes(block.to_bytes())
    assert block.entries()[-1] == (5, 30, words)


def test_plain_names_are_written_as_documented() -> None:
    made = open_block([(i, i, [b"%d" % i, b""]) for i in range(31)]).freeze().to_bytes()
    assert made[2] == 2
    assert made.endswith(b"\x7e\x1e\x1e\x01\x03\x0230\x00")


WRONG = {
    "plain name past its set": after_thirty_sets(b"\x1e\x01\x02\x02a\x01x"),
    "plain names shorter than said": after_thirty_sets(b"\x1e\x01\x03\x01a\x01x"),
    "fewer plain names than said": after_thirty_sets(b"\x1e\x02\x02\x01a\x01x"),
    "no plain name": after_thirty_sets(b"\x1e\x00\x00"),
    "plain names past the end": after_thirty_sets(b"\x1e\x01\x7f\x01a\x01x"),
    "no entry": built(b"", 0, [], (5, 0)),
    "no bytes": built(b"", 1, [], (5, 0)),
    "a byte too many": built(GOOD + b"\x00", 1, [1], (5, 0)),
    "value past the end": built(GOOD[:-2] + b"\x02x", 1, [1], (5, 0)),
    "endless value length": built(GOOD[:-2] + b"\xff" * 10, 1, [1], (5, 0)),
    "value of nearly 2^64": built(GOOD[:-2] + b"\xff" * 9 + b"\x01x", 1, [1], (5, 0)),
    "set without definition": built(b"\x00", 1, [], (5, 0)),
    "second set first": built(b"\x01" + GOOD[1:], 1, [1, 1], (5, 0)),
    "set 30": built(b"\x1e" + GOOD[1:], 1, [], (5, 0)),
    "set at another place": built(GOOD, 1, [2], (5, 0)),
    "set far away": built(GOOD, 1, [2**32 - 1], (5, 0)),
    "set never used": built(GOOD, 1, [1, 1], (5, 0)),
    "31 sets": built(GOOD, 1, [1] * 31, (5, 0)),
    "live above count": built(GOOD, 1, [1], (5, 0), live=2),
    "live below count": built(GOOD, 1, [1], (5, 0), live=0),
    "deleted and live": built(b"\x80" + GOOD[1:], 1, [1], (5, 0), live=1),
    "no node": built(GOOD, 1, [1], (5, 0), node_count=0),
    "node at 0": built(GOOD, 1, [1], (5, 0), node_count=2, nodes=[0]),  # type: ignore[arg-type]
    "node past the end": built(GOOD, 1, [1], (5, 0), node_count=2, nodes=[1]),  # type: ignore[arg-type]
    "other last id": built(GOOD, 1, [1], (5, 1)),
    "other first id": built(b"\x60\x01\x00" + GOOD[1:], 1, [3], (6, 0)),
    "equal ids": built(GOOD + b"\x60\x00\x00\x01y", 2, [1], (5, 0)),
    "falling ids": built(GOOD + b"\x60\x02\x00\x01y\x60\x01\x00\x01z", 3, [1], (6, 0)),
    "ms past 2^64": built(GOOD + b"\x20\x01y", 2, [1], (0, 0), first_ms=MAX),
    "ms far past 2^64": built(GOOD + b"\x40" + b"\xff" * 9 + b"\x01\x01y", 2, [1], (4, 0)),
    "name that says more": named(b"\x07$9\r\na\r\n"),
    "name that says less": named(b"\x07$0\r\na\r\n"),
    "name without digits": named(b"\x06$\r\na\r\n"),
    "name with letters": named(b"\x07$x\r\na\r\n"),
    "name with zeros before": named(b"\x08$01\r\na\r\n"),
    "name without its end": named(b"\x07$1\r\nab\n"),
    "name without its last byte": named(b"\x07$1\r\na\rx"),
    "name of minus one byte": named(b"\x06$12\r\n\n"),
    "name of another type": named(b"\x07+1\r\na\r\n"),
    "short name": named(b"\x05$0\r\n\n"),
    "name past its set": named(b"\x08$1\r\na\r\n"),
    "fewer names than said": named(b"\x07$1\r\na\r\n", 2),
    "more names than said": named(b"\x07$1\r\na\r\n\x07$1\r\nb\r\n", 1),
    "no field": built(b"\x00\x00\x00", 1, [1], (5, 0)),
}


@pytest.mark.parametrize("part", WRONG)
def test_wrong_parts_under_a_right_checksum_are_refused(part: str) -> None:
    with pytest.raises(ValueError, match="block"):
        Block.from_bytes(WRONG[part])


def test_a_checkpoint_entry_has_the_id_and_place_of_the_table() -> None:
    tail = b"".join(b"\x00\x00" for _ in range(31))
    anchored = GOOD + tail + b"\x60\x00\x20\x00"
    place = len(GOOD + tail)
    good = built(anchored, 33, [1], (5, 32), checkpoints=[place])  # type: ignore[arg-type]
    assert len(Block.from_bytes(good).entries()) == 33
    for checkpoint in (0, place + 1, 2**32 - 1):
        with pytest.raises(ValueError, match="checkpoint"):
            Block.from_bytes(built(anchored, 33, [1], (5, 32), checkpoints=[checkpoint]))  # type: ignore[arg-type]
    bare = GOOD + tail + b"\x00\x00"
    with pytest.raises(ValueError, match="does not carry its id"):
        Block.from_bytes(built(bare, 33, [1], (5, 32), checkpoints=[place]))  # type: ignore[arg-type]


@pytest.mark.parametrize("data", [b"", b"M", b"MB", b"\0" * 64, b"XX" + bytes(62)])
def test_bytes_that_are_no_block_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="block"):
        Block.from_bytes(data)


def test_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="format is not known to this version"):
        Block.from_bytes(sealed(changed(small_block(), 2, 2)))


def test_a_block_is_read_from_any_kind_of_bytes() -> None:
    data = small_block()
    expected = Block.from_bytes(data).entries()
    for kind in (bytearray(data), memoryview(b"??" + data + b"!")[2:-1]):
        assert Block.from_bytes(kind).entries() == expected


def test_memory_only_parts_of_a_block_are_not_copied_out() -> None:
    read, frozen = Block.from_bytes(small_block()), open_block([(1, 1, [b"a", b""])]).freeze()
    sealed_list = BlockList()
    sealed_list.push(read)
    assert sealed_list.delete(9, 3)
    for kept in (read, frozen, sealed_list.shared()[0]):
        packed, taken, _, _ = Block.pack([kept, kept], 2**30, 2**30)
        assert taken == 2
        for data in (kept.to_bytes(), packed, packed[kept.size_bytes :]):
            assert data[3:4] + data[56:64] == bytes(9)


def test_bytes_of_a_header_without_a_meaning_are_not_handed_on() -> None:
    data = small_block()
    foreign = data[:3] + b"\x07" + data[4:56] + b"whatever" + data[64:]
    assert Block.from_bytes(sealed(foreign)).to_bytes() == data


def test_a_block_is_not_made_of_nothing() -> None:
    with pytest.raises(TypeError, match="OpenBlock"):
        Block()
