"""`millstream gateway`: plain clients write through it while primaries of real shards change."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from tests.support.background import Background
from tests.support.client import ConnectionClosed, RawClient
from tests.support.etcd import Etcd
from tests.support.gate import Gate
from tests.support.member_servers import MemberServers, ask, node_id
from tests.support.resp import Error, Reply, Simple
from tests.support.server import PROGRAM, Server, free_port
from tests.support.stored_cluster import write
from tests.support.waiting import wait_until

from millstream.server.cluster.slot_map import new_id
from millstream.server.cluster.store.records import MAP, SHARD, ShardRecord, SlotRanges, encode
from millstream.server.cluster.store.store import Change

OK = Simple("OK")
HALF = 8191  # foo: slot 12182, of s2; bar: 5061, of s1


class TwoShards(MemberServers):
    """s1 with three members, and s2 with one, which is the last of the servers."""

    def __init__(self, folder: Path, etcd: Etcd) -> None:
        super().__init__(folder, etcd)
        ranges = SlotRanges(2, ((0, HALF, "s1"), (HALF + 1, 16383, "s2")))
        second = ShardRecord(new_id(), 0, "", (), 1, 0)
        changes = [Change(MAP, encode(ranges)), Change(SHARD + "s2", encode(second))]
        write(self.settings, *changes)
        directives = {**self.servers[0].directives, "cluster-shard": "s2"}
        self.single = Server(folder / "single", directives)

    def start(self) -> TwoShards:
        self.single.directory.mkdir(parents=True)
        self.single.port = free_port()
        self.single.launch()
        super().start()
        wait_until(lambda: ask(self.single, "SET", "foo", "1"), lambda reply: reply == OK)
        return self

    def kill(self) -> None:
        super().kill()
        self.single.kill()

    def primary(self) -> Server | None:
        """The server that serves s1."""
        for server in self.servers:
            if server.is_alive() and ask(server, "SET", "bar", "1") == OK:
                return server
        return None


class Gateway(Server):
    def command(self, port: int) -> list[str]:
        settings = {"port": str(port), **self.directives}  # --dir is for nodes of one machine
        return [
            *self.program,
            *(word for name in settings for word in ("--" + name, settings[name])),
        ]


@contextmanager
def gateway(
    folder: Path, cluster: TwoShards, urls: str = "", retry: str = "10s"
) -> Iterator[Server]:
    """A gateway that reads etcd at these URLs, or at those of the cluster."""
    made = Gateway(folder / "gateway", program=[PROGRAM, "gateway"])
    made.directives = {
        "name": cluster.settings.name,
        "etcd": urls or cluster.settings.urls,
        "gateway-retry": retry,
        "loglevel": "debug",
    }
    made.start()
    yield made
    assert made.stop() == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[TwoShards]:
    made = TwoShards(tmp_path_factory.mktemp("cluster"), etcd)
    yield made.start()
    made.kill()


class PlainWriter(Background):
    """Appends to a stream of each shard through the gateway, four requests at a time, until it is
    stopped. After the end of a connection, it makes another one."""

    def __init__(self, port: int, name: str) -> None:
        self.confirmed: dict[bytes, list[bytes]] = {b"bar": [], b"foo": []}
        self.errors: list[Error] = []
        self.connections = 0
        self._port = port
        self._name = name
        super().__init__()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            self.connections += 1
            try:
                with RawClient(self._port) as client:
                    while not self._is_stopped.is_set():
                        self._write(client)
            except (OSError, ConnectionClosed):
                self._is_stopped.wait(0.01)

    def _write(self, client: RawClient) -> None:
        keys = [b"bar", b"foo", b"bar", b"bar"]
        for key in keys:
            client.send("XADD", b"{%s}%s" % (key, self._name.encode()), "*", "f", "v")
        for key in keys:
            reply: Reply = client.read()
            if isinstance(reply, bytes):
                self.confirmed[key].append(reply)
            else:
                assert isinstance(reply, Error)
                self.errors.append(reply)

    def wait_for_more(self, count: int = 40) -> None:
        wanted = len(self.confirmed[b"bar"]) + count
        wait_until(lambda: len(self.confirmed[b"bar"]), lambda n: n >= wanted, "more", 20.0)

    def check(self, client: RawClient) -> None:
        """Stop, and compare what was confirmed with the streams."""
        self.stop()
        for key, confirmed in self.confirmed.items():
            rows = client.call("XRANGE", b"{%s}%s" % (key, self._name.encode()), "-", "+")
            assert isinstance(rows, list)
            found = [row[0] for row in rows if isinstance(row, list)]
            assert set(confirmed) <= set(found)
            assert confirmed == sorted(confirmed, key=lambda one: [*map(int, one.split(b"-"))])


def replica(cluster: TwoShards) -> Server:
    return next(cluster.others(cluster.wait_for_followers()))


def test_writers_and_readers_do_not_notice_a_planned_failover(
    tmp_path: Path, cluster: TwoShards
) -> None:
    with (
        gateway(tmp_path, cluster) as front,
        RawClient(front.port) as client,
        RawClient(front.port) as waiting,
        RawClient(front.port) as in_transaction,
    ):
        writers = [PlainWriter(front.port, f"w{number}") for number in range(3)]
        for writer in writers:
            writer.wait_for_more()
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "{bar}news", "{foo}news", "$", "$")
        assert in_transaction.call("MULTI") == OK
        assert in_transaction.call("SET", "{bar}t", "1") == Simple("QUEUED")
        target = replica(cluster)
        assert ask(target, "CLUSTER", "FAILOVER") == OK
        wait_until(lambda: cluster.primary() is target, what="the target", deadline_s=20.0)
        for writer in writers:
            writer.wait_for_more()
        assert client.call("MGET", "bar", "foo") == [b"1", b"1"]
        assert isinstance(client.call("XADD", "{bar}news", "1-1", "f", "v"), bytes)
        rows: Reply = [[b"1-1", [b"f", b"v"]]]
        assert waiting.read() == [[b"{bar}news", rows]]
        reply = in_transaction.call("EXEC")
        assert isinstance(reply, Error)
        assert reply.text.startswith("EXECABORT")
        for writer in writers:
            writer.check(client)
            assert (writer.errors, writer.connections) == ([], 1)


def test_kill_9_of_a_primary_loses_nothing_confirmed(tmp_path: Path, cluster: TwoShards) -> None:
    with (
        gateway(tmp_path, cluster) as front,
        RawClient(front.port) as idle,
        RawClient(front.port) as waiting,
    ):
        assert idle.call("SET", "bar", "before") == OK
        writers = [PlainWriter(front.port, f"k{number}") for number in range(3)]
        for writer in writers:
            writer.wait_for_more()
        waiting.send("XREAD", "BLOCK", "0", "STREAMS", "{bar}more", "$")
        first = cluster.wait_for_followers()
        wait_until(lambda: b"blocked_clients:1" in info(first), what="the wait")
        first.kill()
        # A read is sent again until there is a primary, also if it was sent to the old one.
        assert idle.call("GET", "bar") is not None
        assert idle.call("SET", "bar", "after") == OK
        for writer in writers:
            writer.wait_for_more()
        assert isinstance(idle.call("XADD", "{bar}more", "1-1", "f", "v"), bytes)
        rows: Reply = [[b"1-1", [b"f", b"v"]]]
        assert waiting.read() == [[b"{bar}more", rows]]
        first.start()
        cluster.wait_for_followers()
        for writer in writers:
            writer.check(idle)
            assert writer.errors == []
            assert writer.connections <= 2


def info(server: Server) -> bytes:
    found = ask(server, "INFO", "clients")
    return found if isinstance(found, bytes) else b""


def test_a_gateway_without_etcd_follows_the_nodes(tmp_path: Path, cluster: TwoShards) -> None:
    etcd_port = int(cluster.settings.urls.rpartition(":")[2])
    etcd = Gate(etcd_port)
    with (
        closing(etcd),
        gateway(tmp_path, cluster, f"http://127.0.0.1:{etcd.port}") as front,
        RawClient(front.port) as client,
    ):
        assert client.call("SET", "bar", "1") == OK
        etcd.target = free_port()  # where nothing listens
        etcd.cut()
        wait_until(lambda: "etcd cannot be reached" in front.log, what="the loss", deadline_s=20)
        target = replica(cluster)
        assert ask(target, "CLUSTER", "FAILOVER") == OK
        wait_until(lambda: cluster.primary() is target, what="the target", deadline_s=20.0)
        assert client.call("SET", "bar", "2") == OK  # after MOVED
        target.kill()
        cluster.wait_for_primary()
        assert client.call("SET", "bar", "3") == OK  # another member has been asked
        target.start()
        cluster.wait_for_followers()
        etcd.target = etcd_port
        wait_until(lambda: "etcd can be used again" in front.log, what="etcd", deadline_s=20)
        assert client.call("GET", "bar") is not None


def test_requests_without_a_primary_fail_after_a_while(tmp_path: Path, cluster: TwoShards) -> None:
    with (
        gateway(tmp_path, cluster, retry="1s") as front,
        RawClient(front.port) as client,
    ):
        assert client.call("SET", "foo", "1") == OK
        cluster.single.signal(signal.SIGSTOP)
        cluster.single.kill()
        client.send("GET", "foo")
        client.send("GET", "bar")
        down = client.read()
        assert isinstance(down, Error)
        assert down.text == "CLUSTERDOWN Hash slot not served: shard s2 cannot be reached"
        assert client.read() is not None
        cluster.single.launch()
        wait_until(lambda: client.call("GET", "foo"), lambda reply: reply == b"1")
        assert node_id(cluster.single) in cluster.view().nodes
