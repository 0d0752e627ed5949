"""The records of a cluster whose etcd has lost everything, from its real members."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask, node_id
from tests.support.resp import Error, Simple
from tests.support.server import Server, free_port
from tests.support.stored_cluster import cluster_command, stored
from tests.support.waiting import wait_until


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Etcd]:
    """An etcd of this test alone."""
    made = Etcd(tmp_path / "etcd")
    yield made.start()
    made.kill()


@pytest.fixture
def shard(tmp_path: Path, lasting: Etcd) -> Iterator[MemberServers]:
    made = MemberServers(tmp_path, lasting)
    yield made.start()
    made.kill()


def init(shard: MemberServers, *servers: Server, code: int = 0, options: list[str]) -> str:
    nodes = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    done = cluster_command(shard.settings, "init", *options, "--from-nodes", nodes)
    assert done.exit_code == code, done.output
    return done.output


def test_an_etcd_that_has_lost_everything(shard: MemberServers, lasting: Etcd) -> None:
    primary = shard.wait_for_followers()
    login = ["--url", "redis://ops:word@any"]
    with RawClient(primary.port) as client:
        assert client.call("ACL", "SETUSER", "ops", "on", ">word", "+cluster|seen") == Simple("OK")
        entries = [client.call("XADD", "s", "*", "n", str(number)) for number in range(50)]
    before = shard.view()
    node, other = shard.others(primary)
    has_all = "etcd has all that these nodes have seen"
    assert has_all in init(shard, *shard.servers, code=1, options=login)

    lasting.wipe()
    wait_until(lambda: ask(primary, "CLUSTER", "INFO"), lambda text: b"unreachable" in bytes(text))  # type: ignore[arg-type]
    with RawClient(primary.port) as client:
        entries += [client.call("XADD", "s", "*", "n", str(number)) for number in range(50)]
    other.kill()
    refused = init(shard, node, code=1, options=login)
    assert "2 of its members have to answer, and 1 do" in refused
    assert stored(shard.settings).values == {}
    sizes = "shard s1 has --members 3, and not 2: leave out --members. Nothing is written"
    assert sizes in init(shard, primary, node, code=1, options=[*login, "--members", "2"])
    size = ["--shards", "1", "--members", "3", "--durable", "1"]
    shown = init(shard, primary, node, other, options=[*login, *size])
    assert f"127.0.0.1:{other.port}" in shown, "it does not answer"
    assert "3 of 3 members, its members elect the primary" in shown

    first = shard.wait_for_primary()
    assert ask(first, "ACL", "GETUSER", "ops") != Error("ERR")
    view = shard.view()
    old, new = before.shards["s1"].record, view.shards["s1"].record
    assert new.term > old.term
    assert (new.id, new.members, new.size) == (old.id, old.members, old.size)
    other.start()
    shard.wait_for_followers()
    first.kill()
    second = shard.wait_for_primary(first)
    found = ask(second, "XRANGE", "s", "-", "+")
    assert isinstance(found, list)
    assert [row[0] for row in found] == entries  # type: ignore[index]
    assert node_id(second) in new.members


def test_two_processes_with_the_data_of_one_node(
    shard: MemberServers, lasting: Etcd, tmp_path: Path
) -> None:
    """They announce the same address, and etcd does not answer."""
    primary = shard.wait_for_followers()
    node, other = shard.others(primary)
    lasting.kill()
    node.stop()
    shutil.copytree(node.directory, tmp_path / "copy")
    announced = {"cluster-announce-ip": "127.0.0.1", "cluster-announce-port": str(node.port)}
    copy = Server(tmp_path / "copy", {**node.directives, **announced})
    copy.port = free_port()
    node.launch()
    copy.launch()
    two = (node, copy)

    def out() -> list[Server]:
        return [one for one in two if "takes no part in its shard any more" in one.log]

    try:
        assert len(wait_until(out, what="that one of them sees the other one")) == 1
        assert "two servers run with the ID of the node" in primary.log
        other.kill()  # the one that stays is needed
        wait_until(lambda: ask(primary, "SET", "a", "1") == Simple("OK"), what="a write")
        assert len(out()) == 1
    finally:
        copy.kill()


def test_only_admins_are_told_what_a_node_has_seen(shard: MemberServers) -> None:
    primary = shard.wait_for_primary()
    with RawClient(primary.port) as client:
        client.call("ACL", "SETUSER", "reader", "on", ">word", "~*", "+@all", "-@admin")
        secret = stored(shard.settings).values["secret"].data
        seen = client.call("CLUSTER", "SEEN")
        assert isinstance(seen, bytes)
        assert b"shard/s1" in seen
        assert secret not in seen
        assert client.call("AUTH", "reader", "word") == Simple("OK")
        assert "NOPERM" in str(client.call("CLUSTER", "SEEN"))
