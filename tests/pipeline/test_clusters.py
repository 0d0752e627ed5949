"""The Spark source and sink with the nodes of a cluster, without the gateway."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType
from tests.pipeline.direct import DirectQuery, batch_read
from tests.support.shards import Shards

from millstream.pipeline.row_writer import Numbering, RowWriter
from millstream.pipeline.server_connection import Address as ServerAddress
from millstream.pipeline.server_connection import ServerConnection, ServerError
from millstream.pipeline.source_options import STREAM, WRITE, SourceOptions
from millstream.slot_routing import Address, SlotNodes, first_key_of, slot_of

KEYS = [f"s:{number}" for number in range(24)]
SCHEMA = StructType([StructField(name, StringType()) for name in ("key", "n")])


@pytest.fixture(params=[0, 1], ids=["gateway", "node"])
def port(shards: Shards, request: pytest.FixtureRequest) -> int:
    for number in range(1, 4):
        with shards.node(number) as node:
            node.call("FLUSHALL")
    return shards.port + int(request.param)


class At:
    """A server of the tests, at one port."""

    def __init__(self, port: int) -> None:
        self.port = port


def opened(port: int) -> ServerConnection:
    options = {"server": f"redis://127.0.0.1:{port}", "subscribe": "s"}
    return ServerAddress.from_options(SourceOptions(options, STREAM)).open()


def write(port: int, rows: list[tuple[str, str]], name: str = "job:0") -> tuple[int, int]:
    batch = pa.RecordBatch.from_pylist([{"key": key, "n": n} for key, n in rows])
    options = SourceOptions({"server": f"redis://127.0.0.1:{port}"}, WRITE)
    written = RowWriter(SCHEMA, options, False).write([batch], Numbering(name, None))
    return written.appended, written.repeated


def test_the_first_key_of_encoded_requests() -> None:
    assert first_key_of(b"*3\r\n$11\r\nTAPPENDMANY\r\n$1\r\n1\r\n$3\r\nkey\r\n") == b"key"
    multi = b"*1\r\n$5\r\nMULTI\r\n"
    assert first_key_of(multi + b"*2\r\n$3\r\nGET\r\n$2\r\nab\r\n") == b"ab"
    assert first_key_of(multi) is None
    assert first_key_of(b"*1\r\n$4\r\nPING\r\n") is None


def test_each_request_goes_to_the_node_of_its_key(port: int) -> None:
    with opened(port) as server:
        assert server.pipeline([("SET", key, key) for key in "abcabc"]) == [True] * 6
        assert server.pipeline([("GET", key) for key in "abcd"]) == [b"a", b"b", b"c", None]
        assert server.transaction([("INCR", "{a}1"), ("INCR", "{a}1")]) == [1, 2]
        groups = [[("INCR", f"{{{key}}}n"), ("INCR", f"{{{key}}}n")] for key in "abcabc"]
        assert server.transactions(groups) == [1, 2, 1, 2, 1, 2, 3, 4, 3, 4, 3, 4]
        assert server.transaction_if("c", b"c", [("SET", "c", "new")])
        assert not server.transaction_if("c", b"c", [("SET", "c", "newer")])
        assert server.call("GET", "c") == b"new"
        with pytest.raises(ServerError, match=r"(?i)keys "):
            server.transaction([("SET", "a", 1), ("SET", "b", 1)])
        assert server.call("GET", "a") == b"a"
        refused, found = server.transactions([[("XLEN", "a")], [("GET", "b")]])
        assert "wrong kind" in str(refused)
        assert found == b"b"


def test_rows_are_written_once_and_read_from_all_nodes(port: int) -> None:
    chance = random.Random(5)
    rows = [(chance.choice(KEYS), str(n)) for n in range(3000)]
    assert write(port, rows) == (3000, 0)
    assert write(port, rows) == (0, 3000)
    expected = sorted(f"{key} {n}" for key, n in rows)
    found = batch_read(At(port), subscribePattern="s:*", minPartitions=6)  # type: ignore[arg-type]
    assert sorted(row for part in found for row in part) == expected
    assert len(found) >= 6
    found = batch_read(At(port), subscribe=",".join(KEYS))  # type: ignore[arg-type]
    assert sorted(row for part in found for row in part) == expected


def test_tasks_read_neighbouring_slots(shards: Shards, port: int) -> None:
    write(port, [(key, str(n)) for key in KEYS for n in range(20)])
    if port == shards.port:
        return  # the gateway has no slots
    found = batch_read(At(port), subscribePattern="s:*", minPartitions=6)  # type: ignore[arg-type]
    slots = [[slot_of(row.split()[0].encode()) for row in part] for part in found]
    assert [slot for part in slots for slot in part] == sorted(
        slot for part in slots for slot in part
    )


def test_a_query_continues_where_it_was(port: int) -> None:
    query = DirectQuery(At(port), startingOffsets="earliest", maxEntriesPerTrigger=700)  # type: ignore[arg-type]
    rows = [(KEYS[n % 24], str(n)) for n in range(2000)]
    write(port, rows[:1500])
    found = [row for batch in query.run() for row in batch]
    write(port, rows[1500:], "job:1")
    found += [row for batch in query.run() for row in batch]
    assert sorted(found) == sorted(f"{key} {n}" for key, n in rows)


def test_an_old_map_is_read_again(shards: Shards, port: int) -> None:
    with opened(port) as server:
        server.pipeline([("SET", key, key) for key in "abc"])
        server._slots = SlotNodes([(0, 16383, Address("127.0.0.1", shards.port + 2))])
        assert server.pipeline([("GET", key) for key in "abc"]) == [b"a", b"b", b"c"]
        server._slots = SlotNodes([(0, 16383, Address("127.0.0.1", shards.port + 2))])
        assert server.transactions([[("GET", key)] for key in "abc"]) == [b"a", b"b", b"c"]


def test_nodes_that_do_not_agree_are_asked_again(
    shards: Shards, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(port) as server:
        server.pipeline([("SET", key, key) for key in "abc"])
        server._slots = SlotNodes([(0, 16383, Address("127.0.0.1", shards.port + 2))])
        monkeypatch.setattr(server, "_learn", lambda moved: None)  # MOVED names the wrong node
        server._is_by_slot = True
        assert server.transactions([[("GET", key)] for key in "abc"]) == [b"a", b"b", b"c"]
