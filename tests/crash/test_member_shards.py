"""Two shards of real servers: what each node says of its own shard and of the other one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


@pytest.fixture
def shards(tmp_path: Path, etcd: Etcd) -> Iterator[Shards]:
    one = MemberServers(tmp_path, etcd, size=2, shards=2)
    two = MemberServers(tmp_path, etcd, size=2, neighbour=one)
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
