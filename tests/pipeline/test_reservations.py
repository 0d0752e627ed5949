"""Spark and reservations: a query reads each entry once, also one that is completed late, and skips
none; it does not see unsettled entries."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.pipeline.direct import DirectQuery, batch_read
from tests.pipeline.test_streaming import run_in_spark
from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Reply, Simple
from tests.support.server import Server

pytestmark = pytest.mark.timeout(300)

WRITERS = [b"w1", b"w2", b"w3"]
KEYS = [b"s:a", b"s:b"]


def reserve(client: RawClient, key: bytes | str, writer: bytes | str) -> bytes:
    return as_bytes(client.call("TRESERVE", key, writer, "LEASE", "600000"))


def complete(client: RawClient, key: bytes | str, writer: bytes | str, i: bytes, n: int) -> Reply:
    reply = client.call("TCOMPLETE", key, writer, i, "n", str(n))
    assert isinstance(reply, bytes), reply
    return reply


def visible(client: RawClient, key: bytes) -> list[str]:
    rows = map(as_list, as_list(client.call("TRANGE", key, "-", "+")))
    return [f"{key.decode()} {as_bytes(row[2]).decode()}" for row in rows]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("limit", [{}, {"maxEntriesPerTrigger": 3}], ids=["all", "limited"])
def test_a_query_reads_each_entry_once_and_skips_none(
    server: Server, client: RawClient, seed: int, limit: dict[str, int]
) -> None:
    chance = random.Random(seed)
    query = DirectQuery(server, startingOffsets="earliest", **limit)
    open_ids: list[tuple[bytes, bytes, bytes]] = []
    read: list[str] = []
    for number in range(200):
        key, roll = chance.choice(KEYS), chance.random()
        if roll < 0.3:
            writer = chance.choice(WRITERS)
            open_ids.append((key, writer, reserve(client, key, writer)))
        elif roll < 0.55 and open_ids:
            complete(client, *open_ids.pop(chance.randrange(len(open_ids))), number)
        elif roll < 0.65 and open_ids:
            key, writer, entry_id = open_ids.pop(chance.randrange(len(open_ids)))
            assert client.call("TABORT", key, writer, entry_id) == 1
        elif roll < 0.85:
            client.call("TAPPEND", key, "n", str(number))
        else:
            read += [row for batch in query.run() for row in batch]
    for key in KEYS:
        for writer in WRITERS:
            client.call("TABORT", key, writer)
    read += [row for batch in query.run() for row in batch]
    for key in KEYS:
        wanted = visible(client, key)
        assert [row for row in read if row.startswith(key.decode() + " ")] == wanted
        assert len(wanted) > 10


def test_a_query_that_starts_at_the_end_reads_late_completions(
    server: Server, client: RawClient
) -> None:
    query = DirectQuery(server, startingOffsets="latest")
    client.call("TAPPEND", "s:a", "n", "0")
    entry_id = reserve(client, "s:a", "w")
    client.call("TAPPEND", "s:a", "n", "2")
    query.finished = json.dumps(query.start().initialOffset())  # where a running query begins
    assert query.run() == []
    complete(client, "s:a", "w", entry_id, 1)
    assert query.run() == [["s:a 1", "s:a 2"]]


def test_a_stalled_stream_has_no_new_rows(server: Server, client: RawClient) -> None:
    query = DirectQuery(server, startingOffsets="earliest")
    client.call("TAPPEND", "s:a", "n", "0")
    entry_id = reserve(client, "s:a", "w")
    client.call("TAPPEND", "s:a", "n", "2")
    assert query.run() == [["s:a 0"]]
    assert query.run() == []
    assert batch_read(server, subscribePattern="s:*") == [["s:a 0"]]
    client.call("TABORT", "s:a", "w", entry_id)
    assert query.run() == [["s:a 2"]]


def test_late_completions_are_read_and_a_snapshot_omits_them(
    spark: SparkSession, new_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = new_server().start()
    with server.client() as client:
        client.call("TAPPEND", "s:a", "n", "0")
        first, second = reserve(client, "s:a", "w"), reserve(client, "s:a", "v")
        complete(client, "s:a", "v", second, 2)
        client.call("TAPPEND", "s:a", "n", "3")
        batches = run_in_spark(spark, server, tmp_path / "c", startingOffsets="earliest")
        assert client.call("SAVE") == Simple("OK")
        reader = spark.read.format("millstream").schema("key string, n string")
        held = [row.n for row in reader.load(str(server.directory)).collect()]
        complete(client, "s:a", "w", first, 1)
        batches += run_in_spark(spark, server, tmp_path / "c")
        assert client.call("SAVE") == Simple("OK")
        rows = [row.n for row in reader.load(str(server.directory)).collect()]
    assert batches == [["s:a 0"], ["s:a 1", "s:a 2", "s:a 3"]]
    assert held == ["0"]
    assert rows == ["0", "1", "2", "3"]
