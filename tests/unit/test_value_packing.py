"""A packed block has the same entries as the block it was made from, for every reader."""

from __future__ import annotations

import random

import pytest
from bench.datasets import IOT, LOG, PAYLOAD, DataSet
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.storage_access import BlockWriter
from tests.unit.models import Entry, EntryId, Words, ids, stepped, steps
from tests.unit.test_block import open_block, reads_as
from tests.unit.test_columns import EVERYTHING, decoded
from tests.unit.test_formats import decode

from millstream.storage.blocks.block import Block
from millstream.storage.blocks.columns import Kind
from millstream.storage.blocks.value_packing import packed
from millstream.storage.streams.stream import Stream

FIRST, LAST = (0, 0), (2**64 - 1, 2**64 - 1)

digits = st.text("0123456789abcdef", max_size=40).map(str.encode)
sizes = st.sampled_from([0, 1, 2, 7, 8, 9, 10, 15, 16, 17, 32, 63, 64, 65, 127, 128, 300])
values = st.one_of(
    digits,
    digits.map(lambda text: text * 5),
    digits.map(lambda text: text + b"G"),
    sizes.map(lambda size: b"w" * size),
    st.integers(0, 9).map(lambda number: b"/a/shared/prefix/%d" % number),
    st.binary(max_size=80),
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Columns of a few drawn values each, in a few sets; some sets have one entry."""
    writer = BlockWriter()
    kinds = []
    for _ in range(draw(st.integers(1, 4))):
        names = draw(
            st.lists(st.sampled_from([b"", b"a", b"b", b"name-1"]), min_size=1, max_size=4)
        )
        kinds.append([(name, draw(st.lists(values, min_size=1, max_size=6))) for name in names])
    source = random.Random(draw(st.integers(0, 999)))
    id_: EntryId | None = draw(ids)
    for number in range(draw(st.sampled_from([8, 31, 40, 70, 130]))):
        if id_ is None:
            break
        words: Words = []
        for name, column in source.choice(kinds):
            words += [name, source.choice(column)]
        if source.random() < 0.1:
            words[0] = b"only-%d" % number
        writer.append_entry(*id_, words, 25, 0)
        id_ = stepped(id_, draw(steps) if number % 40 == 0 else ("seq", 1))
    for ms, seq, _ in writer.entries()[:: draw(st.integers(1, 9))]:
        if source.random() < 0.3:
            writer.delete_entry(ms, seq)
    return writer.freeze()


@given(blocks())
@settings(max_examples=150, deadline=None)
def test_a_packed_block_reads_as_before(block: Block) -> None:
    smaller = packed(block)
    if smaller is None:
        return
    assert smaller.size_bytes < block.size_bytes
    assert packed(smaller) is None
    reads_as(smaller, block.entries())
    assert smaller.nodes() == block.nodes()
    assert decode(smaller.to_bytes()) == block.entries()
    for all_fields in (Kind.MAP, Kind.LIST):
        columns = [(all_fields, b"") if k is Kind.LIST else (k, n) for k, n in EVERYTHING]
        both = [decoded([one.to_bytes()], columns, FIRST, LAST) for one in (block, smaller)]
        assert both[0] == both[1]


def entries_of(data_set: DataSet, count: int) -> list[Entry]:
    source = random.Random(1)
    return [
        (10**12 + at, 0, [word.encode() for word in data_set.fields(source)]) for at in range(count)
    ]


@pytest.mark.parametrize(("data_set", "most"), [(LOG, 0.7), (PAYLOAD, 0.55)])
def test_repeated_values_and_digits_take_less_memory(data_set: DataSet, most: float) -> None:
    block = open_block(entries_of(data_set, 76)).freeze()
    smaller = packed(block)
    assert smaller is not None
    assert smaller.size_bytes < most * block.size_bytes


@pytest.mark.parametrize("size", [40, 46, 62])
def test_one_wrong_digit_anywhere_keeps_its_character(size: int) -> None:
    source = random.Random(size)
    right = [b"%0*x" % (size, source.getrandbits(4 * size)) for _ in range(32)]
    for wrong in range(256):
        texts = [*right]
        for place in range(size):
            text = bytearray(right[place % 32])
            text[place] = wrong
            texts.append(bytes(text))
        block = open_block([(at + 1, 0, [b"v", text]) for at, text in enumerate(texts)]).freeze()
        smaller = packed(block)
        assert smaller is not None
        assert smaller.entries() == block.entries()


def test_names_that_never_repeat_lose_their_frames() -> None:
    entries: list[Entry] = [
        (at + 1, 0, [b"%08d-%d" % (at * 7919, i // 2) for i in range(20)]) for at in range(60)
    ]
    smaller = packed(open_block(entries).freeze())
    assert smaller is not None
    reads_as(smaller, entries)


def test_small_or_unlike_entries_stay_as_they_are() -> None:
    assert packed(open_block(entries_of(IOT, 400)).freeze()) is None
    source = random.Random(2)
    texts = [source.randbytes(120) for _ in range(60)]
    assert packed(open_block([(at + 1, 0, [b"v", texts[at]]) for at in range(60)]).freeze()) is None


def test_a_stream_packs_its_blocks_and_keeps_its_entries() -> None:
    stream = Stream()
    entries = entries_of(LOG, 1000)
    for entry in entries:
        stream.append_entry(*entry)
    sealed = list(stream.blocks())[:-1]
    assert len(sealed) > 3
    assert all(block.to_bytes()[2] == 3 for block in sealed)
    assert stream.range() == entries
    gone = [entry[:2] for entry in entries[::7]]
    for entry_id in gone:
        assert stream.delete_id(*entry_id)
    assert stream.range() == [entry for entry in entries if entry[:2] not in gone]
