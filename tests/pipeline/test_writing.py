"""Writing a DataFrame to a live server: each row once, however often Spark tries; errors that name
the row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.pipeline.row_layout import RowError
from millstream.pipeline.row_writer import BatchWriter, Written
from millstream.pipeline.source_options import WRITE, SourceOptions

pytestmark = [
    pytest.mark.timeout(300),
]

Entry = dict[str, str]


def save(frame: DataFrame, server: Server, mode: str = "append", **options: Any) -> None:
    address = f"redis://127.0.0.1:{server.port}"
    frame.write.format("millstream").mode(mode).options(server=address, **options).save()


def entries(client: RawClient, key: str) -> list[tuple[str, Entry]]:
    """The stream's entries: id and fields."""
    found = []
    for entry in as_list(client.call("TRANGE", key, "-", "+")):
        id_, *words = (as_bytes(word).decode() for word in as_list(entry))
        found.append((id_, dict(zip(words[::2], words[1::2], strict=True))))
    return found


def values(client: RawClient, key: str, field: str = "n") -> list[str]:
    return [fields[field] for _, fields in entries(client, key)]


def test_columns_become_fields_in_the_order_of_the_rows(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    rows = [(n, n / 4, None if n % 2 else "even") for n in range(3000)]
    frame = spark.createDataFrame(rows, "n int, x double, w string").coalesce(1)
    save(frame, server, key="out")
    got = [fields for _, fields in entries(client, "out")]
    assert len(got) == 3000
    assert got[:3] == [
        {"n": "0", "x": "0", "w": "even"},
        {"n": "1", "x": "0.25"},
        {"n": "2", "x": "0.5", "w": "even"},
    ]
    assert [fields["n"] for fields in got] == [str(n) for n in range(3000)]


def test_times_do_not_depend_on_the_session_zone(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.sql("select timestamp'2026-07-01 12:00:00.25' as t")
        save(frame, server, key="out")
        assert values(client, "out", "t") == ["2026-07-01T10:00:00.250000Z"]
        reader = spark.read.format("millstream").schema("t timestamp")
        address = f"redis://127.0.0.1:{server.port}"
        again = reader.options(server=address, subscribe="out").load()
        assert again.collect() == frame.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_times_of_all_years_that_are_written_are_read(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    """Their texts in Spark, because Python's dates do not have these years."""
    frame = spark.sql(
        "select timestamp'12345-06-07 01:02:03' a, date'12345-06-07' b,"
        " timestamp_ntz'-0044-03-15 12:00:00' n, timestamp_micros(-9223372036854775808) m"
    )
    save(frame, server, key="out")
    (fields,) = (fields for _, fields in entries(client, "out"))
    assert fields["a"] == "+12345-06-07T01:02:03.000000Z"
    reader = spark.read.format("millstream").option("mode", "FAILFAST")
    reader = reader.schema("a timestamp, b date, n timestamp_ntz, m timestamp")
    again = reader.options(server=f"redis://127.0.0.1:{server.port}", subscribe="out").load()
    texts = [f"cast({name} as string)" for name in again.columns]
    assert again.selectExpr(*texts).collect() == frame.selectExpr(*texts).collect()


def test_a_column_names_the_stream_and_a_token_makes_reruns_safe(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    frame = spark.range(100).selectExpr("concat('out:', id % 3) as key", "id as n")
    for _ in range(2):
        save(frame, server, dedupeToken="monday")
    got = [int(n) for part in range(3) for n in values(client, f"out:{part}")]
    assert sorted(got) == list(range(100))
    save(frame, server, dedupeToken="tuesday")
    save(frame, server)
    save(frame, server)
    assert len(values(client, "out:0")) == 4 * 34


def test_rows_are_written_elsewhere_with_their_ids_and_again(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    client.pipeline([("XADD", "from", f"5-{n}", "b", str(n), "a", "x") for n in range(1, 1201)])
    address = f"redis://127.0.0.1:{server.port}"
    source = spark.read.format("millstream").options(server=address, subscribe="from").load()
    for _ in range(2):
        save(source, server, key="to")
    assert entries(client, "to") == entries(client, "from")


def write_directly(
    server: Server, rows: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, **options: str
) -> Written:
    """A write as Spark's one task would do it, without a JVM; every value a string."""
    schema = StructType([StructField(name, StringType()) for name in rows[0]])
    address = f"redis://127.0.0.1:{server.port}"
    writer = BatchWriter(schema, SourceOptions({"server": address} | options, WRITE), False)
    monkeypatch.setattr("millstream.pipeline.row_writer._partition", lambda: 0)
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([(name, pa.string()) for name in rows[0]]))
    return writer.write(iter([batch]))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("k", "1"), (None, "2")], "row 1: the key is null"),
        ([("k", "1"), ("word", "2")], "row 1, key 'word': WRONGTYPE"),
    ],
)
def test_a_row_that_cannot_be_written_is_named(
    server: Server,
    client: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[tuple[str | None, str]],
    message: str,
) -> None:
    client.call("SET", "word", "x")
    made = [{"key": key, "n": n} for key, n in rows]
    with pytest.raises(RowError, match=rf"{message}.*\(partition 0\)"):
        write_directly(server, made, monkeypatch)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([("9-0", "a"), ("8-0", "b")], "row 1: the id of 8-0 of 'out' is not above .* last, 9-0"),
        ([("9-0", "a"), ("9-0", "b")], "row 1: 9-0 of 'out' exists with different fields"),
        ([("9-0", "a"), ("x", "b")], "row 1: 'x' is not an entry ID"),
        ([("0-0", "a")], "row 0: '0-0' is not an entry ID"),
    ],
)
def test_an_id_that_cannot_be_appended_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch, rows: list[tuple[str, str]], message: str
) -> None:
    made = [{"id": id_, "n": n} for id_, n in rows]
    with pytest.raises(RowError, match=message):
        write_directly(server, made, monkeypatch, key="out")


def test_evicted_rows_with_ids_are_not_missed_on_a_rerun(
    server: Server, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"{n}-0", "n": str(n)} for n in range(1, 10)]
    assert write_directly(server, rows, monkeypatch, key="out") == Written(9, 0)
    client.call("XTRIM", "out", "MAXLEN", "2")
    assert write_directly(server, rows, monkeypatch, key="out") == Written(0, 9)


def test_a_server_restart_during_the_run_costs_no_row(
    durable_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for part in range(4):
            if part:
                durable_server.restart("SIGKILL")
            numbers = [str(1000 * part + n) for n in range(1000)]
            yield pa.RecordBatch.from_pydict({"n": numbers})

    monkeypatch.setattr("millstream.pipeline.row_writer._partition", lambda: 0)
    address = f"redis://127.0.0.1:{durable_server.port}"
    options = SourceOptions({"server": address, "key": "out"}, WRITE)
    writer = BatchWriter(StructType([StructField("n", StringType())]), options, False)
    assert writer.write(batches()) == Written(4000, 0)
    with durable_server.client() as client:
        assert values(client, "out") == [str(n) for n in range(4000)]


def test_sorted_rows_are_written_once_in_any_order(
    server: Server, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"n": f"{n:04}", "m": str(n % 7)} for n in range(1500)]
    options = {"key": "out", "dedupeToken": "t", "sortRows": "true"}
    assert write_directly(server, rows, monkeypatch, **options) == Written(1500, 0)
    assert write_directly(server, rows[::-1], monkeypatch, **options) == Written(0, 1500)
    assert values(client, "out") == [f"{n:04}" for n in range(1500)]


def test_overwriting_is_refused(spark: SparkSession, server: Server) -> None:
    with pytest.raises(Exception, match="a stream is only ever appended to"):
        save(spark.range(1), server, mode="overwrite", key="out")


def test_a_server_that_ends_during_a_write_is_named(
    spark: SparkSession, new_server: Callable[..., Server]
) -> None:
    server = new_server("gone").start()

    def kill_when_it_has_some() -> None:
        with server.client() as client:
            wait_until(lambda: client.call("XLEN", "out"), what="rows", deadline_s=60)
            server.kill()

    killer = threading.Thread(target=kill_when_it_has_some)
    killer.start()
    gone = rf"rows \d+ to \d+: .*:{server.port} did not answer for 1 s"
    with pytest.raises(Exception, match=gone):
        save(spark.range(0, 500_000, 1, 1).toDF("n"), server, key="out", timeout=1)
    killer.join()
    server.start()
    with server.client() as client:
        got = values(client, "out")
    assert got == [str(n) for n in range(len(got))]
    assert 0 < len(got) < 500_000
