"""Two shards of real servers: what each node says of its own shard and of the other one, and the
messages of PUBLISH between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.http import scrape, value
from tests.support.member_servers import MemberServers, ask, node_id
from tests.support.resp import Error, Simple
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

from millstream.server.cluster.cluster_view import ClusterView

DOWN = Error("CLUSTERDOWN The cluster is down")
DOWN_TO_WRITES = Error("CLUSTERDOWN The cluster is down and only accepts read commands")
OK = Simple("OK")
Shards = tuple[MemberServers, MemberServers]


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory, etcd: Etcd) -> Iterator[Shards]:
    folder = tmp_path_factory.mktemp("shards")
    one = MemberServers(folder, etcd, size=2, shards=2)
    two = MemberServers(folder, etcd, size=2, neighbour=one)
    for server in (*one.servers, *two.servers):
        server.directives["metrics-port"] = str(free_port())
    try:
        yield one.start(), two.start()
    finally:
        one.kill()
        two.kill()


def state(server: Server) -> tuple[str, int]:
    """cluster_state and cluster_slots_fail."""
    info = ask(server, "CLUSTER", "INFO")
    assert isinstance(info, bytes), info
    fields = dict(line.split(":", 1) for line in info.decode().splitlines())
    assert fields["cluster_slots_assigned"] == "16384"
    failed = int(fields["cluster_slots_fail"])
    assert int(fields["cluster_slots_ok"]) == 16384 - failed
    return fields["cluster_state"], failed


def serves(server: Server) -> float:
    """The metric."""
    found = value(scrape(int(server.directives["metrics-port"])), "millstream_cluster_state")
    assert found is not None
    return found


def test_messages_reach_each_subscriber_once(shards: Shards) -> None:
    """They are published at each node in turn. Those of a shard channel stay in its shard, whose
    replicas take and deliver them, too. The last ones are too long for a link of a replica."""
    one, two = shards
    servers = [one.wait_for_primary(), *one.servers, two.wait_for_primary(), *two.servers]
    servers = list(dict.fromkeys(servers))
    with ExitStack() as stack:
        clients = [stack.enter_context(RawClient(server.port)) for server in servers]
        readers = [stack.enter_context(RawClient(server.port)) for server in servers]
        for at, reader in enumerate(readers):
            channel = b"bar" if at < 2 else b"foo"  # of s1 and of s2
            assert reader.call("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
            assert reader.call("SSUBSCRIBE", channel) == [b"ssubscribe", channel, 1]
        moved = Error(f"MOVED 5061 127.0.0.1:{servers[0].port}")
        assert clients[3].call("SPUBLISH", "bar", "m") == moved
        sent = [b"of %d" % at for at in range(4)] + [b"v" * 300_000]
        for at, message in enumerate(sent):
            client = clients[at if at < 4 else 0]
            assert client.call("PUBLISH", "news", message) == 1
            for shard, channel in enumerate((b"bar", b"foo")):
                sender = clients[2 * shard + at % 2 if at < 4 else 2 * shard]
                assert sender.call("SPUBLISH", channel, message) == 1
        for at, reader in enumerate(readers):
            kinds = ((b"message", b"news"), (b"smessage", b"bar" if at < 2 else b"foo"))
            found = sorted(reader.read() for _ in range(2 * len(sent)))  # type: ignore[type-var]
            assert found == [[*kind, text] for kind in kinds for text in sent]
            assert not reader.has_input()
        servers[3].kill()
        wait_until(
            lambda: clients[0].call("PUBLISH", "news", "lost") and dropped(servers[0]),
            what="a message that is dropped",
        )
        servers[3].launch()
    two.wait_for_followers()


def dropped(server: Server) -> float:
    series = scrape(int(server.directives["metrics-port"]))
    return value(series, "millstream_cluster_relay_dropped_total") or 0


def test_a_lost_shard_does_not_stop_the_other(shards: Shards) -> None:
    one, two = shards
    first, second = one.wait_for_primary(), two.wait_for_primary()
    for server in (*one.servers, *two.servers):
        wait_until(lambda server=server: state(server), lambda found: found == ("ok", 0))
        assert serves(server) == 1.0
    assert ask(second, "SET", "x", "confirmed") == OK
    assert ask(first, "GET", "x") == Error(f"MOVED 16287 127.0.0.1:{second.port}")

    second.kill()  # the other member alone cannot confirm
    alone = next(two.others(second))
    wait_until(lambda: "is the primary of shard s2" in alone.log, what="the election")
    assert ask(alone, "SET", "x", "lost") == DOWN
    wait_until(lambda: state(alone), lambda found: found == ("fail", 0))  # its disk has the term
    wait_until(lambda: serves(alone), lambda found: found == 0.0)
    assert ask(alone, "CONFIG", "SET", "cluster-allow-reads-when-down", "yes") == OK
    wait_until(lambda: ask(alone, "GET", "x"), lambda found: found == b"confirmed")
    assert ask(alone, "SET", "x", "lost") == DOWN_TO_WRITES
    assert state(alone) == ("fail", 0)
    alone.kill()
    wait_until(lambda: state(first), lambda found: found == ("ok", 8192), "the lost shard", 20.0)
    with RawClient(first.port) as client:
        [_, lost] = client.call("CLUSTER", "SLOTS")  # type: ignore[misc]
        assert [lost[0], lost[1], lost[2][1]] == [8192, 16383, alone.port]
    assert ask(first, "SET", "probe", "2") == OK
    assert ask(first, "CONFIG", "SET", "cluster-require-full-coverage", "yes") == OK
    assert state(first) == ("fail", 8192)
    assert [ask(first, "GET", key) for key in ("probe", "x")] == [DOWN, DOWN]
    assert ask(first, "PING") == Simple("PONG")
    assert ask(first, "SPUBLISH", "probe", "m") == 0  # as in Redis
    assert ask(first, "CONFIG", "SET", "cluster-allow-reads-when-down", "yes") == OK
    assert ask(first, "GET", "probe") == b"2"
    assert ask(first, "SET", "probe", "3") == DOWN_TO_WRITES
    assert ask(first, "CONFIG", "SET", "cluster-require-full-coverage", "no") == OK
    assert ask(first, "SET", "probe", "3") == OK

    other = next(one.others(first))  # it does not know the address of the lost shard any more
    other.kill()
    other.launch()
    one.wait_for_followers()
    assert state(other) == ("ok", 8192)

    second.launch()
    alone.launch()
    assert ask(two.wait_for_followers(), "GET", "x") == b"confirmed"
    assert ask(other, "CONFIG", "SET", "cluster-require-full-coverage", "yes") == OK
    wait_until(lambda: state(other), lambda found: found == ("ok", 0), "the shard", 20.0)
    assert ask(other, "CONFIG", "SET", "cluster-require-full-coverage", "no") == OK


def test_nodes_are_divided_among_shards_and_change_them(tmp_path: Path, etcd: Etcd) -> None:
    """The fifth node replaces a member of a shard, and the sixth makes the other shard larger."""
    made = MemberServers(tmp_path, etcd, size=2, shards=2, given={"cluster-shard": "auto"})
    spares = [Server(tmp_path / f"spare{n}", made.servers[0].directives) for n in range(4)]
    made.servers += spares
    try:
        for server in made.servers:
            server.directory.mkdir()
            server.port = free_port()
            server.launch()
        wait_until(lambda: placed(made), lambda sizes: sizes == ([2, 2], 2), "the members", 20.0)
        view = made.view()
        waiting = [one for one in made.servers if view.shard_of(node_id(one)) is None]
        [one, two] = waiting
        assert state(one)[0] == "fail"
        assert ask(one, "GET", "x") == Error(f"MOVED 16287 {address(view, 's2')}")
        shard = view.shards["s2"].record
        [lost] = set(shard.members) - {shard.primary}
        made.shard = "s2"
        made.change("replace", lost, node_id(one))
        made.shard = "s1"
        made.change("add", "s1", node_id(two))
        assert placed(made) == ([3, 2], 1)
        for server, name in ((one, "s2"), (two, "s1")):
            assert made.view().shard_of(node_id(server)) == name
            wait_until(lambda server=server: state(server), lambda found: found == ("ok", 0))
            assert ask(server, "CLUSTER", "FAILOVER") == OK
            wait_until(
                lambda name=name: made.view().shards[name].record.primary,
                lambda node, server=server: node == node_id(server),
                "the failover",
            )
        assert wait_until(lambda: ask(one, "SET", "x", "1"), lambda reply: reply == OK) == OK
        assert wait_until(lambda: ask(two, "SET", "probe", "1"), lambda reply: reply == OK) == OK
    finally:
        made.kill()


def placed(made: MemberServers) -> tuple[list[int], int]:
    """The number of members of each shard with a primary, and of the nodes without a shard."""
    view = made.view()
    shards = [view.shards[name].record for name in ("s1", "s2")]
    sizes = [len(shard.members) if shard.primary else 0 for shard in shards]
    return sizes, sum(view.shard_of(node) is None for node in view.nodes)


def address(view: ClusterView, shard: str) -> str:
    record = view.nodes[view.shards[shard].record.primary].record
    return f"{record.host}:{record.port}"
