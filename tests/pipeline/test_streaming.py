"""Structured Streaming from a live server: what a batch holds, its limits, and what happens when
streams come, go, or lose entries while the query is not looking."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.pipeline.direct import DirectQuery, rows_in
from tests.support.client import RawClient
from tests.support.server import Server

from millstream.pipeline import positions
from millstream.pipeline.lag import lag
from millstream.pipeline.range_plan import DataLossError
from millstream.pipeline.server_connection import ServerError
from millstream.pipeline.source_options import OptionError

pytestmark = [
    pytest.mark.timeout(300),
]


@pytest.fixture
def query(server: Server) -> DirectQuery:
    return DirectQuery(server, startingOffsets="earliest")


PUT_BACK = "10 entries had been added to it up to 10-0, and now it has had 7 in all"


def append(client: RawClient, key: str, numbers: range, command: str = "TAPPEND") -> None:
    """Entries with the field n; ids are the server's."""
    star = ["*"] if command == "XADD" else []
    client.pipeline([(command, key, *star, "n", str(number)) for number in numbers])


def append_with_ids(client: RawClient, key: str, numbers: range) -> None:
    """Entries with the field n, which is the time of their ids too."""
    client.pipeline([("XADD", key, f"{number}-0", "n", str(number)) for number in numbers])


def rows_of(key: str, numbers: range) -> list[str]:
    return [f"{key} {number}" for number in numbers]


def run_in_spark(
    spark: SparkSession, server: Server, checkpoint: Path, **options: Any
) -> list[list[str]]:
    """A query that reads all present entries; the rows of each of its batches."""
    batches: list[list[str]] = []

    def keep(rows: Any, _: int) -> None:
        batches.append([f"{row.key} {row.n}" for row in rows.collect()])

    address = f"redis://127.0.0.1:{server.port}"
    entries = (
        spark.readStream.format("millstream")
        .schema("key string, id string, n string")
        .options(**{"server": address, "subscribePattern": "s:*", **options})
        .load()
    )
    writer = entries.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()
    return batches


def test_limited_batches_reach_the_end_and_include_new_streams(
    spark: SparkSession, server: Server, client: RawClient, tmp_path: Path
) -> None:
    append(client, "s:a", range(50))
    append(client, "s:b", range(3))
    append(client, "other", range(5))
    batches = run_in_spark(
        spark, server, tmp_path, startingOffsets="earliest", maxEntriesPerTrigger=20
    )
    assert [len(rows) for rows in batches] == [20, 20, 13]
    assert batches[0] == rows_of("s:a", range(17)) + rows_of("s:b", range(3))
    append(client, "s:a", range(50, 53), "XADD")
    append(client, "s:c", range(2))
    again = run_in_spark(spark, server, tmp_path)
    assert again == [rows_of("s:a", range(50, 53)) + rows_of("s:c", range(2))]


def test_spark_shows_a_loss_in_the_querys_error(
    spark: SparkSession, server: Server, client: RawClient, tmp_path: Path
) -> None:
    append(client, "s:a", range(10))
    client.call("XTRIM", "s:a", "MAXLEN", "4")
    wanted = r"entries of 's:a' after 1-0 were evicted .* set the option failOnDataLoss to false"
    with pytest.raises(StreamingQueryException, match=wanted):
        run_in_spark(spark, server, tmp_path, startingOffsets='{"s:a": "1-0"}')


def test_each_run_continues_after_the_last_and_has_new_streams(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(5))
    append(client, "other", range(5))
    assert query.run() == [rows_of("s:a", range(5))]
    append(client, "s:a", range(5, 8), "XADD")
    append(client, "s:b", range(2))
    assert query.run() == [rows_of("s:a", range(5, 8)) + rows_of("s:b", range(2))]
    assert query.run() == []


def test_a_trigger_limits_all_streams_alike(query: DirectQuery, client: RawClient) -> None:
    append(client, "s:a", range(100))
    append(client, "s:b", range(3))
    batches = query.run(maxEntriesPerTrigger=20, maxEntriesPerPartition=7)
    assert [len(rows) for rows in batches] == [20, 20, 20, 20, 20, 3]
    assert batches[0] == rows_of("s:a", range(17)) + rows_of("s:b", range(3))
    assert [row for rows in batches for row in rows if "s:a" in row] == rows_of("s:a", range(100))


def test_entries_after_available_now_began_are_left_for_later(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(10))
    reader = query.start(maxEntriesPerTrigger=6)
    reader.prepareForTriggerAvailableNow()
    append(client, "s:a", range(10, 20))
    append(client, "s:new", range(5))
    batches = []
    while query.plan(reader):
        batches.append(query.finish(reader))
    assert batches == [rows_of("s:a", range(6)), rows_of("s:a", range(6, 10))]
    assert query.run() == [rows_of("s:a", range(10, 20)) + rows_of("s:new", range(5))]


def test_a_planned_batch_has_the_same_rows_after_a_restart(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(300))
    query.plan(query.start(maxEntriesPerTrigger=100))
    append(client, "s:a", range(300, 400))
    append(client, "s:b", range(10))
    assert query.finish(query.start(maxEntriesPerTrigger=7)) == rows_of("s:a", range(100))


def test_a_planned_batch_keeps_its_partitions_after_a_change(
    query: DirectQuery, client: RawClient
) -> None:
    """A sink knows a row that it has already by its place in its partition."""
    append(client, "s:a", range(300))
    reader = query.start(maxEntriesPerPartition=70)
    query.plan(reader)
    assert query.planned is not None
    begin, end = reader.initialOffset(), json.loads(query.planned)
    parts = rows_in(reader, reader.partitions(begin, end))
    assert len(parts) == 5
    for options in ({"maxEntriesPerPartition": 20}, {"minPartitions": 2}):
        again = query.start(**options)
        assert rows_in(again, again.partitions(begin, end)) == parts
    append(client, "s:a", range(300, 340))
    query.finished = query.planned
    query.plan(again)
    assert query.planned is not None
    assert len(again.partitions(end, json.loads(query.planned))) == 2


def test_the_first_batch_keeps_its_start_when_latest_moves(
    server: Server, client: RawClient
) -> None:
    query = DirectQuery(server)
    append(client, "s:a", range(10))
    reader = query.start()
    initial = reader.initialOffset()
    append(client, "s:a", range(10, 20))
    reader.initialOffset = lambda: initial  # type: ignore[method-assign]
    assert query.plan(reader)
    append(client, "s:a", range(20, 30))
    assert query.finish(query.start()) == rows_of("s:a", range(10, 20))
    assert query.run() == [rows_of("s:a", range(20, 30))]


def test_entries_evicted_before_they_were_read_are_counted(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(10))
    query.run()
    append(client, "s:a", range(10, 30))
    client.call("XTRIM", "s:a", "MAXLEN", "4")
    with pytest.raises(DataLossError, match=r"16 entries of 's:a' after \d+-\d+ were evicted"):
        query.run()
    assert query.run(failOnDataLoss=False) == [rows_of("s:a", range(26, 30))]


def test_an_emptied_stream_is_a_loss_under_a_limit_too(
    query: DirectQuery, client: RawClient
) -> None:
    query.options["maxEntriesPerTrigger"] = 6
    append_with_ids(client, "s:a", range(1, 6))
    query.run()
    append_with_ids(client, "s:a", range(6, 26))
    append_with_ids(client, "s:b", range(1, 9))
    client.call("XTRIM", "s:a", "MAXLEN", "0")
    with pytest.raises(DataLossError, match="20 entries of 's:a' after 5-0 were evicted"):
        query.run()
    assert query.run(failOnDataLoss=False) == [rows_of("s:b", range(1, 7)), rows_of("s:b", (7, 8))]
    assert query.run() == []


def test_entries_evicted_after_planning_are_a_loss(query: DirectQuery, client: RawClient) -> None:
    append(client, "s:a", range(1000))
    reader = query.start()
    query.plan(reader)
    assert query.planned is not None
    (part,) = reader.partitions({"streams": {}}, json.loads(query.planned))
    client.call("XTRIM", "s:a", "MAXLEN", "400")
    with pytest.raises(DataLossError, match="up to 600 entries of 's:a' after"):
        list(reader.read(part))


def test_entries_that_were_read_may_be_evicted(query: DirectQuery, client: RawClient) -> None:
    append(client, "s:a", range(10))
    query.run()
    client.call("XTRIM", "s:a", "MAXLEN", "0")
    append(client, "s:a", range(10, 12))
    assert query.run() == [rows_of("s:a", range(10, 12))]


def test_a_recreated_stream_is_an_error_or_read_from_its_start(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(10))
    query.run()
    client.call("DEL", "s:a")
    with pytest.raises(DataLossError, match="the stream 's:a' was deleted; its entries"):
        query.run()
    append(client, "s:a", range(100, 103))
    with pytest.raises(DataLossError, match="'s:a' was deleted and created again"):
        query.run()
    assert query.run(failOnDataLoss=False) == [rows_of("s:a", range(100, 103))]
    append(client, "s:a", range(103, 105))
    assert query.run() == [rows_of("s:a", range(103, 105))]


def test_a_restored_older_server_is_an_error_or_is_read_on(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """As from a copy of its directory: later entries may have IDs that were read before."""
    server = new_server().start()
    query = DirectQuery(server, startingOffsets="earliest")
    with server.client() as client:
        append_with_ids(client, "s:a", range(1, 6))
    server.stop()
    shutil.copytree(server.directory, tmp_path / "copy")
    server.start()
    with server.client() as client:
        append_with_ids(client, "s:a", range(6, 11))
    assert query.run() == [rows_of("s:a", range(1, 11))]
    late = DirectQuery(server, startingOffsets="earliest")
    late.plan(late.start())
    server.stop()
    shutil.rmtree(server.directory)
    shutil.copytree(tmp_path / "copy", server.directory)
    server.start()
    with server.client() as client:
        append_with_ids(client, "s:a", range(6, 8))
        with pytest.raises(DataLossError, match=PUT_BACK):
            query.run()
        with pytest.raises(DataLossError, match=PUT_BACK):
            late.finish(late.start())
        query.run(failOnDataLoss=False)
        append_with_ids(client, "s:a", range(8, 10))
    assert query.run() == [rows_of("s:a", range(8, 10))]


def test_a_stream_that_is_no_longer_requested_is_no_loss(
    query: DirectQuery, client: RawClient
) -> None:
    for key in ("s:a", "s:b"):
        append(client, key, range(3))
    query.run()
    append(client, "s:a", range(3, 5))
    append(client, "s:b", range(3, 5))
    assert query.run(subscribePattern="s:a*") == [rows_of("s:a", range(3, 5))]
    client.call("DEL", "s:b")
    append(client, "s:a", range(5, 6))
    assert query.run() == [rows_of("s:a", range(5, 6))]


def test_offsets_of_an_unread_stream_are_refused_at_the_start(
    query: DirectQuery, client: RawClient
) -> None:
    named = '{"other": "5-0"}'
    with pytest.raises(OptionError, match="startingOffsets' names the stream 'other'"):
        query.run(startingOffsets=named)
    append(client, "s:a", range(3))
    query.run()
    append(client, "s:a", range(3, 5))
    assert query.run(startingOffsets=named) == [rows_of("s:a", range(3, 5))]


def test_named_offsets_are_the_start(query: DirectQuery, client: RawClient) -> None:
    append(client, "s:a", range(10))
    id_ = client.pipeline([("TAPPEND", "s:b", "n", str(number)) for number in range(4)])[1]
    assert isinstance(id_, bytes)
    named = f'{{"s:a": "latest", "s:b": "{id_.decode()}"}}'
    assert query.run(startingOffsets=named) == [rows_of("s:b", range(2, 4))]


def test_a_query_waits_for_a_stream_that_does_not_exist_yet(
    server: Server, client: RawClient
) -> None:
    query = DirectQuery(server)
    query.options = {"server": query.options["server"], "subscribe": "later"}
    reader = query.start()
    assert not query.plan(reader)
    query.finished = query.planned  # Spark's first batch may be empty
    append(client, "later", range(3))
    assert query.run() == [rows_of("later", range(3))]


def test_keys_and_values_may_be_any_bytes(query: DirectQuery, client: RawClient) -> None:
    client.call("TAPPEND", b"s:\xff", "n", b"\xfe")
    assert query.run() == [["s:\ufffd \ufffd"]]
    client.call("TAPPEND", b"s:\xff", "n", "more")
    assert query.run() == [["s:\ufffd more"]]


def test_unpacked_offsets_in_a_checkpoint_continue_a_large_query(
    query: DirectQuery, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [f"s:{number:03}" for number in range(positions.PLAIN_MAX + 20)]
    client.pipeline([("TAPPEND", key, "n", "1") for key in keys])
    with monkeypatch.context() as older:
        older.setattr(positions, "PLAIN_MAX", len(keys))
        reader = query.start(maxEntriesPerTrigger=70)
        query.plan(reader)
        assert query.planned is not None
        assert keys[0] in query.planned
    assert len(query.finish(query.start())) == 70
    assert query.run() == [[f"{key} 1" for key in keys[70:]]]
    assert query.planned is not None
    assert keys[0] not in query.planned
    client.call("TAPPEND", keys[5], "n", "2")
    assert query.run() == [[f"{keys[5]} 2"]]
    assert query.run() == []


def test_progress_has_the_ends_of_the_streams(query: DirectQuery, client: RawClient) -> None:
    append(client, "s:a", range(10))
    reader = query.start(maxEntriesPerTrigger=4)
    query.plan(reader)
    assert reader.reportLatestOffset()["streams"]["s:a"]["added"] == 10


def test_a_query_reports_its_lag(query: DirectQuery, client: RawClient) -> None:
    append(client, "s:a", range(10))
    append(client, "s:b", range(3))
    reader = query.start(maxEntriesPerTrigger=4)
    query.plan(reader)
    found = reader.reportLatestOffset()["metrics"]
    assert (found["streams"], found["streamsBehindLatest"]) == (2, 2)
    assert found["offsetsBehindLatest"] == 9
    assert (found["minOffsetsBehindLatest"], found["maxOffsetsBehindLatest"]) == (1, 8)
    first_ms = int(client.call("XRANGE", "s:a", "-", "+", "COUNT", "1")[0][0].split(b"-")[0])  # type: ignore[index, union-attr]
    seconds = int(client.call("TIME")[0])  # type: ignore[index, arg-type]
    assert 0 <= found["oldestEntryAgeMs"] <= (seconds + 1) * 1000 - first_ms
    query.finish(reader)
    query.run()
    reader = query.start()
    query.plan(reader)
    found = reader.reportLatestOffset()["metrics"]
    assert (found["offsetsBehindLatest"], found["oldestEntryAgeMs"]) == (0, None)
    assert query.planned is not None
    append(client, "s:b", range(5))
    assert lag(query.planned, **query.options)["offsetsBehindLatest"] == 5


def test_a_repeated_batch_reports_the_lag_of_that_batch(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(10))
    query.plan(query.start(maxEntriesPerTrigger=4))
    reader = query.start()
    assert query.planned is not None
    reader.partitions(reader.initialOffset(), json.loads(query.planned))
    assert reader.reportLatestOffset()["metrics"]["offsetsBehindLatest"] == 6


def test_a_trigger_waits_for_enough_entries_but_not_to_catch_up(
    query: DirectQuery, client: RawClient
) -> None:
    append(client, "s:a", range(3))
    limits = {"minOffsetsPerTrigger": 5, "maxOffsetsPerTrigger": 6}
    reader = query.start(**limits)
    assert query.plan(reader)  # the first trigger does not wait
    assert query.finish(reader) == rows_of("s:a", range(3))
    append(client, "s:a", range(3, 6))
    append(client, "s:b", range(1))
    assert not query.plan(reader)
    once = json.dumps(reader.latestOffset(json.loads(query.finished or ""), ReadAllAvailable()))
    assert once != query.finished
    append(client, "s:b", range(1, 8))
    assert query.plan(reader)
    assert len(query.finish(reader)) == 6
    assert query.plan(reader)
    assert len(query.finish(reader)) == 5
    append(client, "s:b", range(8, 9))
    assert query.run(**limits) == [rows_of("s:b", range(8, 9))]


def test_streams_start_at_their_times(query: DirectQuery, client: RawClient) -> None:
    for key in ("s:a", "s:b", "s:c"):
        append_with_ids(client, key, range(1, 9))
    times = '{"s:a": 7, "s:b": "1970-01-01T00:00:00.009Z"}'
    assert query.run(startingOffsetsByTimestamp=times, startingOffsets="latest") == [
        rows_of("s:a", range(7, 9))
    ]
    append_with_ids(client, "s:b", range(9, 10))
    assert query.run() == [rows_of("s:b", range(9, 10))]


def test_times_of_a_stream_that_is_not_read_are_refused(query: DirectQuery) -> None:
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp' names the stream 'other'"):
        query.run(startingOffsetsByTimestamp='{"other": 5}')


def test_progress_shows_the_lag_while_spark_waits_for_entries(
    spark: SparkSession, server: Server, client: RawClient, tmp_path: Path
) -> None:
    append(client, "s:a", range(50))
    entries = (
        spark.readStream.format("millstream")
        .schema("n int")
        .option("server", f"redis://127.0.0.1:{server.port}")
        .option("subscribe", "s:a")
        .option("startingOffsets", "earliest")
        .option("minOffsetsPerTrigger", "10")
        .option("maxOffsetsPerTrigger", "20")
        .load()
    )
    writer = entries.writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    query = writer.trigger(processingTime="0 seconds").start()
    try:
        query.processAllAvailable()
        append(client, "s:a", range(50, 59))
        query.processAllAvailable()
        found = [
            (one["numInputRows"], json.loads(one["sources"][0]["latestOffset"])["metrics"])
            for one in query.recentProgress
            if one["numInputRows"]
        ]
    finally:
        query.stop()
    assert [(rows, metrics["offsetsBehindLatest"]) for rows, metrics in found] == [
        (20, 30),
        (20, 10),
        (10, 0),
    ]


def test_an_unreachable_server_is_named(new_server: Callable[..., Server]) -> None:
    gone = new_server("gone").start()
    gone.kill()
    with pytest.raises(ServerError, match=rf"redis://127.0.0.1:{gone.port} did not answer for 1 s"):
        DirectQuery(gone).run(timeout=1)
