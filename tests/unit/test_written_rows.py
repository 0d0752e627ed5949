"""Rows of a DataFrame become entries: which column is what, how values are written, what is
refused, and that each row keeps its number."""

from __future__ import annotations

import contextlib
import datetime
import math
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
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

from millstream.commands.runtime.effects import split_effects
from millstream.ids import parse
from millstream.pipeline.casting import cast_texts
from millstream.pipeline.row_encoder import RowFault
from millstream.pipeline.row_layout import RowEntry, RowError, RowLayout
from millstream.pipeline.row_writer import (
    ROW_BITS,
    ROWS_PER_BATCH,
    ROWS_PER_PRODUCER,
    Numbering,
    RowWriter,
    Written,
    _Sender,
    _sorted,
)
from millstream.pipeline.server_connection import ServerError
from millstream.pipeline.source_options import WRITE, OptionError, SourceOptions

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


def layout(schema: str, **options: str) -> RowLayout:
    return RowLayout(_struct(schema), SourceOptions(options, WRITE))


def _struct(schema: str) -> StructType:
    """`key string, a int` as a schema; Spark's own parser needs a JVM."""
    parts = re.findall(r"(\w+) ((?:[^,<(]|<[^>]*>+|\([^)]*\))+)", schema)
    return StructType([StructField(name, TYPES[kind]) for name, kind in parts])


def entries(
    schema: str, rows: list[tuple[Any, ...]], zone: str = "UTC", **options: str
) -> list[RowEntry]:
    struct = _struct(schema)
    arrow = to_arrow_schema(struct, timezone=zone)
    columns = zip(*rows, strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, arrow.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow)
    return both_ways(layout(schema, **options), batch)


def both_ways(made: RowLayout, batch: pa.RecordBatch) -> list[RowEntry]:
    """The rows as entries one by one, which are those of the encoded requests."""
    try:
        found = encoded(made, batch)
    except RowFault as fault:
        with pytest.raises(RowError, match=re.escape(f"row {100 + fault.row}: {fault.reason}")):
            list(made.entries(batch.slice(fault.row, 1), 100 + fault.row))
        raise RowError(f"row {100 + fault.row}: {fault.reason}") from fault
    assert found == list(made.entries(batch, 100))
    return found


def encoded(made: RowLayout, batch: pa.RecordBatch, first_seq: int = 7) -> list[RowEntry]:
    """The entries in the encoded requests, in the order of the rows."""
    encoder = made.encoder(batch, b"producer", first_seq)
    found = {}
    while (request := encoder.next()) is not None:
        rows = encoder.rows_of(request)
        read = list(requested(request.data))
        assert len(rows) == len(read) == request.entries
        for row, (key, how, number, words) in zip(rows, read, strict=True):
            assert row not in found
            if how == [b"PRODUCER", b"producer"]:
                assert int(number) == first_seq + row
                found[row] = RowEntry(key, None, words)
            else:
                assert how == [b"ID"]
                found[row] = RowEntry(key, parse(number), words)
    assert len(found) == batch.num_rows
    return [found[row] for row in sorted(found)]


def requested(data: bytes) -> Iterator[tuple[bytes, list[bytes], bytes, list[bytes]]]:
    """Key, PRODUCER and its name or ID, number or id, and fields of each entry of a TAPPENDMANY."""
    (words,) = split_effects(data)
    name, count, *rest = words[1]
    assert name == b"TAPPENDMANY"
    keys, rest = rest[: int(count)], rest[int(count) :]
    assert len(set(keys)) == len(keys)
    size = 1 if rest[0] == b"ID" else 2
    how, rest = rest[:size], rest[size:]
    for key in keys:
        entries, rest = int(rest[0]), rest[1:]
        for _ in range(entries):
            number, end = rest[0], 2 + 2 * int(rest[1])
            yield key, how, number, rest[2:end]
            rest = rest[end:]
    assert rest == []


def test_every_other_column_is_a_field_and_nulls_are_left_out() -> None:
    assert entries("key string, a string, b int", [("k", "x", 1), ("l", None, 2)]) == [
        RowEntry(b"k", None, [b"a", b"x", b"b", b"1"]),
        RowEntry(b"l", None, [b"b", b"2"]),
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
    made = RowLayout(schema, SourceOptions({"key": "k"}, WRITE)).entries(batch, 0)
    texts = [entry.words[1].decode() for entry in made]
    assert [Decimal(text) for text in texts] == values
    assert all(re.fullmatch(r"-?\d+" + rf"\.\d{{{scale}}}" * (scale > 0), one) for one in texts)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/St_Johns"])
def test_timestamps_are_written_in_utc_in_any_session_zone(zone: str) -> None:
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
        RowEntry(b"k", (1, 0), [b"b", b"1", b"a", b"2"]),
        RowEntry(b"k", (2, 0), [b"d", b"3"]),
    ]


def test_values_derived_from_the_id_are_no_fields() -> None:
    moment = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    row = ("k", "1.2", moment, 1, 2, "x")
    (entry,) = entries("key string, id string, ts timestamp, ms long, seq long, a string", [row])
    assert entry == RowEntry(b"k", (1, 2), [b"a", b"x"])


def test_a_slice_of_a_batch_is_read_from_its_own_beginning() -> None:
    struct = _struct("fields map<string,string>")
    arrow = to_arrow_schema(struct, timezone="UTC")
    array = pa.array([[("a", "1")], [("b", "2")], [("c", "3")]], arrow.types[0])
    batch = pa.RecordBatch.from_arrays([array], schema=arrow).slice(1, 1)
    made = RowLayout(struct, SourceOptions({"key": "k"}, WRITE))
    assert [entry.words for entry in both_ways(made, batch)] == [[b"b", b"2"]]


@pytest.mark.parametrize(
    ("schema", "row", "message"),
    [
        ("key string, a string", (None, "x"), "row 100: the key is null"),
        ("key string, id string, a int", ("k", None, 1), "row 100: the id is null"),
        ("key string, id string, a int", ("k", "later", 1), "row 100: 'later' is not an entry ID"),
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
        ("a string", "set the option 'key', or add a column 'key'"),
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
    options = SourceOptions({"server": "redis://localhost", "key": "k"}, WRITE)
    with pytest.raises(OptionError, match="only ever appended to"):
        RowWriter(_struct("a string"), options, overwrite=True)


def test_sorting_rows_that_have_no_order_is_refused() -> None:
    given_options = {"server": "redis://localhost", "key": "k", "sortRows": "true"}
    with pytest.raises(OptionError, match="cannot put the column 'fields' in order"):
        RowWriter(_struct("fields map<string,string>"), SourceOptions(given_options, WRITE), False)


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


class FakeServer:
    """Answers TAPPENDMANY as a server does; `refuse` makes one request fail."""

    address = "redis://one"

    def __init__(self) -> None:
        self.appended: dict[bytes, list[bytes]] = {}
        self.numbers: dict[tuple[bytes, bytes], int] = {}
        self.refuse: int | None = None
        self.requests = 0

    def encoded(self, data: bytes) -> int:
        self.requests += 1
        if self.requests == self.refuse:
            raise ServerError("refused as a whole")
        return sum(
            self._append(key, how[1], int(n), words) for key, how, n, words in requested(data)
        )

    def pipeline(self, commands: Iterable[Any]) -> list[Any]:
        assert not list(commands)
        return []

    def _append(self, key: bytes, producer: bytes, number: int, words: list[bytes]) -> bool:
        if number <= self.numbers.get((key, producer), -1):
            return False
        self.numbers[key, producer] = number
        self.appended.setdefault(key, []).append(words[1])
        return True


def numbered_rows(count: int, keys: int) -> pa.RecordBatch:
    texts = [str(n) for n in range(count)]
    return pa.RecordBatch.from_pydict({"key": [f"k{n % keys}" for n in range(count)], "n": texts})


@pytest.mark.parametrize("keys", [1, 7, 3000])
def test_a_retried_task_appends_each_missing_row_once(keys: int) -> None:
    """The second time Spark hands the rows over in other batches."""
    server = FakeServer()
    server.refuse = 3
    rows = numbered_rows(20_000, keys)

    def attempt(*sizes: int) -> _Sender:
        sender = _Sender(server, layout("key string, n string"), Numbering("query:0", 7))  # type: ignore[arg-type]
        at = 0
        for size in sizes:
            sender.add(rows.slice(at, size))
            at += size
        return sender

    with pytest.raises(ServerError, match=r"rows \d+ to \d+: refused as a whole"):
        attempt(10_000, 10_000)
    before = sum(map(len, server.appended.values()))
    assert before > 0
    again = attempt(1, 12_000, 7999)
    assert again.written == Written(20_000 - before, before)
    assert server.appended == {
        b"k%d" % key: [b"%d" % n for n in range(key, 20_000, keys)] for key in range(keys)
    }


def test_rows_beyond_a_producers_numbers_have_the_next_producer() -> None:
    server = FakeServer()
    sender = _Sender(server, layout("key string, n string"), Numbering("query:0", 7))  # type: ignore[arg-type]
    sender._next_row = ROWS_PER_PRODUCER - 5
    sender.add(numbered_rows(12, 2))
    assert {producer for _, producer in server.numbers} == {b"query:0", b"query:0.1"}
    assert server.numbers[b"k0", b"query:0.1"] == (7 << ROW_BITS) + 5
    assert server.appended[b"k0"] == [b"%d" % n for n in range(0, 12, 2)]


def test_requests_are_bounded_by_bytes_and_rows_but_have_a_row() -> None:
    small = numbered_rows(12_000, 1)
    large = pa.RecordBatch.from_pydict({"key": ["k"] * 3, "n": ["x" * 1_000_000] * 3})
    made = layout("key string, n string")
    for batch, most in ((small, 5000), (large, 1)):
        encoder = made.encoder(batch, b"p", 0)
        sizes = []
        while (request := encoder.next()) is not None:
            sizes.append(request.entries)
        assert max(sizes) == most
        assert sum(sizes) == batch.num_rows


def test_an_id_that_does_not_rise_begins_another_request() -> None:
    ids = ["1-0", "2-0", "2-0", "1-5", "7"]
    batch = pa.RecordBatch.from_pydict({"id": ids, "n": ids})
    encoder = layout("id string, n string", key="k").encoder(batch, b"", 0)
    sizes = []
    while (request := encoder.next()) is not None:
        sizes.append(request.entries)
    assert sizes == [2, 1, 2]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "", "a longer key", "another long key"]),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.none() | st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31)),
            st.none() | st.binary(max_size=20),
            st.none() | st.booleans(),
        ),
        min_size=1,
        max_size=50,
    ),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_rows_are_encoded_as_they_are_one_by_one(rows: list[tuple[Any, ...]], start: int) -> None:
    """Batches may be slices, too, whose buffers begin before them."""
    schema = "key string, i bigint, n timestamp_ntz, r binary, b boolean, s string"
    arrow = to_arrow_schema(_struct(schema), timezone="UTC")
    columns = zip(*[(*row, "x") for row in rows], strict=True)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, arrow.types, strict=True)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow).slice(start)
    if batch.num_rows:
        both_ways(layout(schema), batch)
        without_text = batch.drop_columns(["s"])
        made = layout(schema.removesuffix(", s string"))
        with contextlib.suppress(RowError):
            both_ways(made, without_text)


@given(st.lists(st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=9)))),
       st.integers(0, 3))  # fmt: skip
@settings(deadline=None)
def test_maps_and_lists_are_encoded_as_they_are_one_by_one(
    rows: list[list[tuple[str, str | None]]], start: int
) -> None:
    for kind in ("map<string,string>", "array<struct<name:string,value:string>>"):
        struct = _struct(f"fields {kind}")
        arrow = to_arrow_schema(struct, timezone="UTC")
        values: list[Any] = [[*row, ("z", "1")] for row in rows]
        if "array" in kind:
            values = [[{"name": n, "value": v} for n, v in row] for row in values]
        batch = pa.RecordBatch.from_arrays([pa.array(values, arrow.types[0])], schema=arrow)
        if batch.num_rows > start:
            both_ways(layout(f"fields {kind}", key="k"), batch.slice(start))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_integers_of_all_widths_are_written(kind: pa.DataType) -> None:
    bits = kind.bit_width - 1
    batch = pa.RecordBatch.from_pydict({"n": pa.array([0, -1, 9, 2**bits - 1, -(2**bits)], kind)})
    both_ways(RowLayout(_struct("n long"), SourceOptions({"key": "k"}, WRITE)), batch)


@given(
    st.lists(st.integers(-(10**9), 10**9), min_size=1),
    st.integers(0, 9),
    st.lists(st.floats()),
)
@settings(deadline=None)
def test_doubles_are_written_as_arrow_writes_them(
    digits: list[int], decimals: int, more: list[float]
) -> None:
    """The encoder writes those with few decimals; one that has more leaves all to Arrow."""
    values = [number / 10**decimals for number in digits]
    made = layout("d double", key="k")
    for column in (values, [*values, *more]):
        both_ways(made, pa.RecordBatch.from_pydict({"d": pa.array(column, pa.float64())}))


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_long_texts_are_written(kind: pa.DataType) -> None:
    """Spark has them where spark.sql.execution.arrow.useLargeVarTypes is set."""
    batch = pa.RecordBatch.from_pydict({"s": pa.array(["a", None, "", "bcd"], kind)})
    batch = batch.append_column("t", pa.array(["x"] * 4, kind))
    assert len(both_ways(layout("s string, t string", key="k"), batch.slice(1))) == 3


def test_times_of_all_years_are_written() -> None:
    """Those of the years 1 to 9999 by the encoder, others by Arrow."""
    day_us = 86_400_000_000
    moments = [0, -1, -day_us, -62_135_596_800_000_000, 253_402_300_799_999_999,
               951_782_400_000_000 - 1, 951_868_800_000_000, 4_107_542_400_000_000]  # fmt: skip
    for more in ([], [253_402_300_800_000_000]):
        times = pa.array([*moments, *more], pa.int64()).cast(pa.timestamp("us", "UTC"))
        found = both_ways(layout("t timestamp", key="k"), pa.RecordBatch.from_pydict({"t": times}))
        assert found[1].words[1] == b"1969-12-31T23:59:59.999999Z"
        assert found[3].words[1] == b"0001-01-01T00:00:00.000000Z"


NUMBERS_OF_ALL_TIMES = st.integers(-(2**63), 2**63 - 1)
WRITTEN_TYPES = [
    pa.timestamp("us", "UTC"),
    pa.timestamp("us"),
    pa.date32(),
    pa.int64(),
    pa.float64(),
    pa.float32(),
    pa.bool_(),
    pa.decimal128(38, 18),
]


@given(st.lists(st.none() | NUMBERS_OF_ALL_TIMES, min_size=1), st.integers(0, 62))
@settings(deadline=None)
@example([2**63 - 1, -(2**63), None], 0)
def test_the_source_reads_all_that_the_sink_writes(numbers: list[int | None], bits: int) -> None:
    """Also times of years that Python's dates do not have, and numbers that are not finite."""
    made = layout("v string, other string", key="k")
    for type_ in WRITTEN_TYPES:
        column = written_column([None if n is None else n >> bits for n in numbers], type_)
        others = pa.array(["x"] * len(column))
        rows = pa.RecordBatch.from_arrays([column, others], ["v", "other"])
        words = [entry.words for entry in both_ways(made, rows)]
        texts = [w[1].decode() if w[0] == b"v" else None for w in words]
        assert cast_texts(pa.array(texts, pa.string()), type_).equals(column)


def written_column(numbers: list[int | None], type_: pa.DataType) -> pa.Array:
    """A column of this type, with values that follow from the numbers."""
    if pa.types.is_floating(type_):
        special = {0: -math.inf, 1: math.inf, 2: -0.0}
        values = [None if n is None else special.get(n, n / 7) for n in numbers]
        return pa.array(values, pa.float64()).cast(type_)
    if pa.types.is_boolean(type_):
        return pa.array([None if n is None else n % 2 == 0 for n in numbers], type_)
    if pa.types.is_decimal(type_):
        return pa.array([None if n is None else Decimal(n).scaleb(-18) for n in numbers], type_)
    if pa.types.is_date32(type_):
        return pa.array([None if n is None else n >> 32 for n in numbers], type_)
    return pa.array(numbers, type_)


def test_sorted_rows_are_in_batches_of_bounded_size() -> None:
    """A batch is made into Python objects as a whole."""
    rows = pa.RecordBatch.from_pydict({"n": list(range(25_000, 0, -1)), "x": [None] * 25_000})
    made = _sorted([rows.slice(0, 7), rows.slice(7)], [("n", "ascending"), ("x", "ascending")])
    assert [n for batch in made for n in batch.column("n").to_pylist()] == list(range(1, 25_001))
    assert max(batch.num_rows for batch in made) <= ROWS_PER_BATCH
