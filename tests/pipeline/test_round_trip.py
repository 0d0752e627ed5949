"""Snapshot, Parquet, another server, its snapshot: in the end the entries are as they were."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from tests.pipeline.direct import url
from tests.support.client import RawClient
from tests.support.resp import Simple
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.__main__ import main

pytestmark = [
    pytest.mark.timeout(300),
]

SCHEMA = (
    "key binary, id string, ms decimal(20,0), seq decimal(20,0), "
    "fields array<struct<name: binary, value: binary>>"
)
LARGEST = 2**64 - 1

# Key and id of each entry, and its words.
Entry = tuple[bytes, int, int, list[bytes]]


def entries() -> list[Entry]:
    """Several streams as they were never meant to be: names that are there twice, bytes that are no
    text, empty values, ids at both ends, more than a block and a chunk of some."""
    chance = random.Random(1)
    made: list[Entry] = []
    for number in range(3000):
        words = [b"n", b"%d" % number, b"n", chance.randbytes(chance.randrange(40)), b"", b""]
        made.append((b"long", 1000 + number // 7, number, words))
    for key in (b"\xff\x00 key", b"a,b*", "schlüssel".encode()):
        made.append((key, 0, 1, [b"\xfe", b"\x00"]))
        made.append((key, 0, LARGEST, [b"x", b"1", b"y", b"2", b"x", b"3"]))
        made.append((key, LARGEST, LARGEST, [b"x", bytes(range(256)) * 300]))
    made += [(b"small:%d" % number, 5, 5, [b"n", b"%d" % number]) for number in range(300)]
    return sorted(made)


def fill(client: RawClient, made: list[Entry]) -> None:
    """With streams that were longer: trimmed and deleted entries must not come back."""
    client.pipeline([("XADD", "long", "1-1", "gone", "1"), ("XADD", "long", "1-2", "gone", "2")])
    client.pipeline([("XADD", key, f"{ms}-{seq}", *words) for key, ms, seq, words in made])
    client.call("XDEL", "long", "1-2")
    client.call("XTRIM", "long", "MINID", "1000")


def save(server: Server) -> None:
    with server.client() as client:
        assert client.call("BGSAVE") == Simple("Background saving started")
        wait_until(
            lambda: client.info("persistence")["rdb_bgsave_in_progress"] == "0",
            what="the end of a snapshot",
        )


def scan(spark: SparkSession, server: Server) -> DataFrame:
    return spark.read.format("millstream").schema(SCHEMA).load(str(server.directory))


def entries_in(frame: DataFrame) -> list[Entry]:
    """In the order in which the frame has those of a stream."""
    found = [
        (
            bytes(row.key),
            int(row.ms),
            int(row.seq),
            [bytes(word) for field in row.fields for word in field],
        )
        for row in frame.collect()
    ]
    return sorted(found, key=lambda entry: entry[0])


def write_by_spark(spark: SparkSession, server: Server, parquet: Path) -> None:
    scan(spark, server).write.parquet(str(parquet))


def write_by_export(_: SparkSession, server: Server, parquet: Path) -> None:
    words = [str(server.directory), "--format", "parquet", "--schema", SCHEMA]
    done = CliRunner().invoke(main, ["export", *words, "--output", str(parquet)])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("to_parquet", [write_by_spark, write_by_export])
def test_entries_are_restored_from_parquet(
    spark: SparkSession,
    new_server: Callable[..., Server],
    tmp_path: Path,
    to_parquet: Callable[[SparkSession, Server, Path], None],
) -> None:
    one, other = new_server("one").start(), new_server("other").start()
    with one.client() as client:
        fill(client, entries())
    save(one)
    to_parquet(spark, one, tmp_path / "copy.parquet")
    rows = spark.read.parquet(str(tmp_path / "copy.parquet"))
    sorted_rows = rows.repartition(2, "key").sortWithinPartitions("key", "ms", "seq")
    sorted_rows.write.format("millstream").mode("append").option("server", url(other)).save()
    save(other)
    assert entries_in(scan(spark, one)) == entries_in(scan(spark, other)) == entries()
