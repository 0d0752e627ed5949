"""The client with the nodes of a cluster, without the gateway: requests go to the node of their
key."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from itertools import pairwise
from typing import Any

import pytest
from redis.exceptions import MovedError, ResponseError, WatchError
from tests.client.apis import Api, ids, rest, take, unwrap
from tests.support.shards import Shards

from millstream.client.core.cluster_nodes import ClusterNodes
from millstream.slot_routing import Address, SlotNodes, keys_of, moved_to, slot_of
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

# a: node 3, b: node 1, c: node 2
KEYS = [f"shard:{number}" for number in range(12)]


@pytest.fixture
def ms(shards: Shards, api: Api) -> Any:
    """A connection to node 1. All nodes are empty."""
    for number in range(1, 4):
        with shards.node(number) as node:
            node.line("FLUSHALL")
    return api.connect(f"redis://127.0.0.1:{shards.port + 1}")


def calls(shards: Shards, command: str) -> int:
    """The number of times that the nodes have run a command."""
    count = 0
    for number in range(1, 4):
        with shards.node(number) as node:
            line = node.info("commandstats").get(f"cmdstat_{command}", "calls=0")
            count += int(line.partition("calls=")[2].partition(",")[0])
    return count


def forget(ms: Any, shards: Shards) -> None:
    """Give the client a map in which node 2 has everything."""
    nodes = ClusterNodes.of(unwrap(ms))
    assert nodes is not None
    nodes.slots = SlotNodes([(0, 16383, Address("127.0.0.1", shards.port + 2))])


def test_idle_connections_to_nodes_that_have_left_are_closed(shards: Shards, ms: Any) -> None:
    assert ms.get("a") is None
    nodes = ClusterNodes.of(unwrap(ms))
    assert nodes is not None
    left = Address("localhost", shards.port + 3)  # the map has it under another name
    nodes.slots = SlotNodes([(0, 16383, left)])
    assert ms.get("a") is None
    pool = nodes.at(left).connection_pool
    assert pool._available_connections
    assert pool._available_connections[0].is_connected
    assert ms.get("b") is None  # reads the map again
    assert not any(one.is_connected for one in pool._available_connections)


def test_a_thread_may_use_a_new_node_while_another_one_looks() -> None:
    class Client:
        @property
        def connection_pool(self) -> None:
            nodes.at(Address("h", len(nodes._clients)))

    nodes = ClusterNodes(Client(), Address("h", 0), lambda node: Client(), time.monotonic)
    nodes.at(Address("h", 0))
    assert nodes.of_pool("another") is nodes.home


def test_slots_and_keys_are_those_of_the_server() -> None:
    chance = random.Random(7)
    for _ in range(500):
        key = bytes(chance.choice(b"ab{}") for _ in range(chance.randrange(9)))
        assert slot_of(key) == cluster_slot_of(key)
    assert list(keys_of(["XREADGROUP", "GROUP", "g", "c", "streams", "x", "y", ">", ">"])) == [
        "x",
        "y",
    ]
    assert list(keys_of([b"xgroup", b"CREATE", b"x", b"g", b"$"])) == [b"x"]
    assert list(keys_of(["EVAL", "..", 1, "x"])) == ["x"]
    assert not keys_of(["PING"])
    asked = Address("here", 1)
    for words, node in (("7 :6457", Address("here", 6457)), ("7 ::1:6457", Address("::1", 6457))):
        moved = MovedError(words)
        assert (moved.slot_id, moved_to(moved, asked)) == (7, node)


def test_requests_go_to_the_node_of_their_key(shards: Shards, ms: Any) -> None:
    before = calls(shards, "cluster|slots")
    for key in "abcdefgh":
        assert ms.set(key, key) is True
        assert ms.get(key) == key
        assert ms.tappend(f"s{key}", {"n": key})
        assert ms.xlen(f"s{key}") == 1
        assert ms.tinfo(f"s{key}")["length"] == 1
        assert [record["n"] for record in ms.tread(f"s{key}", 0, 9)] == [key]
    assert ms.execute_command("XINFO STREAM", "sa")["length"] == 1
    assert ms.ping() is True
    assert calls(shards, "cluster|slots") == before + 1
    with pytest.raises(ResponseError, match="same slot"):
        ms.mget("a", "b")
    with pytest.raises(ResponseError, match="several nodes"):
        ms.tmread(9, {"sa": 0, "sb": 0})
    forget(ms, shards)
    assert [ms.get(key) for key in "abc"] == ["a", "b", "c"]
    assert ms.incr("n") == 1  # exactly once, although node 2 was asked first


def test_pipelines_are_divided_and_keep_their_order(ms: Any) -> None:
    for _ in range(2):  # without the map, then with it
        with ms.pipeline(transaction=False) as pipe:
            for number, key in enumerate("abcabcabc"):
                pipe.rpush(key, "x") if number == 4 else pipe.append(key, str(number))
                pipe.strlen(key)
            pipe.ping()
            replies = pipe.execute(raise_on_error=False)
        assert isinstance(replies[8], ResponseError)
        assert replies[-1] is True
        written = replies[0:8:2] + replies[10:18:2]
        assert written == [1, 1, 1, 2, 2, 3, 2, 3]
        assert replies[1:18:2] == [1, 1, 1, 2, 1, 2, 3, 2, 3]
        assert [ms.get(key) for key in "abc"] == ["036", "17", "258"]
        for key in "abc":
            ms.delete(key)
    with ms.pipeline(transaction=False) as pipe:
        pipe.set("a", 1).execute_command("LPUSH", "b", 1).set("c", 3)
        with pytest.raises(ResponseError, match="Command # 2"):
            pipe.execute()
    assert ms.get("c") == "3"


def test_a_transaction_is_for_one_slot(shards: Shards, ms: Any) -> None:
    for tag in "abc":
        with ms.pipeline() as pipe:
            pipe.set(f"{{{tag}}}1", tag).get(f"{{{tag}}}1").tappend(f"{{{tag}}}2", {"n": 1})
            assert pipe.execute()[:2] == [True, tag]
    with ms.pipeline() as pipe:
        pipe.set("a", 1).set("b", 2)
        with pytest.raises(ResponseError, match="several nodes"):
            pipe.execute()
    assert ms.get("a") is None
    forget(ms, shards)
    with ms.pipeline() as pipe:
        assert pipe.incr("{a}n").incr("{a}n").execute() == [1, 2]
    forget(ms, shards)
    with ms.pipeline() as pipe:
        pipe.watch("{a}n")
        assert pipe.get("{a}n") == "2"
        pipe.multi()
        assert pipe.set("{a}n", 5).execute() == [True]
    with ms.pipeline() as pipe:
        pipe.watch("{c}n")
        ms.set("{c}n", 1)
        pipe.multi()
        pipe.set("{c}n", 2)
        with pytest.raises(WatchError):
            pipe.execute()


def test_a_stream_follows_shards_of_all_nodes(shards: Shards, ms: Any) -> None:
    chance = random.Random(3)
    keys = [chance.choice(KEYS) for _ in range(60)]
    expected = sorted((ms.tappend(key, {"n": n}), key, str(n)) for n, key in enumerate(keys))
    stream = ms.stream(KEYS, "trim_horizon")
    first = take(stream, 30)
    token = stream.token
    found = first + take(stream, 30)
    assert [(record.id, record.shard, record["n"]) for record in found] == expected
    assert stream.read(timeout=0.05) is None
    assert sum(stream.lag().values()) == 0
    new = ms.tappend(KEYS[5], {"n": "new"})
    assert stream.read(timeout=10).id == new
    stream.close()
    with ms.stream(KEYS, token) as again:
        assert ids(take(again, 30)) == [str(entry_id) for entry_id, _, _ in expected[30:]]
        forget(ms, shards)  # while it reads
        later = [ms.tappend(key, {"n": 1}) for key in KEYS]
        assert ids(take(again, 13)) == list(map(str, [new, *sorted(later)]))
    with ms.stream(KEYS, "earliest", end="latest") as all_of_it:
        assert len(rest(all_of_it)) == 73


def test_a_stream_continues_in_the_children_of_its_shards(ms: Any) -> None:
    parents = [f"{{{tag}}}parent" for tag in "abc"]
    written = [ms.tappend(parent, {"n": 0}) for parent in parents]
    with ms.stream(parents, "trim_horizon") as stream:
        assert ids(take(stream, 3)) == list(map(str, sorted(written)))
        for tag in "abc":
            ms.tseal(f"{{{tag}}}parent", f"{{{tag}}}left", f"{{{tag}}}right")
        new = [
            ms.tappend(f"{{{tag}}}{side}", {"n": 1}) for tag in "abc" for side in ("left", "right")
        ]
        assert ids(take(stream, 6)) == list(map(str, sorted(new)))
        token = stream.token
    with ms.stream(parents, token) as stream:
        last = ms.tappend("{c}right", {"n": 2})
        assert stream.read(timeout=10).id == last


def test_writers_producers_and_consumers(ms: Any) -> None:
    for key in ("wa", "wb", "wc", "wd"):
        with ms.writer(key, "w") as writer:
            written = [writer.append({"n": n}) for n in range(3)]
            with writer.fact() as fact:
                fact["n"] = "fact"
            assert writer.append_many([{"n": n} for n in range(50)]) == 50
        with ms.producer(key, "p") as producer:
            receipts = [producer.append({"n": n}) for n in range(200)]
        assert len(receipts) == 200
        assert ms.xlen(key) == 254
        with ms.consumer(key, "g", retry=60, position="earliest") as consumer:
            found = take(consumer, 254)
            assert [record.id for record in found[:3]] == written
            assert consumer.ack(*found) == 254
            assert consumer.lag() == 0


@pytest.mark.parametrize("key", ["ja", "jb", "jc"])
def test_a_worker_handles_the_jobs_of_a_stream(api: Api, ms: Any, key: str) -> None:
    jobs = [f"{{{key}}}high", f"{{{key}}}low"]
    for number in range(20):
        ms.tappend(jobs[number % 2], {"n": number})
    worker = ms.worker(jobs, "crew", concurrency=2, max_deliver=1, dead_letter=f"{{{key}}}dead")
    seen: list[int] = []

    def note(job: Any) -> None:
        seen.append(int(job["n"]))
        if len(seen) == 20:
            worker.stop()
        if job["n"] == "7":
            raise ValueError("seven")

    async def note_later(job: Any) -> None:
        note(job)

    worker.handler(note if api.name == "sync" else note_later)
    worker.run()
    assert sorted(seen) == list(range(20))
    assert [letter.record["n"] for letter in ms.dead_letters(f"{{{key}}}dead")] == ["7"]


def test_threads_share_a_client(shards: Shards) -> None:
    api = Api("sync")
    ms = api.connect(f"redis://127.0.0.1:{shards.port + 3}")
    failed: list[BaseException] = []

    def write(key: str) -> None:
        try:
            with ms.writer(key, "t") as writer:
                for n in range(30):
                    writer.append({"n": n})
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(f"t{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert [ms.xlen(f"t{number}") for number in range(8)] == [30] * 8
    api.close()


def test_a_node_that_is_restarted_is_waited_for(shards: Shards, ms: Any) -> None:
    with ms.stream(["a", "b", "c"], "latest") as stream, ms.writer("c", "w") as writer:
        first = writer.append({"n": 1})
        assert stream.read(timeout=5).id == first
        os.kill(shards.pid_of(2), signal.SIGKILL)  # the supervisor starts it again after a second
        second = writer.append({"n": 2})
        assert stream.read(timeout=30).id == second
    assert all(before < after for before, after in pairwise([first, second]))
