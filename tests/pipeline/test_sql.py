"""SQL: tables and temporary views of a server and of a data directory, and what Spark does not hand
to a Python source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.direct import url
from tests.support.client import RawClient
from tests.support.server import Server

from millstream.pipeline.source_options import OptionError
from millstream.pipeline.table import METADATA, table_schema

pytestmark = [
    pytest.mark.timeout(300),
]


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[SparkSession]:
    """A session without tables, also afterwards."""
    yield spark
    for table in spark.catalog.listTables():
        kind = "VIEW" if table.isTemporary else "TABLE"
        spark.sql(f"DROP {kind} {table.name}")


def numbers(spark: SparkSession, statement: str) -> list[int]:
    return sorted(row.n for row in spark.sql(statement).collect())


def fill(client: RawClient, count: int) -> None:
    client.pipeline([("XADD", "s", f"{number}-0", "n", str(number)) for number in range(1, count)])


def using(server: Server, **options: str) -> str:
    """Of a CREATE: the source and its options."""
    given = ", ".join(f"{name} '{text}'" for name, text in options.items())
    return f"USING millstream OPTIONS (server '{url(server)}', {given})"


def test_a_table_is_read_with_its_options_and_those_of_the_query(
    sql: SparkSession, server: Server, client: RawClient
) -> None:
    fill(client, 10)
    made = using(
        server,
        subscribe="s",
        columns="key string, n int",
        startingOffsetsByTimestamp='{"s": 4}',
        maxEntriesPerTrigger="2",
    )
    sql.sql(f"CREATE TABLE t {made}")
    assert numbers(sql, "SELECT n FROM t WHERE key = 's'") == [4, 5, 6, 7, 8, 9]
    assert numbers(sql, "SELECT n FROM t WITH (endingTimestamp '5')") == [4, 5]
    assert sql.read.table("t").columns == ["key", "n"]
    with pytest.raises(Exception, match="did you mean 'endingTimestamp'"):
        sql.sql("SELECT n FROM t WITH (endingTimestmp '5')").collect()


def test_a_table_is_streamed(
    sql: SparkSession, server: Server, client: RawClient, tmp_path: Path
) -> None:
    fill(client, 10)
    sql.sql(f"CREATE TABLE t {using(server, subscribe='s', columns='n int')}")
    rows: list[int] = []
    query = (
        sql.readStream.option("startingOffsets", "earliest")
        .table("t")
        .writeStream.foreachBatch(lambda batch, _: rows.extend(row.n for row in batch.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert rows == list(range(1, 10))


def test_a_table_of_a_data_directory_has_its_newest_snapshot(
    sql: SparkSession, server: Server, client: RawClient
) -> None:
    fill(client, 5)
    client.call("SAVE")
    where = f"'{server.directory}'"
    sql.sql(f"CREATE TABLE t USING millstream OPTIONS (path {where}, columns 'n int', endId '3')")
    sql.sql(f"CREATE TABLE whole USING millstream LOCATION {where}")
    assert numbers(sql, "SELECT n FROM t") == [1, 2, 3]
    assert numbers(sql, "SELECT int(fields['n']) AS n FROM whole WHERE key = 's'") == [1, 2, 3, 4]
    sql.sql("DROP TABLE whole")
    assert numbers(sql, "SELECT n FROM t") == [1, 2, 3]


def test_a_temporary_view_is_read_and_written(
    sql: SparkSession, server: Server, client: RawClient
) -> None:
    fill(client, 5)
    sql.sql(f"CREATE TEMPORARY VIEW v (n int) {using(server, subscribe='s')}")
    sql.sql(f"CREATE TEMPORARY VIEW into_out (n int) {using(server, key='out')}")
    sql.sql("INSERT INTO into_out SELECT n FROM v")
    assert client.call("XLEN", "out") == 4
    with pytest.raises(Exception, match="only ever appended to"):
        sql.sql("INSERT OVERWRITE into_out SELECT n FROM v")


def test_a_table_is_written_with_its_own_statements_options(
    sql: SparkSession, server: Server, client: RawClient
) -> None:
    """The schema of a write is that of the query, and may have another table's options."""
    fill(client, 5)
    sql.sql(f"CREATE TABLE t {using(server, subscribe='s', columns='n int')}")
    sql.sql(f"CREATE TABLE u {using(server, subscribe='out', columns='n int')}")
    for statement in ("INSERT INTO u SELECT n FROM t", "INSERT INTO u VALUES (1)"):
        with pytest.raises(Exception, match=r"INSERT INTO t WITH \(server"):
            sql.sql(statement)
    sql.sql(f"INSERT INTO u WITH (server '{url(server)}', key 'out') SELECT n FROM t")
    assert numbers(sql, "SELECT n FROM u") == [1, 2, 3, 4]


def test_a_table_with_listed_columns_names_the_place_of_options(
    sql: SparkSession, server: Server, client: RawClient
) -> None:
    fill(client, 5)
    where = f"server '{url(server)}', subscribe 's'"
    sql.sql(f"CREATE TABLE t (n int) USING millstream OPTIONS ({where})")
    with pytest.raises(Exception, match="created with a list of columns, Spark passes no options"):
        sql.sql("SELECT n FROM t").collect()
    assert numbers(sql, f"SELECT n FROM t WITH ({where})") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("wrong", "wanted"),
    [
        ("server 'redis://h', subscrib 's'", "unknown option 'subscrib'; did you mean"),
        ("server 'redis://h', key 's'", "'key' is for writing, but a table is for reading"),
        ("server 'redis://h', subscribe 's', password 'x'", "does not keep the option 'password'"),
        ("server 'redis://u:x@h', subscribe 's'", "does not keep a user or a password"),
        ("subscribe 's'", "a table needs the option 'server', or 'path'"),
    ],
)
def test_a_table_that_cannot_be_is_refused_when_it_is_created(
    sql: SparkSession, wrong: str, wanted: str
) -> None:
    with pytest.raises(Exception, match=wanted):
        sql.sql(f"CREATE TABLE t USING millstream OPTIONS ({wrong})")


def test_a_tables_options_are_in_its_schema_and_not_in_load(
    spark: SparkSession, server: Server
) -> None:
    given = {"provider": "millstream", "option.server": "redis://h", "option.subscribe": "s"}
    kept = table_schema(given)[0].metadata[METADATA]
    assert json.loads(kept) == {"server": "redis://h", "subscribe": "s"}
    with pytest.raises(OptionError, match="is not a valid column type"):
        table_schema(given | {"option.columns": "n interval"})
    loaded = spark.read.format("millstream").options(server=url(server), subscribe="s").load()
    assert all(not field.metadata for field in loaded.schema.fields)
