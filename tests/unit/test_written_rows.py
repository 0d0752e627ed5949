"""Rows of a DataFrame become entries: which column is what, how values are written, what is
refused, and that each row keeps its number."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from millstream.pipeline.options import WRITE, OptionError, Options
from millstream.pipeline.rows import Entry, Layout, RowError
from millstream.pipeline.writer import (
    ROW_BITS,
    ROWS_PER_BATCH,
    ROWS_PER_REQUEST,
    Numbering,
    RowWriter,
    _Sender,
    _sorted,
)

PAIR = StructType([StructField("name", StringType()), StructField("value", StringType())])
TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "decimal(9,2)": DecimalType(9, 2),
    "timestamp": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
    "date": DateType(),
    "array<int>": ArrayType(IntegerType()),
    "map<string,string>": MapType(StringType(), StringType()),
    "map<string,binary>": MapType(StringType(), BinaryType()),
    "array<struct<name:string,value:string>>": ArrayType(PAIR),
}


def layout(schema: str, **options: str) -> Layout:
    return Layout(_struct(schema), Options(options, WRITE))


def _struct(schema: str) -> StructType:
    """`key string, a int` as a schema; Spark's own parser needs a JVM."""
    parts = re.findall(r"(\w+) ((?:[^,<(]|<[^>]*>+|\([^)]*\))+)", schema)
    return StructType([StructField(name, TYPES[kind]) for name, kind in parts])


def entries(
    schema: str, rows: list[tuple[Any, ...]], zone: str = "UTC", **options: str
) -> list[Entry]:
    struct = _struct(schema)
    arrow = to_arrow_schema(struct, timezone=zone)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, arrow.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow)
    return list(layout(schema, **options).entries(batch, 100))


def test_every_other_column_is_a_field_and_nulls_are_left_out() -> None:
    assert entries("key string, a string, b int", [("k", "x", 1), ("l", None, 2)]) == [
        Entry(b"k", None, [b"a", b"x", b"b", b"1"]),
        Entry(b"l", None, [b"b", b"2"]),
    ]


def test_values_are_written_as_documented() -> None:
    moment = datetime.datetime(2026, 11, 20, 15, 4, 5, 250_000, datetime.UTC)
    schema = (
        "b boolean, i bigint, d double, m decimal(9,2), t timestamp, n timestamp_ntz, y date, "
        "r binary, s string"
    )
    naive = moment.replace(tzinfo=None)
    row = (True, -7, 35.6, Decimal("1.20"), moment, naive, moment.date(), b"\xff\0", "é")
    (entry,) = entries(schema, [row], key="k")
    assert dict(zip(entry.words[::2], entry.words[1::2], strict=True)) == {
        b"b": b"true",
        b"i": b"-7",
        b"d": b"35.6",
        b"m": b"1.20",
        b"t": b"2026-11-20T15:04:05.250000Z",
        b"n": b"2026-11-20T15:04:05.250000",
        b"y": b"2026-11-20",
        b"r": b"\xff\0",
        b"s": "é".encode(),
    }


@pytest.mark.parametrize("scale", [0, 2, 6, 7, 18])
def test_decimals_are_written_as_their_digits(scale: int) -> None:
    values = [Decimal(n).scaleb(-scale) for n in (0, 1, -20, 10**15 + 7)]
    arrow = pa.schema([("m", pa.decimal128(38, scale))])
    batch = pa.RecordBatch.from_arrays([pa.array(values, arrow.types[0])], schema=arrow)
    schema = StructType([StructField("m", DecimalType(38, scale))])
    made = Layout(schema, Options({"key": "k"}, WRITE)).entries(batch, 0)
    texts = [entry.words[1].decode() for entry in made]
    assert [Decimal(text) for text in texts] == values
    assert all(re.fullmatch(r"-?\d+" + rf"\.\d{{{scale}}}" * (scale > 0), one) for one in texts)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns"])
def test_moments_are_written_in_utc_whatever_the_zone_of_the_session(zone: str) -> None:
    """The two hours around the end of summer time are one and the same on a clock in Berlin."""
    first = datetime.datetime(2026, 10, 25, 0, 30, tzinfo=datetime.UTC)
    rows = [(first + datetime.timedelta(hours=n), datetime.datetime(2026, 1, 1)) for n in (0, 1)]
    made = entries("t timestamp, n timestamp_ntz", rows, zone, key="k")
    assert [entry.words for entry in made] == [
        [b"t", f"2026-10-25T0{n}:30:00.000000Z".encode(), b"n", b"2026-01-01T00:00:00.000000"]
        for n in (0, 1)
    ]


@pytest.mark.parametrize(
    "kind", ["map<string,string>", "map<string,binary>", "array<struct<name:string,value:string>>"]
)
def test_a_column_fields_holds_all_fields_in_order(kind: str) -> None:
    def made(pairs: list[tuple[str, str | None]]) -> Any:
        encoded = [(n, v.encode() if v and "binary" in kind else v) for n, v in pairs]
        return encoded if "map" in kind else [{"name": n, "value": v} for n, v in encoded]

    rows = [("1-0", made([("b", "1"), ("a", "2")])), ("2-0", made([("c", None), ("d", "3")]))]
    assert entries(f"id string, fields {kind}", rows, key="k") == [
        Entry(b"k", (1, 0), [b"b", b"1", b"a", b"2"]),
        Entry(b"k", (2, 0), [b"d", b"3"]),
    ]


def test_what_a_reader_makes_of_the_id_is_no_field() -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    row = ("k", "1.2", moment, 1, 2, "x")
    (entry,) = entries("key string, id string, ts timestamp, ms long, seq long, a string", [row])
    assert entry == Entry(b"k", (1, 2), [b"a", b"x"])


def test_a_slice_of_a_batch_is_read_from_its_own_beginning() -> None:
    struct = _struct("fields map<string,string>")
    arrow = to_arrow_schema(struct, timezone="UTC")
    array = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], arrow.types[0])
    batch = pa.RecordBatch.from_arrays([array], schema=arrow).slice(1, 1)
    assert [
        entry.words for entry in Layout(struct, Options({"key": "k"}, WRITE)).entries(batch, 0)
    ] == [[b"b", b"2"]]


@pytest.mark.parametrize(
    ("schema", "row", "message"),
    [
        ("key string, a string", (None, "x"), "row 100: the key is null"),
        ("key string, id string, a int", ("k", None, 1), "row 100: the id is null"),
        ("key string, id string, a int", ("k", "later", 1), "row 100: 'later' is no id"),
        ("key string, a string", ("k", None), "row 100: there is no field"),
        ("key string, fields map<string,string>", ("k", None), "row 100: there is no field"),
        (
            "key string, fields array<struct<name:string,value:string>>",
            ("k", [{"name": None, "value": "x"}]),
            "row 100: a field's name is null",
        ),
    ],
)
def test_a_row_that_is_no_entry_is_named(schema: str, row: tuple[Any, ...], message: str) -> None:
    with pytest.raises(RowError, match=message):
        entries(schema, [row])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("a string", "Give the stream as option 'key', or a column 'key'"),
        ("key int, a string", "'key' is int; it must be a string"),
        ("key string, id bigint, a string", "'id' is bigint; .*Rename the column"),
        ("key string, a array<int>", "'a' is array<int>, which has no text"),
        ("key string, fields string", "'fields' is string; it must be map"),
        ("key string, fields map<string,string>, a int", "'a' would be lost"),
        ("key string, id string", "no column left"),
    ],
)
def test_a_schema_that_would_lose_something_is_refused(schema: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        layout(schema)


def test_overwriting_is_refused() -> None:
    options = Options({"server": "redis://localhost", "key": "k"}, WRITE)
    with pytest.raises(OptionError, match="only ever appended to"):
        RowWriter(_struct("a string"), options, overwrite=True)


def test_sorting_rows_that_have_no_order_is_refused() -> None:
    given_options = {"server": "redis://localhost", "key": "k", "sortRows": "true"}
    with pytest.raises(OptionError, match="cannot put the column 'fields' in order"):
        RowWriter(_struct("fields map<string,string>"), Options(given_options, WRITE), False)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, (1 << 22) - 1)), min_size=2))
def test_the_numbers_of_a_producer_rise_with_batches_and_rows(
    places: list[tuple[int, int]],
) -> None:
    last: dict[str, int] = {}
    for batch, row in sorted(set(places)):
        name, number = Numbering("query:3", batch)(row)
        assert number > last.get(name, -1)
        last[name] = number
        assert number >> ROW_BITS == batch


class OneStream:
    """Answers TAPPENDONCE as a server does; `refuse` makes one transaction fail."""

    address = "redis://one"

    def __init__(self) -> None:
        self.appended: list[bytes] = []
        self.producers: dict[str, int] = {}
        self.refuse: int | None = None
        self.transactions = 0

    def transaction(self, commands: Iterable[Any]) -> list[Any]:
        self.transactions += 1
        if self.transactions == self.refuse:
            raise ConnectionError("refused as a whole")
        return [self._append(*command) for command in commands]

    def pipeline(self, commands: Iterable[Any]) -> list[Any]:
        assert not list(commands)
        return []

    def _append(self, _: str, key: bytes, how: str, name: str, number: int, *words: bytes) -> Any:
        if number <= self.producers.get(name, -1):
            return None
        self.producers[name] = number
        self.appended.append(words[1])
        return b"1-1"


def test_a_task_that_is_tried_again_appends_what_is_missing_and_nothing_twice() -> None:
    server = OneStream()
    server.refuse = 3
    count = 4 * ROWS_PER_REQUEST + 17

    def attempt() -> _Sender:
        sender = _Sender(server, Numbering("query:0", 7))  # type: ignore[arg-type]
        for row in range(count):
            sender.add(row, Entry(b"k", None, [b"n", b"%d" % row]))
        sender.flush()
        return sender

    with pytest.raises(ConnectionError):
        attempt()
    again = attempt()
    assert server.appended == [b"%d" % row for row in range(count)]
    assert again.written.repeated == 2 * ROWS_PER_REQUEST
    assert again.written.appended == count - 2 * ROWS_PER_REQUEST


def test_sorted_rows_come_in_batches_of_bounded_size() -> None:
    """A batch is made into Python objects as a whole."""
    rows = pa.RecordBatch.from_pydict({"n": list(range(25_000, 0, -1)), "x": [None] * 25_000})
    made = _sorted([rows.slice(0, 7), rows.slice(7)], [("n", "ascending"), ("x", "ascending")])
    assert [n for batch in made for n in batch.column("n").to_pylist()] == list(range(1, 25_001))
    assert max(batch.num_rows for batch in made) <= ROWS_PER_BATCH
