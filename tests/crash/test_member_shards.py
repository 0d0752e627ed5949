"""Two shards of real servers: what each node says of its own shard and of the other one, and the
messages of PUBLISH between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.http import scrape, value
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Error, Simple
from tests.support.server import Server, free_port
from tests.support.waiting import wait_until

DOWN = Error("CLUSTERDOWN The cluster is down")
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
    assert state(alone) == ("fail", 0)
    wait_until(lambda: serves(alone), lambda found: found == 0.0)
    alone.kill()
    wait_until(lambda: state(first), lambda found: found == ("ok", 8192), "the lost shard", 20.0)
    with RawClient(first.port) as client:
        [_, lost] = client.call("CLUSTER", "SLOTS")  # type: ignore[misc]
        assert [lost[0], lost[1], lost[2][1]] == [8192, 16383, alone.port]
    assert ask(first, "SET", "probe", "2") == OK

    other = next(one.others(first))  # it does not know the address of the lost shard any more
    other.kill()
    other.launch()
    one.wait_for_followers()
    assert state(other) == ("ok", 8192)

    second.launch()
    alone.launch()
    assert ask(two.wait_for_followers(), "GET", "x") == b"confirmed"
    wait_until(lambda: state(other), lambda found: found == ("ok", 0), "the shard", 20.0)
