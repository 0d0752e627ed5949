"""Batch reads of a live server: which entries come, with which columns, in which partitions, and
the errors of impossible reads."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipeline.direct import SCHEMA, batch_read, rows_in, url
from tests.pipeline.test_streaming import run_in_spark
from tests.pipeline.tls import tls_in_front_of
from tests.support.certificates import Authority
from tests.support.client import RawClient
from tests.support.roles import user_of
from tests.support.server import Server, free_port

from millstream.pipeline.batch_reader import LiveReader
from millstream.pipeline.range_plan import DataLossError
from millstream.pipeline.server_connection import ServerError
from millstream.pipeline.source_options import LIVE, OptionError, SourceOptions

GUIDE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
pytestmark = [
    pytest.mark.timeout(300),
]


def load(
    spark: SparkSession, served: Server, schema: str | None = None, **options: Any
) -> DataFrame:
    reader = spark.read.format("millstream").options(**{"server": url(served), **options})
    return (reader.schema(schema) if schema else reader).load()


def numbers(server: Server, /, **options: Any) -> list[int]:
    """The field n of all rows of a direct read, in order."""
    parts = batch_read(server, **options)
    return sorted(int(row.split()[1]) for part in parts for row in part)


def test_entries_of_both_dialects_have_all_columns(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    client.call("XADD", "s", "1000-1", "a", "x", "b", "1", "a", "y")
    client.call("XADD", "s", "1001-0", "a", "\xe9")
    client.call("TAPPENDONCE", "other", "ID", "2000.18446744073709551615", "c", "")
    rows = load(spark, server, subscribePattern="*").orderBy("id").collect()
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1)
    assert [(row.key, row.id, row.fields) for row in rows] == [
        ("s", "1000-1", {"a": "y", "b": "1"}),
        ("s", "1001-0", {"a": "\xe9"}),
        ("other", "2000-18446744073709551615", {"c": ""}),
    ]
    assert rows[0].ts.timestamp() == moment.replace(tzinfo=datetime.UTC).timestamp()
    pairs = "array<struct<name:string,value:binary>>"
    schema = f"ms long, seq decimal(20,0), a string, b int, fields {pairs}"
    first = load(spark, server, schema, subscribe="s").orderBy("ms").first()
    assert first is not None
    assert (first.ms, first.seq, first.a, first.b) == (1000, 1, "y", 1)
    assert [(field.name, bytes(field.value)) for field in first.fields] == [
        ("a", b"x"),
        ("b", b"1"),
        ("a", b"y"),
    ]


def test_dead_letters_are_read_as_the_guide_says(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    for words in (
        "TGROUP orders g START 0 TIMEOUT 30000 MAXDELIVER 1 DEADLETTER orders:dead",
        "XADD orders 1-1 item shoe", "XADD orders 2-1 item hat", "XADD orders 3-1 item shoe",
        "XREADGROUP GROUP g c COUNT 3 STREAMS orders >",
        "TNACK orders g c FATAL IDS 1 1-1", "TNACK orders g c IDS 2 2-1 3-1",
    ):  # fmt: skip
        client.call(*words.split())
    section = GUIDE.partition("\n### Dead letters\n")[2].partition("\n### ")[0]
    (schema,) = re.findall(r'schema\("(.+?)"\)', section)
    rows = load(spark, server, schema, subscribe="orders:dead").orderBy("item", "ts").collect()
    assert [(row.key, row.dead_reason, row.dead_deliveries, row.item) for row in rows] == [
        ("orders:dead", "failed", 1, "hat"),
        ("orders:dead", "fatal", 1, "shoe"),
        ("orders:dead", "failed", 1, "shoe"),
    ]


def test_spark_divides_a_read_and_shows_its_errors(
    spark: SparkSession, server: Server, client: RawClient
) -> None:
    client.pipeline([("TAPPEND", f"s:{n % 300}", "n", str(n)) for n in range(6000)])
    frame = load(spark, server, "n int", subscribePattern="s:*", maxEntriesPerPartition=1500)
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.n for row in frame.collect()) == list(range(6000))
    assert load(spark, server, subscribe="missing").count() == 0
    with pytest.raises(Exception, match="did you mean 'startingOffsets'"):
        load(spark, server, "n int", subscribe="s", startingOfsets="latest").collect()


def test_the_range_follows_the_options(server: Server, client: RawClient) -> None:
    for number in range(10):
        client.call("XADD", "s", f"{1000 + number}-5", "n", str(number))

    def read(**options: Any) -> list[int]:
        return numbers(server, subscribe="s", **options)

    assert read() == list(range(10))
    assert read(startingOffsets='{"s": "1003-5"}', endingOffsets='{"s": "1006-5"}') == [4, 5, 6]
    assert read(startingOffsets='{"s": "1003.4"}', endingOffsets='{"s": "1006"}') == [3, 4, 5]
    assert read(startingTimestamp="1007", endingTimestamp="1008") == [7, 8]
    assert read(startingTimestamp="1970-01-01T00:00:01.008") == [8, 9]
    assert read(startingOffsets="latest") == []


def test_each_stream_has_a_range_of_its_own_in_time(server: Server, client: RawClient) -> None:
    for key in ("s", "t"):
        client.pipeline(
            [("XADD", key, f"{number}-{number}", "n", str(number)) for number in range(1, 9)]
        )
    parts = batch_read(
        server,
        subscribe="s,t",
        startingOffsetsByTimestamp='{"s": 3}',
        endingOffsetsByTimestamp='{"s": 4, "t": "1970-01-01T00:00:00.002Z"}',
    )
    assert parts == [["s 3", "s 4", "t 1", "t 2"]]
    with pytest.raises(OptionError, match="endingOffsetsByTimestamp' names the stream 'u'"):
        batch_read(server, subscribe="s,t", endingOffsetsByTimestamp='{"u": 4}')


def test_a_read_is_fixed_when_planned_even_up_to_a_future_time(
    server: Server, client: RawClient
) -> None:
    client.pipeline([("XADD", "s", f"{number}-0", "n", str(number)) for number in range(1, 6)])
    for end in ({"endingTimestamp": "9999999999999"}, {"endingOffsets": '{"s": "99-0"}'}):
        options = SourceOptions({"server": url(server), "subscribe": "s"} | end, LIVE)
        reader = LiveReader(SCHEMA, options)
        partitions = reader.partitions()
        client.call("TAPPEND", "s", "n", "later")
        assert rows_in(reader, partitions) == [[f"s {number}" for number in range(1, 6)]]
        client.call("XDEL", "s", client.call("XREVRANGE", "s", "+", "-", "COUNT", "1")[0][0])  # type: ignore[index, arg-type]


def test_entries_evicted_after_the_end_are_not_a_loss(server: Server, client: RawClient) -> None:
    client.pipeline([("XADD", "s", f"{number}-0", "n", str(number)) for number in range(1, 9)])
    client.call("XTRIM", "s", "MAXLEN", "3")
    assert numbers(server, subscribe="s", endingOffsets='{"s": "2-0"}') == []
    assert numbers(server, subscribe="s", endingOffsets='{"s": "7-0"}') == [6, 7]


def test_offsets_of_a_stream_that_is_not_read_are_refused(server: Server) -> None:
    for option in ("startingOffsets", "endingOffsets"):
        named = {option: '{"s:07": "5-0"}'}
        with pytest.raises(OptionError, match=rf"{option}' names .* 's:07'.* 'subscribe' asks for"):
            batch_read(server, subscribe="s:7", **named)
        with pytest.raises(OptionError, match="that 'subscribePattern' asks for"):
            batch_read(server, subscribePattern="t:*", **named)
        assert batch_read(server, subscribePattern="s:*", **named) == []


def test_partitions_keep_their_limits_and_hold_all_entries(
    server: Server, client: RawClient
) -> None:
    client.pipeline([("TAPPEND", f"s:{n % 3}", "n", str(n)) for n in range(6000)])
    client.pipeline([("TAPPEND", f"t:{n % 300}", "n", str(n)) for n in range(6000, 6600)])
    client.call("XTRIM", "s:0", "MAXLEN", "1937")
    client.call("XDEL", "s:1", client.call("XRANGE", "s:1", "-", "+", "COUNT", "1")[0][0])  # type: ignore[index, arg-type]
    parts = batch_read(server, subscribePattern="?:*", maxEntriesPerPartition=500)
    assert len(parts) >= 13
    assert max(map(len, parts)) <= 500
    gone = {*range(0, 6000, 3)[: 2000 - 1937]} | {1}
    rows = [int(row.split()[1]) for part in parts for row in part]
    assert sorted(rows) == [n for n in range(6600) if n not in gone]


def test_long_ranges_are_read_by_pages_without_a_gap(server: Server, client: RawClient) -> None:
    client.pipeline([("TAPPEND", "s", "n", str(n), "x", "y" * 3000) for n in range(4000)])
    assert numbers(server, subscribe="s") == list(range(4000))  # some pages of 4 MiB


def test_a_server_restart_during_the_run_costs_no_row(
    durable_server: Server,
) -> None:
    with durable_server.client() as client:
        client.pipeline([("TAPPEND", "s", "n", str(n), "x", "y" * 3000) for n in range(6000)])
    schema = StructType([StructField(name, StringType()) for name in ("n", "x")])
    options = SourceOptions({"server": url(durable_server), "subscribe": "s"}, LIVE)
    reader = LiveReader(schema, options)
    (part,) = reader.partitions()
    rows = []
    for batch in reader.read(part):
        rows += batch.column("n").to_pylist()
        durable_server.restart("SIGKILL")
    assert rows == [str(n) for n in range(6000)]


def test_missing_streams_have_no_rows(server: Server) -> None:
    assert batch_read(server, subscribe="missing") == []
    assert batch_read(server, subscribePattern="none:*") == []


def test_another_database_is_read_by_url_or_option(server: Server, client: RawClient) -> None:
    client.call("SELECT", "3")
    client.call("TAPPEND", "s", "n", "1")
    assert numbers(server, subscribe="s") == []
    assert numbers(server, subscribe="s", db=3) == [1]
    assert numbers(server, subscribe="s", server=url(server) + "/3") == [1]
    assert numbers(server, subscribe="s", server=url(server) + "/2", db=3) == [1]


def test_a_password_comes_from_the_url_or_an_option(server: Server, client: RawClient) -> None:
    client.call("TAPPEND", "s", "n", "1")
    client.call("CONFIG", "SET", "requirepass", "open sesame")
    try:
        address = f"127.0.0.1:{server.port}"

        def read(server_url: str, **options: str) -> list[int]:
            return numbers(server, server=server_url, subscribe="s", **options)

        assert read(f"redis://default:open%20sesame@{address}/0") == [1]
        assert read(f"redis://{address}", password="open sesame") == [1]
        assert read(f"redis://default:wrong@{address}", password="open sesame") == [1]
        refused = f"redis://{address} refused the user or the password"
        with pytest.raises(ServerError, match=refused) as failure:
            read(f"redis://default:wrong@{address}")
        assert "default:" not in str(failure.value)
        with pytest.raises(ServerError, match=f"{refused}: Authentication required"):
            read(f"redis://{address}")
    finally:
        client.call("CONFIG", "SET", "requirepass", "")


def test_a_connection_by_tls_checks_the_certificate(
    server: Server, client: RawClient, tmp_path: Path
) -> None:
    client.call("TAPPEND", "s", "n", "1")
    with tls_in_front_of(server.port, tmp_path) as (port, certificate):

        def read(parameters: str) -> list[int]:
            address = f"rediss://localhost:{port}{parameters}"
            return numbers(server, server=address, subscribe="s")

        assert read(f"?ssl_ca_certs={certificate}") == [1]
        with pytest.raises(ServerError, match="no TLS with the server at rediss://localhost"):
            read("")


def test_roles_of_spark_read_and_write_over_tls(
    spark: SparkSession, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """The server's own TLS port, and users with the rules of the guide; Spark's workers connect,
    too."""
    authority, port = Authority(tmp_path), free_port()
    given = {"tls-port": str(port), "tls-auth-clients": "no"}
    server = new_server("data", {**authority.directives(), **given}).start()
    with server.client() as admin:
        admin.pipeline([("XADD", "in:1", f"{n}-0", "n", str(n)) for n in range(1, 101)])
    address = f"rediss://%s127.0.0.1:{port}?ssl_ca_certs={authority.file}"
    with user_of(server, "Spark, reading", "in:") as login:
        place = {"server": address % login}
        rows = load(spark, server, "n int", **place, subscribe="in:1")
        assert rows.count() == 100
        user, _, password = login.rstrip("@").partition(":")
        options = {"username": user, "password": password, "startingOffsets": "earliest"}
        options |= {"subscribePattern": "in:*", "maxEntriesPerTrigger": "60"}
        batches = run_in_spark(spark, server, tmp_path / "query", **options)
        assert sum(map(len, batches)) == 100
        with pytest.raises(Exception, match="No permissions to access a key"):
            load(spark, server, "n int", **place, subscribe="other").count()
        with server.client() as admin:
            admin.call("ACL", "LOG", "RESET")
    numbers = [(n, f"{n}-1") for n in range(1, 101)]
    frame = spark.createDataFrame(numbers, "n int, id string").coalesce(1)
    with user_of(server, "Spark, writing", "out") as login:
        for key, columns in (("out:1", ["n"]), ("out:2", ["n", "id"])):
            options = {"server": address % login, "key": key, "dedupeToken": "once"}
            for _ in range(2):
                written = frame.select(*columns).write.format("millstream").options(**options)
                written.mode("append").save()
            with server.client() as admin:
                assert admin.call("XLEN", key) == 100


def test_an_impossible_read_names_the_reason(server: Server, client: RawClient) -> None:
    client.call("SET", "word", "x")
    client.call("XADD", "s", "2-0", "n", "1")
    client.call("XTRIM", "s", "MAXLEN", "0")
    with pytest.raises(OptionError, match="exactly one of 'subscribe'"):
        batch_read(server)
    with pytest.raises(ServerError, match=r"'word' at .*WRONGTYPE"):
        batch_read(server, subscribe="word")
    with pytest.raises(DataLossError, match="entries of 's' after 1-0 were evicted"):
        batch_read(server, subscribe="s", startingOffsets='{"s": "1-0"}')


def test_redis_and_millstream_are_distinguished(redis_server: Server) -> None:
    with pytest.raises(ServerError, match="is not a millstream server"):
        batch_read(redis_server, subscribe="s")
