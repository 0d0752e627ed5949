"""Converts the rows of a DataFrame to entries: key, ID, and fields as bytes.

Rows arrive in Arrow batches. `row_encoder.pyx` makes requests from a whole batch; Arrow converts
values to text by columns where that is necessary. `entries` returns rows one by one, for rows that
the server has refused. `RowLayout` decides once, from the schema, which columns become
fields, and refuses a schema in which a column would be lost silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.errors import readable
from millstream.ids import parse
from millstream.pipeline.casting import is_common_time, time_texts
from millstream.pipeline.positions import Id, key_bytes
from millstream.pipeline.row_encoder import Column, Kind, RowEncoder
from millstream.pipeline.source_options import OptionError, SourceOptions

# The columns that the reader derives from an entry's ID.
_OF_THE_ID = ("ts", "ms", "seq")
# Up to this scale Arrow writes all decimals without an exponent.
_SCALE_OF_DIGITS = 6
# The types that the encoder reads without a conversion.
_AS_THEY_ARE = {
    pa.string(): Kind.TEXT,
    pa.binary(): Kind.TEXT,
    pa.large_string(): Kind.LONG_TEXT,
    pa.large_binary(): Kind.LONG_TEXT,
    pa.int8(): Kind.INT8,
    pa.int16(): Kind.INT16,
    pa.int32(): Kind.INT32,
    pa.int64(): Kind.INT64,
}
_AS_TEXT = (
    StringType,
    BinaryType,
    BooleanType,
    IntegralType,
    FractionalType,
    DateType,
    TimestampType,
    TimestampNTZType,
    NullType,
)


class RowError(ValueError):
    """A row that cannot become an entry. The text names the row and the reason."""


class RowEntry(NamedTuple):
    """An entry to append. `id` None: the server assigns one. `words`: field, value, field, ..."""

    key: bytes
    id: Id | None
    words: list[bytes]


class RowLayout:
    """The roles of the columns. The key comes from the option `key` or the column `key`, the ID
    from the column `id` if there is one. The fields come from the column `fields` if there is one,
    else every other column is a field."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        types = {field.name: field.dataType for field in schema.fields}
        key = options.text("key")
        self.key = None if key is None else key_bytes(key)
        if self.key is None and "key" not in types:
            raise OptionError("no stream is given: set the option 'key', or add a column 'key'")
        if self.key is None:
            _check_text("key", types["key"])
        self.has_id = "id" in types
        if self.has_id:
            _check_id(types["id"])
        self.has_fields = "fields" in types
        left = [name for name in types if not self._is_taken(name)]
        if self.has_fields:
            _check_map(types["fields"])
            _refuse_beside_fields(left)
        else:
            _check_fields(left, types)
        self.names = [] if self.has_fields else left

    def _is_taken(self, name: str) -> bool:
        if name in ("key", "id", "fields"):
            return name != "key" or self.key is None or self.has_fields
        return name in _OF_THE_ID and (self.has_id or self.has_fields)

    def encoder(self, batch: pa.RecordBatch, producer: bytes, first_seq: int) -> RowEncoder:
        """An encoder for the batch's rows. Rows without IDs are numbered from `first_seq`."""
        ids = _column(batch.column("id")) if self.has_id else None
        key = _column(batch.column("key")) if self.key is None else self.key
        columns, ends = self._field_columns(batch)
        return RowEncoder(batch.num_rows, key, ids, columns, ends, producer, first_seq)

    def _field_columns(self, batch: pa.RecordBatch) -> tuple[list[Column], Column | None]:
        """The columns of values; or the columns of names and of values, with the end of each
        row."""
        if not self.has_fields:
            return [_column(batch.column(name), name) for name in self.names], None
        fields = batch.column("fields")
        ends = Column(Kind.INT32, fields.buffers()[:2], fields.offset)
        return [_column(child) for child in _names_and_values(fields)], ends

    def entries(self, batch: pa.RecordBatch, first_row: int) -> Iterator[RowEntry]:
        """The batch's rows as entries; RowError names the row, counted from `first_row`."""
        keys, ids = self._keys(batch), self._ids(batch)
        for row, words in enumerate(self._fields(batch, first_row), first_row):
            key, id_text = next(keys), next(ids)
            if key is None:
                raise RowError(f"row {row}: the key is null")
            if not words:
                raise RowError(f"row {row}: there is no field that is not null")
            yield RowEntry(key, self._id(id_text, row), words)

    def _keys(self, batch: pa.RecordBatch) -> Iterator[bytes | None]:
        if self.key is not None:
            return iter([self.key] * batch.num_rows)
        return iter(_texts(batch.column("key")))

    def _ids(self, batch: pa.RecordBatch) -> Iterator[bytes | None]:
        if not self.has_id:
            return iter([None] * batch.num_rows)
        return iter(_texts(batch.column("id")))

    def _id(self, text: bytes | None, row: int) -> Id | None:
        if not self.has_id:
            return None
        if text is None:
            raise RowError(f"row {row}: the id is null")
        try:
            return parse(text)
        except ValueError as error:
            shown = readable(text)
            raise RowError(
                f"row {row}: {shown!r} is not an entry ID such as 1700000000000-0"
            ) from error

    def _fields(self, batch: pa.RecordBatch, first_row: int) -> Iterator[list[bytes]]:
        if self.has_fields:
            return _listed(batch.column("fields"), first_row)
        return self._columns(batch)

    def _columns(self, batch: pa.RecordBatch) -> Iterator[list[bytes]]:
        names = [name.encode() for name in self.names]
        columns = [_texts(batch.column(name)) for name in self.names]
        for values in zip(*columns, strict=True):
            words: list[bytes] = []
            for name, value in zip(names, values, strict=True):
                if value is not None:
                    words += (name, value)
            yield words


def _column(array: pa.Array, name: str = "") -> Column:
    """The array in a form that the encoder reads."""
    kind = _AS_THEY_ARE.get(array.type)
    if kind is None and is_common_time(array):
        kind = Kind.TIME if array.type.tz is None else Kind.MOMENT
    if array.type == pa.float64():
        column = Column(Kind.DECIMALS, array.buffers(), array.offset, name.encode())
        if column.has_few_decimals(len(array)):
            return column
    if kind is None:
        array = _text_array(array)
        kind = _AS_THEY_ARE[array.type]
    return Column(kind, array.buffers(), array.offset, name.encode())


def _text_array(column: pa.Array) -> pa.Array:
    """Every value as the text to store. Times are ISO 8601, in UTC if they have a zone."""
    type_ = column.type
    if pa.types.is_decimal(type_) and type_.scale > _SCALE_OF_DIGITS:
        # Arrow would write 0.0000001 as 1E-7.
        texts = [None if one is None else f"{one:f}" for one in column.to_pylist()]
        return pa.array(texts, pa.string())
    if type_ in _AS_THEY_ARE and _AS_THEY_ARE[type_] in (Kind.TEXT, Kind.LONG_TEXT):
        return column
    return time_texts(column) if pa.types.is_temporal(type_) else column.cast(pa.string())


def _texts(column: pa.Array) -> Sequence[bytes | None]:
    """Every value as the bytes to store."""
    values: list[bytes | None] = _text_array(column).cast(pa.large_binary()).to_pylist()
    return values


def _names_and_values(fields: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The two child columns of a map or of a list of pairs."""
    if pa.types.is_map(fields.type):
        return fields.keys, fields.items
    return fields.values.field(0), fields.values.field(1)


def _listed(column: pa.Array, first_row: int) -> Iterator[list[bytes]]:
    """The fields of each row of a map, or of an array of pairs; null values are left out."""
    names, values = map(_texts, _names_and_values(column))
    offsets = column.offsets.to_pylist()
    for row, is_there in enumerate(column.is_valid().to_pylist()):
        words: list[bytes] = []
        for at in range(offsets[row], offsets[row + 1]) if is_there else ():
            name, value = names[at], values[at]
            if name is None:
                raise RowError(f"row {first_row + row}: a field's name is null")
            if value is not None:
                words += (name, value)
        yield words


def _check_text(name: str, type_: DataType) -> None:
    if not isinstance(type_, StringType | BinaryType):
        raise OptionError(f"the column {name!r} is {type_.simpleString()}; it must be a string")


def _check_id(type_: DataType) -> None:
    if not isinstance(type_, StringType):
        raise OptionError(
            f"the column 'id' is {type_.simpleString()}; entries' ids are strings such as "
            "'1700000000000-0'. Rename the column to write it as a field"
        )


def _check_map(type_: DataType) -> None:
    pair: Any = None
    if isinstance(type_, MapType):
        pair = (type_.keyType, type_.valueType)
    elif isinstance(type_, ArrayType) and isinstance(type_.elementType, StructType):
        pair = tuple(field.dataType for field in type_.elementType.fields)
    if pair is None or len(pair) != 2 or not all(isinstance(part, _AS_TEXT) for part in pair):
        raise OptionError(
            f"the column 'fields' is {type_.simpleString()}; it must be map<string,string> or "
            "array<struct<name:string,value:string>>"
        )


def _check_fields(names: list[str], types: dict[str, DataType]) -> None:
    if not names:
        raise OptionError("there is no column left to become a field")
    for name in names:
        if not isinstance(types[name], _AS_TEXT):
            raise OptionError(
                f"the column {name!r} is {types[name].simpleString()}, which has no text of its "
                "own: make one with to_json, or by a cast to string"
            )


def _refuse_beside_fields(names: list[str]) -> None:
    if names:
        raise OptionError(
            f"the column {names[0]!r} would be lost: the fields come from the column 'fields'. Put "
            "it in there or drop it"
        )
