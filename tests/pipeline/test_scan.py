"""Spark reads a snapshot: exactly the rows that are wanted, from no more chunks than they need."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col
from tests.pipeline.essentials import PUSHDOWN
from tests.support.data_directory import flip
from tests.support.journals import DIRECTORY
from tests.support.snapshots import Stream, write_base, write_snapshot

from millstream.errors import DataError
from millstream.pipeline.batch_maker import BatchMaker
from millstream.pipeline.chunk_reader import PartitionReader
from millstream.pipeline.files import Folder
from millstream.pipeline.selection import Selection
from millstream.pipeline.snapshot_plan import ScanPartition, plan
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import Manifest, store_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader

T0 = 1_700_000_000_000
EVERY_CHUNK = 50

Rows = list[tuple[str, int]]


def entries(count: int) -> dict[tuple[int, int], list[bytes]]:
    """The field `n` counts up from 0, and so do the milliseconds from T0."""
    return {(T0 + n, 0): [b"n", b"%d" % n, b"even", b"%d" % (n % 2 == 0)] for n in range(count)}


def streams() -> list[Stream]:
    return [Stream(b"sensor:%d" % n, entries(200), block_entries=10) for n in range(4)]


def expected(keys: list[int], first: int, last: int) -> Rows:
    return [(f"sensor:{key}", n) for key in keys for n in range(first, last + 1)]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four streams of 200 entries, four chunks each."""
    directory = tmp_path_factory.mktemp("four")
    write_snapshot(directory, streams(), EVERY_CHUNK)
    return directory


class Scan:
    """A scan that is watched: its rows, and the chunks that were opened for them."""

    def __init__(self, spark: SparkSession, directory: Path, log: Path, **options: str) -> None:
        self._log = log
        self._reader = spark.read.format("millstream").option("metricsPath", str(log))
        self._reader.options(**options)
        self._directory = directory

    def frame(self, schema: str = "key string, ms bigint") -> DataFrame:
        return self._reader.schema(schema).load(str(self._directory))

    def rows(self, condition: str = "true", schema: str = "key string, ms bigint") -> Rows:
        """Keys, and the milliseconds from T0."""
        self._log.unlink(missing_ok=True)
        found = self.frame(schema).where(condition).collect()
        return sorted((row.key, row.ms - T0) for row in found)

    def chunks(self) -> list[int]:
        """The chunks that the last query opened, each as often as it did."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return sorted(chunk for line in lines for chunk in json.loads(line)["chunks"])


def error_of(frame: DataFrame) -> str:
    with pytest.raises(PySparkException) as caught:
        frame.collect()
    return str(caught.value)


def error_of_option(spark: SparkSession, directory: Path, name: str, value: str) -> str:
    with pytest.raises(PySparkException) as caught:
        spark.read.format("millstream").option(name, value).load(str(directory)).collect()
    return str(caught.value)


# ---------------------------------------------------------------- columns


def test_the_default_schema_shows_entries_as_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """And the source is found without being registered."""
    write_snapshot(tmp_path, [Stream(b"s", {(T0, 7): [b"a", b"1", b"b", b"\xc3\xa4"]})])
    frame = spark.read.format("millstream").load(str(tmp_path))
    assert frame.schema.simpleString() == (
        "struct<key:string,id:string,ts:timestamp,fields:map<string,string>>"
    )
    (row,) = frame.collect()
    assert (row.key, row.id, row.fields) == ("s", f"{T0}-7", {"a": "1", "b": "ä"})
    assert row.ts.astimezone(UTC) == datetime.fromtimestamp(T0 / 1000, UTC)


def test_every_column_can_be_had_in_every_form(spark: SparkSession, tmp_path: Path) -> None:
    words = [b"x", b"1", b"y", b"\xff\x00", b"x", b" 2.50 "]
    write_snapshot(tmp_path, [Stream(b"\xfekey", {(5, 2**64 - 1): words})])
    reader = spark.read.format("millstream")

    def only(schema: str) -> tuple[object, ...]:
        (row,) = reader.schema(schema).load(str(tmp_path)).collect()
        return tuple(row)

    row = only("key binary, ms bigint, seq decimal(20,0), fields map<string,binary>, x string")
    fields = {"x": b" 2.50 ", "y": b"\xff\x00"}
    assert row == (b"\xfekey", 5, Decimal(2**64 - 1), fields, " 2.50 ")
    row = only("key string, fields array<struct<name:binary,value:string>>, ms decimal(20,0)")
    pairs = [(b"x", "1"), (b"y", "\ufffd\0"), (b"x", " 2.50 ")]
    assert row == ("\ufffdkey", pairs, Decimal(5))
    row = only("x double, y binary, z string, zz int, fields map<string,string>")
    assert row == (2.5, b"\xff\x00", None, None, {"x": " 2.50 ", "y": "\ufffd\0"})


def test_the_option_columns_selects_columns(spark: SparkSession, four: Path) -> None:
    reader = spark.read.format("millstream").option("columns", "key, seq, n int, even")
    frame = reader.load(str(four))
    assert frame.schema.simpleString() == "struct<key:string,seq:decimal(20,0),n:int,even:string>"
    assert frame.where("n = 7 and key = 'sensor:1'").collect() == [("sensor:1", 0, 7, "0")]


def test_columns_given_in_two_conflicting_ways_are_refused(spark: SparkSession, four: Path) -> None:
    reader = spark.read.format("millstream").schema("key string, seq decimal(20,0)")
    text = error_of(reader.option("columns", "key, n int").load(str(four)))
    assert "option 'columns' names key, n, and the schema key, seq: give one of both" in text
    assert reader.option("columns", "key, seq").load(str(four)).count() == 800


def test_a_column_of_a_type_it_cannot_have_is_named(spark: SparkSession, four: Path) -> None:
    reader = spark.read.format("millstream")
    for schema, refused in (
        ("ts string", "column 'ts' cannot be string; it may be timestamp"),
        ("ts timestamp_ntz", "column 'ts' cannot be timestamp_ntz; it may be timestamp"),
        ("n int not null", "column 'n' cannot be NOT NULL"),
        ("n array<bigint>", "column 'n' cannot be array<bigint>; it may be string, binary"),
    ):
        assert refused in error_of(reader.schema(schema).load(str(four)))


BAD = {
    (1, 0): [b"n", b"1"],
    (2, 0): [b"n", b"0x1F"],
    (3, 0): [b"other", b"3"],
    (4, 0): [b"n", b"99999999999"],
    (5, 0): [b"n", b" +5 "],
    (6, 0): [b"n", b"\xff"],
}


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("PERMISSIVE", [(1, 1), (2, None), (3, None), (4, None), (5, 5), (6, None)]),
        ("dropmalformed", [(1, 1), (3, None), (5, 5)]),
    ],
)
def test_a_bad_cast_is_null_or_drops_its_row(
    spark: SparkSession, tmp_path: Path, mode: str, rows: list[tuple[int, int | None]]
) -> None:
    write_snapshot(tmp_path, [Stream(b"s", BAD)])
    reader = spark.read.format("millstream").option("mode", mode).schema("ms bigint, n int")
    assert [tuple(row) for row in reader.load(str(tmp_path)).orderBy("ms").collect()] == rows


def test_a_bad_cast_fails_fast_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    write_snapshot(tmp_path, [Stream(b"before", entries(3)), Stream(b"s", BAD)])
    reader = spark.read.format("millstream").option("mode", "FAILFAST").schema("n bigint")
    text = error_of(reader.load(str(tmp_path)))
    assert "stream 's', entry 6-0, column 'n': '\ufffd' is not UTF-8" in text
    assert "stream 's', entry 2-0, column 'n': '0x1F' cannot be cast to bigint" in error_of(
        reader.option("endId", "4").load(str(tmp_path))
    )


def test_text_that_is_not_utf8_is_treated_as_a_bad_cast(
    spark: SparkSession, tmp_path: Path
) -> None:
    broken = {(1, 0): [b"n", b"\xff"], (2, 0): [b"n", b"fine"]}
    write_snapshot(tmp_path, [Stream(b"s", broken)])

    def rows(mode: str, schema: str) -> list[tuple[object, ...]]:
        reader = spark.read.format("millstream").option("mode", mode).schema(schema)
        return [tuple(row) for row in reader.load(str(tmp_path)).orderBy("ms").collect()]

    assert rows("PERMISSIVE", "ms bigint, n string") == [(1, "\ufffd"), (2, "fine")]
    assert rows("DROPMALFORMED", "ms bigint, fields map<string,string>") == [(2, {"n": "fine"})]
    assert rows("DROPMALFORMED", "ms bigint, n binary") == [(1, b"\xff"), (2, b"fine")]


def test_a_seq_that_is_no_bigint_is_an_error_and_no_number(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_snapshot(tmp_path, [Stream(b"s", {(1, 2**63): [b"a", b"b"]})])
    frame = spark.read.format("millstream").schema("seq bigint").load(str(tmp_path))
    assert "stream 's'" in error_of(frame)
    assert "a number above 2^63-1, which a bigint cannot hold" in error_of(frame)


# ---------------------------------------------------------------- pruning

FILTERS: dict[str, tuple[Rows, int]] = {
    "key = 'sensor:2'": (expected([2], 0, 199), 4),
    "key = 'sensor:9'": ([], 0),
    "key in ('sensor:1', 'sensor:3')": (expected([1, 3], 0, 199), 8),
    "key > 'sensor:2'": (expected([3], 0, 199), 4),
    "key like 'sensor:%' and key <> 'sensor:0'": (expected([1, 2, 3], 0, 199), 12),
    "not key like '%:1' and key <= 'sensor:1'": (expected([0], 0, 199), 4),
    f"key = 'sensor:0' and ms >= {T0 + 150}": (expected([0], 150, 199), 1),
    f"key = 'sensor:0' and ms > {T0 + 49} and ms < {T0 + 51}": (expected([0], 50, 50), 1),
    f"ms in ({T0 + 10}, {T0 + 60})": (
        [(f"sensor:{key}", n) for key in range(4) for n in (10, 60)],
        8,
    ),
    "ms < 0": ([], 0),
    # Pushed in part or not at all, and the rows are right in any case.
    "key = 'sensor:1' or ms = 5": (expected([1], 0, 199), 16),
    f"ms <> {T0 + 1} and ms <= {T0 + 2}": (
        [(f"sensor:{key}", n) for key in range(4) for n in (0, 2)],
        4,
    ),
}


@pytest.mark.parametrize("condition", FILTERS)
def test_filters_select_the_rows_and_open_few_chunks(
    spark: SparkSession, four: Path, tmp_path: Path, condition: str
) -> None:
    rows, chunks = FILTERS[condition]
    scan = Scan(spark, four, tmp_path / "log")
    spark.conf.set(PUSHDOWN, "true")
    assert scan.rows(condition) == rows
    assert len(scan.chunks()) == chunks


@pytest.mark.parametrize("condition", [*FILTERS][:2] + [*FILTERS][-2:])
def test_filters_select_the_same_rows_without_pushdown(
    spark: SparkSession, four: Path, tmp_path: Path, condition: str
) -> None:
    scan = Scan(spark, four, tmp_path / "log")
    assert scan.rows(condition) == FILTERS[condition][0]
    assert scan.chunks() == list(range(16))


TIMES = {
    "ts >= timestamp_millis({t} + 180)": (180, 199, 4),
    "ts > timestamp_micros({t}000 + 179001)": (180, 199, 4),
    "ts < timestamp_micros({t}000 + 1)": (0, 0, 4),
    "ts <= timestamp_micros({t}000 + 1999)": (0, 1, 4),
    "ts = timestamp_micros({t}000 + 3001)": (1, 0, 0),
    "id = '{t}-0'": (0, 0, 4),
    "id = '0{t}-0'": (1, 0, 0),
}


@pytest.mark.parametrize("condition", TIMES)
def test_times_and_ids_become_bounds(
    spark: SparkSession, four: Path, tmp_path: Path, condition: str
) -> None:
    first, last, chunks = TIMES[condition]
    scan = Scan(spark, four, tmp_path / "log")
    spark.conf.set(PUSHDOWN, "true")
    schema = "key string, ms bigint, ts timestamp, id string"
    assert scan.rows(condition.format(t=T0), schema) == expected([0, 1, 2, 3], first, last)
    assert len(scan.chunks()) == chunks


def test_options_bound_the_ids_without_pushdown(
    spark: SparkSession, four: Path, tmp_path: Path
) -> None:
    """Each alone is tested with Selection; here, that they reach the scan."""
    options = {"startId": f"({T0 + 49}-0", "endingTimestamp": "2023-11-14T22:13:20.052"}
    scan = Scan(spark, four, tmp_path / "log", subscribe="sensor:1, sensor:3", **options)
    assert scan.rows() == expected([1, 3], 50, 52)
    assert len(scan.chunks()) == 2
    scan = Scan(spark, four, tmp_path / "log", subscribePattern="sensor:[^0-2]")
    assert scan.rows() == expected([3], 0, 199)
    assert len(scan.chunks()) == 4


def test_small_partitions_read_every_chunk_once(
    spark: SparkSession, four: Path, tmp_path: Path
) -> None:
    scan = Scan(spark, four, tmp_path / "log", minPartitions="5")
    assert scan.frame().rdd.getNumPartitions() == 5
    assert scan.rows() == expected([0, 1, 2, 3], 0, 199)
    assert scan.chunks() == list(range(16))


# ---------------------------------------------------------------- contents of a snapshot


def test_only_entries_visible_to_readers_are_rows(spark: SparkSession, tmp_path: Path) -> None:
    """Deleted ones and those below the head are not; nor are other kinds and databases."""
    long_meta = {"groups": [b"x" * 2000]}
    write_snapshot(
        tmp_path,
        [
            Stream(b"text", {}, kind="string"),
            Stream(b"empty", {}),
            Stream(b"other", entries(5), db=3),
            Stream(b"cut", entries(60), deleted=[(T0 + 59, 0)], first_kept=(T0 + 40, 0)),
            Stream(b"far", entries(60), first_kept=(T0 + 58, 0), more_meta=long_meta),
        ],
        EVERY_CHUNK,
    )
    kept = [("cut", n) for n in range(40, 59)] + [("far", 58), ("far", 59)]
    assert Scan(spark, tmp_path, tmp_path / "log").rows() == kept
    other = Scan(spark, tmp_path, tmp_path / "log", db="3")
    assert other.rows() == [("other", n) for n in range(5)]


def test_an_empty_snapshot_has_no_rows(either_spark: SparkSession, tmp_path: Path) -> None:
    write_snapshot(tmp_path, [])
    frame = either_spark.read.format("millstream").load(str(tmp_path))
    assert frame.where("key = 'x'").collect() == frame.collect() == []


def test_each_load_keeps_its_own_filters(either_spark: SparkSession, four: Path) -> None:
    """Also within one query, and in one without any. One DataFrame that is used twice would not:
    Spark 4.2 and 4.3 keep for it what was pushed last (docs/spark.md)."""

    def load() -> DataFrame:
        reader = either_spark.read.format("millstream").schema("key string")
        return reader.load(str(four))

    both = load().where("key = 'sensor:1'").union(load().where("key = 'sensor:2'"))
    assert sorted({row.key for row in both.collect()}) == ["sensor:1", "sensor:2"]
    assert both.count() == 400
    assert load().where("key = 'sensor:1' or length(key) = 7").count() == 200
    assert load().count() == 800


def test_small_streams_share_chunks_and_tasks(spark: SparkSession, tmp_path: Path) -> None:
    write_snapshot(tmp_path, [Stream(b"%d" % n, entries(20)) for n in range(2000)])
    scan = Scan(spark, tmp_path, tmp_path / "log")
    assert scan.frame().count() == 40_000
    assert scan.chunks() == [0, 1]


def test_a_snapshot_is_read_by_uri(spark: SparkSession, four: Path) -> None:
    reader = spark.read.format("millstream").option("subscribe", "sensor:1")
    for path in (f"file://{four}", f"file:{four}"):
        assert reader.load(path).count() == 200


def test_a_filter_on_a_field_is_left_to_spark(either_spark: SparkSession, four: Path) -> None:
    frame = either_spark.read.format("millstream").schema("key string, n int").load(str(four))
    found = frame.where((col("n") >= 198) & (col("key") == "sensor:2")).collect()
    assert found == [("sensor:2", 198), ("sensor:2", 199)]


# ---------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("strtId", "1", "unknown option 'strtid'; did you mean 'startId'?"),
        ("startId", "abc", "option 'startId' is 'abc'; it must be an ID like"),
        ("maxEntriesPerTrigger", "5", "does not belong to reading a snapshot"),
    ],
)
def test_an_option_that_does_not_fit_is_named(
    spark: SparkSession, four: Path, name: str, value: str, words: str
) -> None:
    assert words in error_of_option(spark, four, name, value)


def test_two_directories_at_once_are_refused(spark: SparkSession, four: Path) -> None:
    frame = spark.read.format("millstream").load([str(four), str(four)])
    assert "load one data directory at a time" in error_of(frame)


def test_a_directory_without_a_snapshot_is_described(spark: SparkSession, tmp_path: Path) -> None:
    reader = spark.read.format("millstream")
    nowhere = error_of(reader.load(str(tmp_path / "nowhere")))
    assert "nowhere is not a data directory of millstream" in nowhere
    store_manifest(SystemDisk(tmp_path), Manifest(None, ("journal-1.log",), 2, DIRECTORY))
    assert "has no snapshot yet" in error_of(reader.load(str(tmp_path)))
    manifest = tmp_path / "manifest"
    flip(manifest, 10)
    assert f"{manifest} is damaged at offset" in error_of(reader.load(str(tmp_path)))
    store_manifest(SystemDisk(tmp_path), Manifest("base-9.msnap", (), 10, DIRECTORY))
    assert "base-9.msnap is missing" in error_of(reader.load(str(tmp_path)))


def test_a_foreign_or_unfinished_base_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    path = write_snapshot(tmp_path, streams())
    frame = spark.read.format("millstream").load(str(tmp_path))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "the end is not that of a finished snapshot" in error_of(frame)
    path.write_bytes(b"REDIS0011" + bytes(200))
    assert "base-1.msnap is damaged at offset 0" in error_of(
        spark.read.format("millstream").load(str(tmp_path))
    )


def test_a_flipped_byte_is_an_error_only_in_reads_of_its_chunk(
    spark: SparkSession, tmp_path: Path
) -> None:
    path = write_snapshot(tmp_path, streams(), EVERY_CHUNK)
    file = SystemDisk(tmp_path).read(path.name)
    place = SnapshotReader(file).summary.chunks[5]
    file.close()
    flip(path, place.offset + 40)
    reader = spark.read.format("millstream")
    text = error_of(reader.load(str(tmp_path)))
    assert f"{path} is damaged at offset {place.offset}" in text
    assert "stream 'sensor:1'" in text
    good = reader.option("subscribe", "sensor:0,sensor:2,sensor:3").load(str(tmp_path))
    assert good.count() == 600


@pytest.mark.parametrize("change", [{"lengths": 1}, {"offsets": 1 << 20}])
def test_an_index_that_points_outside_its_chunk_is_an_error(
    tmp_path: Path, change: dict[str, int]
) -> None:
    write_snapshot(tmp_path, streams())
    (part,) = plan(Folder.of(str(tmp_path)), 0, Selection(), 1 << 30, 1)
    assert isinstance(part, ScanPartition)
    pieces = part.chunks[-1].pieces
    ((name, more),) = change.items()
    getattr(pieces, name)[-1] += more
    maker = BatchMaker(pa.schema([("key", pa.string())]))
    with pytest.raises(DataError, match=r"stream 'sensor:3' at .* pass the chunk's end"):
        list(PartitionReader(part).batches(maker))


def planned(spark: SparkSession, directory: Path) -> RDD[Row]:
    """The rows of a query whose plan is final, and that has read nothing yet."""
    rows = spark.read.format("millstream").load(str(directory)).rdd
    assert rows.getNumPartitions() == 1
    return rows


def test_a_snapshot_replaced_after_planning_is_an_error(
    spark: SparkSession, tmp_path: Path
) -> None:
    replaced = "was replaced by another after this query was planned"
    write_snapshot(tmp_path, streams())
    rows = planned(spark, tmp_path)
    write_snapshot(tmp_path, streams()[:1], number=2)
    with pytest.raises(Exception, match=replaced):
        rows.count()
    rows = planned(spark, tmp_path)
    write_base(tmp_path, streams(), 2)  # the same name, another snapshot
    with pytest.raises(Exception, match=replaced):
        rows.count()
    assert planned(spark, tmp_path).count() == 800
