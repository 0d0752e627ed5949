"""Record batches made from blocks, for reading a snapshot and for reading a server.

The batches have exactly the Arrow schema that Spark derives from its own schema: Spark refuses any
other.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipeline.casting import cast_texts
from millstream.pipeline.schema import ColumnPlan, is_text, plan_columns, type_name
from millstream.pipeline.snapshot_plan import Pieces
from millstream.storage.blocks.column_buffers import Buffer, not_utf8
from millstream.storage.blocks.columns import Decoder, Kind

PERMISSIVE = "PERMISSIVE"
DROPMALFORMED = "DROPMALFORMED"
FAILFAST = "FAILFAST"
MODES = (PERMISSIVE, DROPMALFORMED, FAILFAST)
ROWS_MAX = 1 << 16
BYTES_MAX = 8 << 20

EntryId = tuple[int, int]
Flags = npt.NDArray[np.bool_]


class BadValue(ValueError):
    """A value that cannot be cast to the type of its column, in the mode FAILFAST."""


class BatchMaker:
    """Makes record batches from blocks, for one task: `add` runs of blocks, then `finish`.

    `mode` defines what happens to texts that are not UTF-8 and fields that cannot be cast:
    PERMISSIVE writes U+FFFD for bad bytes and null for bad casts, DROPMALFORMED omits the row,
    FAILFAST raises BadValue with stream and ID.
    """

    def __init__(self, schema: pa.Schema, mode: str = PERMISSIVE) -> None:
        self.arrow = schema
        self._columns = plan_columns(self.arrow)
        self._mode = mode
        kinds = [
            (column.kind, column.name.encode() if column.kind is Kind.FIELD else b"")
            for column in self._columns
        ]
        if mode == FAILFAST:  # needed to name the entry
            kinds.append((Kind.ID, b""))
        self._decoder = Decoder(kinds, ROWS_MAX, BYTES_MAX)
        self._keys: list[bytes] = []
        self._key_rows: list[int] = []
        self._entries_taken = 0
        self.rows = 0

    @property
    def entries(self) -> int:
        """The number of entries added so far, including those whose rows are omitted."""
        return self._entries_taken + self._decoder.rows

    def add(
        self, blocks: bytes | memoryview, key: bytes, first: EntryId, last: EntryId
    ) -> Iterator[pa.RecordBatch]:
        """Add the entries with first <= ID <= last of contiguous blocks; yield the batches that
        became full. ValueError names the byte at which a malformed block starts."""
        rest = memoryview(blocks)
        while True:
            self._keys.append(key)
            self._key_rows.append(self._decoder.rows)
            taken = self._decoder.add(rest, key, first, last)
            if taken == len(rest):
                return
            rest = rest[taken:]
            yield from self.finish()

    def add_pieces(
        self,
        data: bytes | memoryview,
        pieces: Pieces,
        between: tuple[int, int],
        first: EntryId,
        last: EntryId,
    ) -> Iterator[pa.RecordBatch]:
        """Like `add`, but faster for many small streams: add the entries of the pieces of `data`
        with numbers from between[0] up to between[1] (exclusive). PieceError is a ValueError with
        the number of the piece."""
        at, end = between
        done = 0
        while at < end:
            # FAILFAST adds one piece at a time, because an error must name the entry.
            stop = at + 1 if self._mode == FAILFAST else end
            self._keys.append(pieces.keys[at])
            self._key_rows.append(self._decoder.rows)
            at, done = self._decoder.add_pieces(data, pieces, at, stop, done, first, last)
            if at < stop:
                yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yield the last batch, unless it is empty."""
        rows = self._decoder.rows
        if rows == 0:
            return
        taken = self._decoder.take()
        self._entries_taken += rows
        made = _Batch(rows, self._mode, self._naming(taken))
        arrays = [
            made.array(column, nulls, buffers)
            for column, (nulls, buffers) in zip(self._columns, taken, strict=False)
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.arrow)
        if made.dropped is not None:
            batch = batch.filter(pa.array(~made.dropped))
        self._keys.clear()
        self._key_rows.clear()
        self.rows += batch.num_rows
        if batch.num_rows:
            yield batch

    def _naming(self, taken: list[tuple[int, list[Buffer | None]]]) -> _Naming:
        ids = taken[-1][1] if self._mode == FAILFAST else []
        return _Naming(list(self._keys), list(self._key_rows), ids)


@dataclass(frozen=True)
class _Naming:
    """Names the entry of a row, for an error."""

    keys: list[bytes]
    key_rows: list[int]
    ids: list[Buffer | None]

    def entry(self, row: int) -> str:
        key = self.keys[bisect_right(self.key_rows, row) - 1]
        ids = _binary(pa.utf8(), len(self.ids[1] or b"") // 4 - 1, 0, self.ids)
        return f"stream {shown(key)}, entry {ids[row].as_py()}"


def shown(text: bytes) -> str:
    """A key or a value for an error: readable, and at most a line long."""
    cut = text[:100]
    return repr(cut.decode("utf-8", "replace")) + ("..." if len(text) > len(cut) else "")


def _binary(type_: pa.DataType, rows: int, nulls: int, buffers: list[Buffer | None]) -> pa.Array:
    return pa.Array.from_buffers(type_, rows, [_adopted(one) for one in buffers], nulls)


def _adopted(buffer: Buffer | None) -> pa.Buffer | None:
    return None if buffer is None else pa.py_buffer(buffer)


class _Batch:
    """Converts the decoder's buffers of one batch to Arrow arrays."""

    def __init__(self, rows: int, mode: str, naming: _Naming) -> None:
        self._rows = rows
        self._mode = mode
        self._naming = naming
        self.dropped: Flags | None = None

    def array(self, column: ColumnPlan, nulls: int, buffers: list[Buffer | None]) -> pa.Array:
        if column.kind in (Kind.MAP, Kind.LIST):
            return self._nested(column, buffers)
        if column.kind is Kind.FIELD:
            return self._field(column, nulls, buffers)
        if column.kind in (Kind.KEY, Kind.ID):
            return self._texts(column, column.type, self._rows, nulls, buffers)
        array = _binary(column.type, self._rows, nulls, buffers)
        if nulls and self._mode != PERMISSIVE:
            rows = np.flatnonzero(np.asarray(array.is_null()))
            self._bad(column, rows, "its time is outside the range of a timestamp")
        return array

    def _field(self, column: ColumnPlan, nulls: int, buffers: list[Buffer | None]) -> pa.Array:
        if is_text(column.type):
            return self._texts(column, column.type, self._rows, nulls, buffers)
        texts = self._texts(column, pa.utf8(), self._rows, nulls, buffers)
        array = cast_texts(texts, column.type)
        if array.null_count > texts.null_count and self._mode != PERMISSIVE:
            bad = np.flatnonzero(np.asarray(pc.and_not(array.is_null(), texts.is_null())))
            value = texts[int(bad[0])].as_py()
            wanted = type_name(column.type)
            self._bad(column, bad, f"{shown(value.encode())} cannot be cast to {wanted}")
        return array

    def _nested(self, column: ColumnPlan, buffers: list[Buffer | None]) -> pa.Array:
        rows, name_offsets, names, value_offsets, values = buffers[1:]
        assert rows is not None
        row_offsets = np.frombuffer(memoryview(rows), np.int32)
        count = int(row_offsets[-1])
        if column.kind is Kind.MAP:
            types = column.type.key_type, column.type.item_type
            inner = pa.struct([column.type.key_field, column.type.item_field])
        else:
            inner = column.type.value_type
            types = inner.field(0).type, inner.field(1).type
        children = [
            self._texts(column, types[0], count, 0, [None, name_offsets, names], row_offsets),
            self._texts(column, types[1], count, 0, [None, value_offsets, values], row_offsets),
        ]
        struct = pa.Array.from_buffers(inner, count, [None], 0, children=children)
        buffers_ = [None, _adopted(rows)]
        return pa.Array.from_buffers(column.type, self._rows, buffers_, 0, children=[struct])

    def _texts(
        self,
        column: ColumnPlan,
        type_: pa.DataType,
        count: int,
        nulls: int,
        buffers: list[Buffer | None],
        row_offsets: npt.NDArray[np.int32] | None = None,
    ) -> pa.Array:
        """Texts as string or binary. If a row has several texts, `row_offsets` maps them to
        rows."""
        if pa.types.is_binary(type_):
            return _binary(type_, count, nulls, buffers)
        offsets, data = buffers[1], buffers[2]
        assert offsets is not None
        assert data is not None
        bad = not_utf8(offsets, data) if column.kind is not Kind.ID else []
        if not bad:
            return _binary(type_, count, nulls, buffers)
        raw = _binary(pa.binary(), count, nulls, buffers)
        if self._mode != PERMISSIVE:
            at = np.asarray(bad)
            rows = at if row_offsets is None else np.searchsorted(row_offsets, at, "right") - 1
            self._bad(column, rows, f"{shown(raw[bad[0]].as_py())} is not UTF-8")
        return _mended(raw, bad)

    def _bad(self, column: ColumnPlan, rows: npt.NDArray[np.intp], what: str) -> None:
        if self._mode == FAILFAST:
            self._fail(column, int(rows[0]), what)
        if self.dropped is None:
            self.dropped = np.zeros(self._rows, np.bool_)
        self.dropped[rows] = True

    def _fail(self, column: ColumnPlan, row: int, what: str) -> NoReturn:
        raise BadValue(
            f"{self._naming.entry(row)}, column {column.name!r}: {what}; mode is {FAILFAST}"
        )


def _mended(raw: pa.Array, bad: list[int]) -> pa.Array:
    """The texts with U+FFFD in place of bytes that are not UTF-8."""
    mask = np.zeros(len(raw), np.bool_)
    mask[bad] = True
    texts = [raw[i].as_py().decode("utf-8", "replace").encode() for i in bad]
    mended = pc.replace_with_mask(raw, pa.array(mask), pa.array(texts, pa.binary()))
    return mended.cast(pa.utf8())
