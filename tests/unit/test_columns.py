"""Columns: what the decoder writes is what the blocks hold, and no bytes lead it outside."""

from __future__ import annotations

import itertools
from array import array
from itertools import accumulate
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.effort import examples
from tests.support.storage_access import BlockWriter
from tests.unit.models import MAX, Entry, EntryId, Words, entry_words, ids, stepped, steps
from tests.unit.test_block import WRONG, changed, packed_block, sealed, small_block, wide_block

from millstream.storage.blocks.block import Block
from millstream.storage.blocks.column_buffers import not_utf8
from millstream.storage.blocks.columns import Decoder, Kind, PieceError

FIRST, LAST = (0, 0), (MAX, MAX)
EVERYTHING = [
    (Kind.KEY, b""),
    (Kind.ID, b""),
    (Kind.TS, b""),
    (Kind.DECIMAL_MS, b""),
    (Kind.DECIMAL_SEQ, b""),
    (Kind.LIST, b""),
    (Kind.FIELD, b"a"),
    (Kind.FIELD, b""),
    (Kind.FIELD, b"sensor"),
]
TYPES: dict[Kind, pa.DataType] = {
    Kind.KEY: pa.binary(),
    Kind.ID: pa.utf8(),
    Kind.TS: pa.int64(),
    Kind.INT_MS: pa.int64(),
    Kind.INT_SEQ: pa.int64(),
    Kind.DECIMAL_MS: pa.decimal128(20, 0),
    Kind.DECIMAL_SEQ: pa.decimal128(20, 0),
    Kind.FIELD: pa.binary(),
}
Columns = list[tuple[Kind, bytes]]
Row = tuple[Any, ...]


def taken(decoder: Decoder, columns: Columns) -> list[Row]:
    """The batch as rows, by way of Arrow, which checks the buffers."""
    rows = decoder.rows
    made = []
    for (kind, _), (nulls, buffers) in zip(columns, decoder.take(), strict=True):
        adopted = [None if one is None else pa.py_buffer(one) for one in buffers]
        if kind in (Kind.MAP, Kind.LIST):
            _, offsets, name_offsets, names, value_offsets, values = adopted
            count = memoryview(offsets).cast("i")[rows]
            texts = [
                pa.Array.from_buffers(pa.binary(), count, [None, *pair])
                for pair in ((name_offsets, names), (value_offsets, values))
            ]
            pairs = pa.StructArray.from_arrays(texts, ["name", "value"])
            array = pa.Array.from_buffers(
                pa.list_(pairs.type), rows, [None, offsets], children=[pairs]
            )
        else:
            array = pa.Array.from_buffers(TYPES[kind], rows, adopted, nulls)
        array.validate(full=True)
        assert array.null_count == nulls
        made.append(array.to_pylist())
    return list(zip(*made, strict=True))


def decoded(
    blobs: list[bytes],
    columns: Columns,
    first: EntryId = FIRST,
    last: EntryId = LAST,
    **limits: int,
) -> list[Row]:
    """All rows of these runs of blocks, each of a key of its own, taken as batches become full."""
    decoder = Decoder(columns, **limits)
    rows: list[Row] = []
    for number, blob in enumerate(blobs):
        rest = memoryview(blob)
        while True:
            done = decoder.add(rest, b"key-%d" % number, first, last)
            rest = rest[done:]
            if not rest:
                break
            rows += taken(decoder, columns)
    rows += taken(decoder, columns)
    assert decoded_as_pieces(blobs, columns, first, last, **limits) == rows
    return rows


class Pieces(NamedTuple):
    keys: list[bytes]
    offsets: array[int]
    lengths: array[int]


def decoded_as_pieces(
    blobs: list[bytes], columns: Columns, first: EntryId, last: EntryId, **limits: int
) -> list[Row]:
    """The same, as pieces of one chunk that has other bytes between them."""
    decoder = Decoder(columns, **limits)
    keys = [b"key-%d" % number for number in range(len(blobs))]
    ends = list(accumulate((len(blob) + 3 for blob in blobs), initial=0))
    pieces = Pieces(keys, array("q", ends[:-1]), array("q", map(len, blobs)))
    data = b"".join(blob + b"..." for blob in blobs)
    rows: list[Row] = []
    at = done = 0
    while at < len(blobs):
        at, done = decoder.add_pieces(data, pieces, at, len(blobs), done, first, last)
        if at < len(blobs):
            rows += taken(decoder, columns)
    return rows + taken(decoder, columns)


@pytest.mark.parametrize(
    ("offset", "length", "wanted"),
    [
        (0, 1 << 62, "pass the chunk's end"),
        (-1, 5, "pass the chunk's end"),
        (1 << 62, 5, "pass the chunk's end"),
        (5, -1, "pass the chunk's end"),
        (0, 9, "at byte 0"),
    ],
)
def test_a_piece_that_is_none_is_named_and_read_nowhere(
    offset: int, length: int, wanted: str
) -> None:
    decoder = Decoder([(Kind.KEY, b"")])
    pieces = Pieces([b"a", b"b"], array("q", [0, offset]), array("q", [0, length]))
    with pytest.raises(PieceError, match=wanted) as failure:
        decoder.add_pieces(b"no block!", pieces, 0, 2, 0, FIRST, LAST)
    assert failure.value.piece == 1
    for at, end, done in ((0, 3, 0), (-1, 1, 0), (2, 1, 0), (0, 1, 1)):
        with pytest.raises(IndexError):
            decoder.add_pieces(b"", pieces, at, end, done, FIRST, LAST)


def value_of(kind: Kind, name: bytes, key: bytes, entry: Entry) -> object:
    """The value of an entry in a column."""
    ms, seq, words = entry
    fields = list(zip(words[::2], words[1::2], strict=True))
    if kind is Kind.KEY:
        return key
    if kind is Kind.ID:
        return f"{ms}-{seq}"
    if kind is Kind.TS:
        return ms * 1000 if ms * 1000 < 2**63 else None
    if kind in (Kind.DECIMAL_MS, Kind.INT_MS):
        return ms
    if kind in (Kind.DECIMAL_SEQ, Kind.INT_SEQ):
        return seq
    if kind is Kind.FIELD:
        return dict(fields).get(name)
    kept = [
        (one, value)
        for at, (one, value) in enumerate(fields)
        if kind is Kind.LIST or one not in dict(fields[at + 1 :])
    ]
    return [{"name": one, "value": value} for one, value in kept]


def expected(runs: list[list[Entry]], columns: Columns, first: EntryId, last: EntryId) -> list[Row]:
    return [
        tuple(value_of(kind, name, b"key-%d" % number, entry) for kind, name in columns)
        for number, entries in enumerate(runs)
        for entry in entries
        if first <= entry[:2] <= last
    ]


@st.composite
def runs_of_blocks(draw: st.DrawFn) -> list[list[Block]]:
    """A few streams of a few blocks each, some entries deleted."""
    runs = []
    for _ in range(draw(st.integers(1, 3))):
        id_: EntryId | None = draw(ids)
        blocks = []
        for _ in range(draw(st.integers(1, 3))):
            made = BlockWriter()
            for step, words in draw(
                st.lists(st.tuples(steps, entry_words), min_size=1, max_size=40)
            ):
                if id_ is None:
                    break
                made.append_entry(*id_, words, 0, 0)
                id_ = stepped(id_, step)
            for ms, seq, _ in made.entries()[:: draw(st.integers(1, 6))]:
                if draw(st.booleans()):
                    made.delete_entry(ms, seq)
            if len(made.entries()) or made.count:
                blocks.append(made.freeze())
        runs.append(blocks)
    return runs


@given(runs_of_blocks(), st.sampled_from([Kind.MAP, Kind.LIST]), st.data())
@settings(max_examples=examples(60), deadline=None)
def test_columns_have_the_values_of_the_blocks(
    runs: list[list[Block]], all_fields: Kind, data: st.DataObject
) -> None:
    columns = [
        (all_fields, b"") if kind is Kind.LIST else (kind, name) for kind, name in EVERYTHING
    ]
    columns = data.draw(st.permutations(columns))[: data.draw(st.integers(1, len(columns)))]
    entries = [[entry for block in blocks for entry in block.entries()] for blocks in runs]
    known = [entry[:2] for entry in itertools.chain(*entries)]
    bound = st.sampled_from([FIRST, LAST, *known]) | ids
    first, last = data.draw(bound), data.draw(bound)
    limits = {
        "rows_max": data.draw(st.sampled_from([1, 2, 7, 1 << 16])),
        "bytes_max": data.draw(st.sampled_from([1, 100, 1 << 20])),
    }
    blobs = [b"".join(block.to_bytes() for block in blocks) for blocks in runs]
    found = decoded(blobs, columns, first, last, **limits)
    assert found == expected(entries, columns, first, last)


def filled(entries: list[Entry]) -> bytes:
    made = BlockWriter()
    for ms, seq, words in entries:
        assert made.append_entry(ms, seq, words, 0, 0)
    return made.freeze().to_bytes()


def test_a_batch_has_no_more_rows_than_its_limit() -> None:
    blob = filled([(1, seq, [b"a", b"%d" % seq]) for seq in range(1000)])
    decoder = Decoder([(Kind.ID, b"")], rows_max=300)
    sizes = []
    rest = memoryview(blob)
    while rest:
        rest = rest[decoder.add(rest, b"k", FIRST, LAST) :]
        sizes.append(decoder.rows)
        decoder.take()
    assert sizes == [300, 300, 300, 100]


def test_a_batch_ends_soon_after_its_bytes() -> None:
    blob = filled([(1, seq, [b"a", b"x" * 100]) for seq in range(500)])
    decoder = Decoder([(Kind.MAP, b"")], bytes_max=1000)
    assert decoder.add(blob, b"k", FIRST, LAST) == 0
    assert decoder.rows == 10


def test_keys_alone_are_counted_without_looking_at_entries() -> None:
    """Entries are not read, so damage in them is not found; the checksum of the chunk finds it."""
    blob = bytearray(filled([(1, seq, [b"a", b"x"]) for seq in range(9)]))
    blob[-1] ^= 0xFF
    blob[-3] ^= 0xFF
    assert len(decoded([bytes(blob)], [(Kind.KEY, b"")])) == 9


@pytest.mark.parametrize(("kind", "entry"), [(Kind.INT_SEQ, (1, 2**63)), (Kind.INT_MS, (2**63, 1))])
def test_a_number_that_is_no_bigint_is_refused(kind: Kind, entry: EntryId) -> None:
    fine = filled([(2**63 - 1, 2**63 - 1, [b"a", b"b"])])
    assert decoded([fine], [(kind, b"")]) == [(2**63 - 1,)]
    with pytest.raises(ValueError, match=r"at byte 0: .* above 2\^63-1"):
        decoded([filled([(*entry, [b"a", b"b"])])], [(kind, b"")])


@pytest.mark.parametrize("part", WRONG)
def test_a_malformed_block_is_refused_with_its_place(part: str) -> None:
    good = small_block()
    with pytest.raises(ValueError, match=rf"at byte {len(good)}: block"):
        decoded([good + WRONG[part]], EVERYTHING)


@pytest.mark.parametrize("make", [small_block, wide_block, packed_block])
def test_no_truncation_is_read(make: Any) -> None:
    data = make()
    for size in range(1, len(data)):
        with pytest.raises(ValueError, match=r"at byte 0: block"):
            decoded([data[:size]], EVERYTHING)


def test_a_size_of_nearly_4_gib_is_not_read_as_a_small_one() -> None:
    data = small_block()
    for size in range(2**32 - 200, 2**32):
        with pytest.raises(ValueError, match=r"at byte 0: block"):
            decoded([data[:16] + size.to_bytes(4, "little") + data[20:]], EVERYTHING)


@given(
    st.sampled_from([small_block(), wide_block(), packed_block()]),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=6),
)
@settings(max_examples=examples(150), deadline=None)
def test_no_mix_of_changes_leads_astray(data: bytes, changes: list[tuple[int, int]]) -> None:
    """Accepted bytes are read as the block itself is; others are refused."""
    for at, value in changes:
        data = changed(data, 8 + at % (len(data) - 8), value)
    try:
        block = Block.from_bytes(sealed(data))
    except ValueError:
        block = None
    try:
        found = decoded([data], EVERYTHING)
    except ValueError:
        assert block is None
        return
    if block is not None:
        assert found == expected([block.entries()], EVERYTHING, FIRST, LAST)


@pytest.mark.parametrize("column", EVERYTHING, ids=lambda column: column[0].name)
def test_a_batch_of_nothing_but_empty_texts_is_made(column: tuple[Kind, bytes]) -> None:
    entries: list[Entry] = [(0, seq, [b"", b""]) for seq in range(3)]
    found = decoded([b"", filled(entries)], [column])
    assert found == expected([[], entries], [column], FIRST, LAST)


def test_many_different_field_names_are_kept_apart() -> None:
    """More sets of names than a decoder remembers, and than a block numbers."""
    entries: list[Entry] = [
        (5, seq, [b"n%d" % (seq % 90), b"%d" % seq, b"x", b"y"]) for seq in range(400)
    ]
    columns: Columns = [(Kind.MAP, b""), (Kind.FIELD, b"n7"), (Kind.FIELD, b"x")]
    found = decoded([filled(entries[:200]) + filled(entries[200:])], columns)
    assert found == expected([entries], columns, FIRST, LAST)


def test_an_entry_of_very_many_fields_is_read() -> None:
    words: Words = [word for i in range(3000) for word in (b"f%d" % (i % 2000), b"%d" % i)]
    made = BlockWriter()
    # append_entry takes 64 words; the definition is the same for any number.
    for at in range(0, len(words), 64):
        assert made.append_entry(7, at, words[at : at + 64], 0, 0)
    blob = made.freeze().to_bytes()
    columns: Columns = [(Kind.MAP, b""), (Kind.FIELD, b"f3")]
    entries = Block.from_bytes(blob).entries()
    assert decoded([blob], columns) == expected([entries], columns, FIRST, LAST)


@given(st.lists(st.binary(max_size=6) | st.text(max_size=4).map(str.encode), min_size=1))
@settings(deadline=None)
def test_texts_that_are_not_utf8_are_found(texts: list[bytes]) -> None:
    def is_bad(text: bytes) -> bool:
        try:
            text.decode()
        except UnicodeDecodeError:
            return True
        return False

    _, offsets, data = pa.array(texts, pa.binary()).buffers()
    view = memoryview(offsets).cast("B")[: 4 * len(texts) + 4]
    found = not_utf8(view, b"" if data is None else memoryview(data).cast("B"))
    assert found == [at for at, text in enumerate(texts) if is_bad(text)]
