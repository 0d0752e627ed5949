"""Queries that read replicas: a replica's directory and server, a move between servers, and what a
query does while a replica lags."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from redis import Redis
from tests.pipeline.direct import DirectQuery, Rows, batch_read, rows_in, url
from tests.support.gate import Gate
from tests.support.replicas import Replicas, has_same
from tests.support.waiting import wait_until

from millstream.pipeline.exporting import ExportRequest, export_to
from millstream.pipeline.range_plan import DataLossError
from millstream.pipeline.replica_wait import ReplicaLagError
from millstream.pipeline.row_writer import BatchWriter
from millstream.pipeline.server_connection import ServerError
from millstream.pipeline.source_options import WRITE, SourceOptions


def append(client: Redis, numbers: range, key: str = "s:a") -> None:
    for number in numbers:
        client.xadd(key, {"n": str(number)}, id=f"{number + 1}-0")


def rows_of(numbers: range, key: str = "s:a") -> Rows:
    return [f"{key} {number}" for number in numbers]


class LaggingPair:
    """A primary, and a replica that received the first entries only. `catch_up` ends the lag."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.primary = replicas.start("a")
        self.gate = Gate(replicas.servers["a"].port)
        self.replica = replicas.start("b", replicaof=f"127.0.0.1 {self.gate.port}")
        append(self.primary, range(5))
        wait_until(has_same(self.primary, self.replica, "s:a"))
        self.gate.requests.hold()
        self.gate.replies.hold()
        append(self.primary, range(5, 8))
        append(self.primary, range(3), "s:new")

    @property
    def address(self) -> dict[str, str]:
        """The option of a query that moves to the replica."""
        return {"server": url(self.replicas.servers["b"])}

    def catch_up(self) -> None:
        self.gate.requests.release()
        self.gate.replies.release()

    def catch_up_when_asked(self) -> threading.Thread:
        """End the lag as soon as a query has asked for the replica's role, so that it waits."""

        def watch() -> None:
            wait_until(lambda: "cmdstat_hello" in self.replica.info("commandstats"))
            self.catch_up()

        self.replica.config_resetstat()
        thread = threading.Thread(target=watch)
        thread.start()
        return thread


@pytest.fixture
def pair(replicas: Replicas) -> Iterator[LaggingPair]:
    made = LaggingPair(replicas)
    yield made
    made.gate.close()


@pytest.fixture
def query(pair: LaggingPair) -> DirectQuery:
    """A query that has read the primary to its end."""
    query = DirectQuery(pair.replicas.servers["a"], startingOffsets="earliest")
    assert query.run() == [rows_of(range(8)) + rows_of(range(3), "s:new")]
    return query


def test_a_query_moved_to_a_replica_waits_for_the_data_it_read(
    pair: LaggingPair, query: DirectQuery
) -> None:
    query.options |= pair.address
    waiting = pair.catch_up_when_asked()
    assert query.run() == []
    waiting.join()
    append(pair.primary, range(8, 10))
    wait_until(has_same(pair.primary, pair.replica, "s:a"))
    assert query.run() == [rows_of(range(8, 10))]


def test_a_query_moves_back_after_a_failover(pair: LaggingPair, query: DirectQuery) -> None:
    pair.catch_up()
    wait_until(has_same(pair.primary, pair.replica, "s:a", "s:new"))
    pair.replica.execute_command("REPLICAOF", "NO", "ONE")
    pair.replicas.follow("a", "b")
    append(pair.replica, range(8, 10))
    query.options |= pair.address
    assert query.run() == [rows_of(range(8, 10))]
    wait_until(has_same(pair.replica, pair.primary, "s:a"))
    query.options["server"] = url(pair.replicas.servers["a"])
    assert query.run() == []
    append(pair.replica, range(10, 12))
    wait_until(has_same(pair.replica, pair.primary, "s:a"))
    assert query.run() == [rows_of(range(10, 12))]


def test_a_batch_planned_on_the_primary_is_read_from_a_replica(
    pair: LaggingPair,
) -> None:
    query = DirectQuery(pair.replicas.servers["a"], startingOffsets="earliest")
    assert query.plan(query.start())
    query.options |= pair.address
    waiting = pair.catch_up_when_asked()
    assert query.finish(query.start()) == rows_of(range(8)) + rows_of(range(3), "s:new")
    waiting.join()


def test_a_task_waits_for_the_end_of_its_range(pair: LaggingPair) -> None:
    """As when tasks reach another server than the driver, through a proxy."""
    query = DirectQuery(pair.replicas.servers["a"], startingOffsets="earliest")
    planner = query.start()
    assert query.plan(planner)
    assert query.planned is not None
    partitions = planner.partitions(planner.initialOffset(), json.loads(query.planned))
    reader = query.start(**pair.address)
    waiting = pair.catch_up_when_asked()
    rows = [row for part in rows_in(reader, partitions) for row in part]
    assert rows == rows_of(range(8)) + rows_of(range(3), "s:new")
    waiting.join()


def test_a_task_reports_a_server_that_lacks_the_end_of_its_range(
    pair: LaggingPair,
) -> None:
    query = DirectQuery(
        pair.replicas.servers["a"], subscribePattern="s:a", startingOffsets="earliest"
    )
    planner = query.start()
    assert query.plan(planner)
    assert query.planned is not None
    partitions = planner.partitions(planner.initialOffset(), json.loads(query.planned))
    reader = query.start(replicaLagTimeout="100ms", **pair.address)
    wanted = r"not received all entries that were read of 's:a' within"
    with pytest.raises(ReplicaLagError, match=wanted):
        rows_in(reader, partitions)
    pair.replica.execute_command("REPLICAOF", "NO", "ONE", "INDEPENDENT")
    with pytest.raises(DataLossError, match=r"'s:a' ends at 5-0 .* needs its entries up to 8-0"):
        rows_in(reader, partitions)


@pytest.mark.parametrize("is_fatal", [False, True])
def test_a_lag_is_no_loss(pair: LaggingPair, query: DirectQuery, is_fatal: bool) -> None:
    """A query that continued from the end of the replica would read the entries again later."""
    query.options |= pair.address | {"failOnDataLoss": is_fatal}
    wanted = (
        r"has not received all entries that were read of 's:a' within 0.1 s: start the query again"
    )
    with pytest.raises(ReplicaLagError, match=wanted):
        query.run(replicaLagTimeout="100ms")
    pair.catch_up()
    wait_until(has_same(pair.primary, pair.replica, "s:a", "s:new"))
    assert query.run() == []


def test_a_stream_that_was_not_created_again_yet_is_a_lag(pair: LaggingPair) -> None:
    pair.primary.delete("s:a")
    append(pair.primary, range(2))
    query = DirectQuery(
        pair.replicas.servers["a"], subscribePattern="s:a", startingOffsets="earliest"
    )
    planner = query.start()
    assert query.plan(planner)
    assert query.planned is not None
    partitions = planner.partitions(planner.initialOffset(), json.loads(query.planned))
    query.options |= pair.address | {"failOnDataLoss": False}
    with pytest.raises(ReplicaLagError):
        rows_in(query.start(replicaLagTimeout="100ms"), partitions)
    with pytest.raises(ReplicaLagError):
        query.finish(query.start(replicaLagTimeout="100ms"))
    waiting = pair.catch_up_when_asked()
    assert rows_in(query.start(), partitions) == [rows_of(range(2))]
    waiting.join()
    assert query.finish(query.start()) == rows_of(range(2))


def test_a_stream_that_is_missing_is_a_loss(pair: LaggingPair, query: DirectQuery) -> None:
    """It may have been deleted."""
    query.options |= pair.address | {"subscribePattern": "s:new"}
    with pytest.raises(DataLossError, match="the stream 's:new' was deleted"):
        query.run(replicaLagTimeout="100ms")


def test_entries_missing_on_a_promoted_replica_are_a_loss(
    pair: LaggingPair, query: DirectQuery
) -> None:
    pair.replica.execute_command("REPLICAOF", "NO", "ONE", "INDEPENDENT")
    query.options |= pair.address | {"subscribePattern": "s:a"}
    wanted = "8 entries had been added to it up to 8-0, and now it has had 5 in all"
    with pytest.raises(DataLossError, match=wanted):
        query.run(replicaLagTimeout="1h")


def test_a_batch_read_of_a_replica_is_that_of_its_primary(
    pair: LaggingPair, tmp_path: Path
) -> None:
    pair.catch_up()
    wait_until(has_same(pair.primary, pair.replica, "s:a", "s:new"))
    servers = pair.replicas.servers
    read = [batch_read(servers[name], subscribePattern="s:*") for name in ("a", "b")]
    assert read[0] == read[1] == [rows_of(range(8)) + rows_of(range(3), "s:new")]


def test_a_replicas_directory_is_read_like_any_other(
    replicas: Replicas, tmp_path: Path, spark: SparkSession
) -> None:
    """Also while its base is the one that it received."""
    primary, replica = replicas.start("a"), replicas.start("b")
    append(primary, range(5))
    primary.bgsave()
    replicas.follow("b", "a")
    wait_until(has_same(primary, replica, "s:a"))
    directory = str(replicas.servers["b"].directory)
    reader = spark.read.format("millstream").schema("key string, n int").load(directory)
    assert sorted(row.n for row in reader.collect()) == list(range(5))
    append(primary, range(5, 7))
    wait_until(has_same(primary, replica, "s:a"))
    replica.save()
    rows = export_to(
        str(tmp_path / "out.jsonl"), ExportRequest(directory, "jsonl"), lambda *_: None
    )
    assert rows == 7


def test_a_write_to_a_replica_is_refused_with_advice(
    pair: LaggingPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.pipeline.row_writer._partition", lambda: 0)
    schema = StructType([StructField("n", StringType())])
    options = SourceOptions(pair.address | {"key": "s:a"}, WRITE)
    batch = pa.RecordBatch.from_pydict({"n": ["1"]})
    wanted = (
        r"is a replica, which takes no writes: set the option 'server' to its primary "
        r"\(You can't write against a read only replica.\)"
    )
    with pytest.raises(ServerError, match=wanted):
        BatchWriter(schema, options, False).write(iter([batch]))
