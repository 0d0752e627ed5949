"""The Python client, and the connection of Spark's jobs, while the primary of a shard, the node of
their URL, is killed: they find the next one, and append exactly once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from tests.client.apis import NAMES, Api
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Error, encode_command
from tests.support.server import Server
from tests.support.waiting import wait_until

from millstream.pipeline.server_connection import Address, Unreachable

DOWN = Error("CLUSTERDOWN The cluster is down")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[MemberServers]:
    made = MemberServers(tmp_path_factory.mktemp("shard"), etcd)
    yield made.start()
    made.kill()


def until_connected(call: Callable[[], Any]) -> Any:
    """The result of a single command, which the program repeats."""
    end_s = time.monotonic() + 20.0
    while True:
        try:
            return call()
        except (RedisConnectionError, Unreachable):
            assert time.monotonic() < end_s
            time.sleep(0.02)


@pytest.mark.parametrize("name", NAMES)
def test_the_client_follows_a_failover(shard: MemberServers, name: str) -> None:
    first = shard.wait_for_followers()
    api = Api(name)
    ms, other = (api.connect(f"redis://127.0.0.1:{first.port}", timeout=2.0) for _ in range(2))
    keys = entry, batch, job, single = [f"{kind}:{name}" for kind in ("e", "b", "j", "s")]
    ms.tappend(job, {"n": 0})
    with (
        ms.stream(entry, "earliest") as stream,
        ms.writer(entry, "w") as writer,
        ms.producer(batch) as producer,
        ms.consumer(job, "g", retry=60, position="earliest") as consumer,
    ):
        writer.append({"n": 0})
        producer.append({"n": 0})
        producer.flush()
        assert stream.read(timeout=5)["n"] == "0"
        taken = consumer.read(timeout=5)
        other.tappend(single, {"n": 0})  # the only request of this client
        first.kill()
        writer.append({"n": 1})
        receipts = [producer.append({"n": number}) for number in range(1, 9)]
        producer.flush()
        assert [receipt.result() for receipt in receipts] == list(range(2, 10))
        assert stream.read(timeout=20)["n"] == "1"
        assert until_connected(lambda: consumer.ack(taken)) == 1
        until_connected(lambda: other.tappend(single, {"n": 1}))
        other.tappend(job, {"n": 1})
        assert consumer.read(timeout=20)["n"] == "1"
        assert [ms.xlen(key) for key in keys] == [2, 9, 2, 2]
        with other.pipeline() as pipe:
            assert pipe.tinfo(single).xlen(single).execute()[1] == 2
    api.close()
    first.launch()


def test_jobs_of_spark_follow_a_failover(shard: MemberServers) -> None:
    """Also a task that begins when the server of the URL has ended."""
    first = shard.wait_for_followers()
    address = Address(f"redis://127.0.0.1:{first.port}", None, None, None, 12)
    appended = encode_command(["TAPPENDONCE", "t", "PRODUCER", "job", "2", "n", "2"])
    with address.open() as server, address.open(persistent=False) as reader:
        assert reader.call("DEL", "t") == 0  # CDC's reader has this one, and repeats
        server.call("TAPPENDONCE", "t", "PRODUCER", "job", "1", "n", "1")
        first.kill()
        server.encoded(appended)
        assert until_connected(lambda: reader.call("XLEN", "t")) == 2
        with server.known_address.open() as task:
            task.encoded(appended)
            assert task.call("XLEN", "t") == 2
            assert list(task.scan("t*")) == [b"t"]
            first.launch()
            shard.wait_for_followers()
            assert server.transaction([("XLEN", "t"), ("GET", "{t}none")]) == [2, None]


def test_what_a_node_refuses_is_repeated(shard: MemberServers) -> None:
    """The primary has no member that confirms, and refuses requests: nothing has run."""
    primary = shard.wait_for_followers()
    api = Api("sync")
    url = f"redis://127.0.0.1:{primary.port}"
    ms, other = api.connect(url), api.connect(url)
    before = ms.tappend("r", {"n": 0})
    with ExitStack() as stack:
        writer = stack.enter_context(ms.writer("r", "w"))
        writer.append({"n": 1})
        for server in shard.others(primary):
            server.signal(signal.SIGSTOP)
            stack.callback(server.signal, signal.SIGCONT)
        wait_until(lambda: ask(primary, "SET", "x", "1"), lambda reply: reply == DOWN)
        refused = refusals(primary)
        with ThreadPoolExecutor(2) as pool:
            appended = pool.submit(writer.append, {"n": 2})
            single = pool.submit(other.tappend, "r", {"n": 3})
            wait_until(lambda: refusals(primary), lambda count: count >= refused + 8, "refusals")
            for server in shard.others(primary):
                server.signal(signal.SIGCONT)
            found = {appended.result(), single.result()}
    assert {record.id for record in ms.trange("r", f"({before}", "+")[1:]} == found
    api.close()


def refusals(server: Server) -> int:
    """The number of requests that were refused because the cluster is down."""
    with RawClient(server.port) as client:
        found = client.info("errorstats").get("errorstat_CLUSTERDOWN", "count=0")
    return int(found.removeprefix("count="))
