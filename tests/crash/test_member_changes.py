"""Members of a shard of real servers change while clients write, and so do its users."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import RawClient
from tests.support.cluster_writer import ClusterWriter
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask, node_id
from tests.support.resp import Error, Simple
from tests.support.waiting import wait_until

OK = Simple("OK")


@pytest.fixture
def shard(tmp_path: Path, etcd: Etcd) -> Iterator[MemberServers]:
    made = MemberServers(tmp_path, etcd)
    yield made.start()
    made.kill()


def test_a_lost_member_is_replaced_while_clients_write(shard: MemberServers) -> None:
    writer = ClusterWriter(shard.servers)
    writer.wait_for_more()
    primary = shard.wait_for_primary()
    lost, other = shard.others(primary)
    lost_id = node_id(lost)
    lost.kill()
    shutil.rmtree(lost.directory)
    lost.directory.mkdir()
    lost.launch()
    wait_until(lambda: "shard s1 has all members" in lost.log, what="the refusal")
    new_id = node_id(lost)
    assert new_id != lost_id
    shard.change("replace", lost_id, new_id)
    record = shard.view().shards["s1"].record
    assert (set(record.members), record.size) == ({node_id(primary), node_id(other), new_id}, 3)
    writer.wait_for_more()
    shard.wait_for_followers()

    other.kill()  # the new member alone confirms, and then has everything
    writer.wait_for_more()
    primary.kill()
    other.start()
    assert shard.wait_for_primary() is lost
    writer.wait_for_more()

    primary.start()
    shard.wait_for_followers()
    shard.change("remove", "s1", node_id(other))
    assert shard.view().shards["s1"].record.size == 2
    writer.wait_for_more()
    shard.change("add", "s1", node_id(other))
    assert shard.view().shards["s1"].record.size == 3
    writer.wait_for_more()
    shard.wait_for_followers()
    writer.stop()
    assert writer.missing() == set()


def test_users_are_those_of_all_nodes(shard: MemberServers) -> None:
    primary = shard.wait_for_primary()
    one, two = shard.others(primary)
    assert ask(one, "ACL", "SETUSER", "ann", "on", ">secret", "+ping", "+acl|whoami") == OK
    for server in (primary, two):
        wait_until(lambda server=server: ask(server, "ACL", "USERS"), lambda names: b"ann" in names)
    with RawClient(two.port) as client:
        assert client.call("AUTH", "ann", "secret") == OK
        assert ask(primary, "ACL", "SETUSER", "ann", "-ping") == OK
        wait_until(lambda: client.call("PING"), lambda reply: isinstance(reply, Error))
        assert ask(two, "ACL", "DELUSER", "ann") == 1
    two.kill()
    assert b"ann" not in ask(one, "ACL", "USERS")
    assert ask(one, "ACL", "SETUSER", "bob", "on", "nopass") == OK
    one.kill()
    one.start()
    assert b"bob" in ask(one, "ACL", "USERS")


def test_members_change_where_the_primary_confirms_alone(tmp_path: Path, etcd: Etcd) -> None:
    shard = MemberServers(tmp_path, etcd, size=2, durable=0)
    try:
        writer = ClusterWriter(shard.start().servers)
        writer.wait_for_more()
        primary = shard.wait_for_followers()
        [other] = shard.others(primary)
        shard.change("remove", "s1", node_id(other))
        writer.wait_for_more()
        assert ask(other, "CLUSTER", "FAILOVER") == Error(
            "ERR this node is not a member of a shard yet"
        )
        shard.change("add", "s1", node_id(other))
        writer.wait_for_more()
        shard.wait_for_followers()
        assert ask(other, "CLUSTER", "FAILOVER") == OK
        wait_until(lambda: shard.primary() is other, what="the target", deadline_s=20.0)
        writer.wait_for_more()

        lost_id = node_id(primary)
        primary.kill()  # and its disk is lost
        shutil.rmtree(primary.directory)
        primary.directory.mkdir()
        primary.launch()
        wait_until(lambda: "shard s1 has all members" in primary.log, what="the refusal")
        shard.change("replace", lost_id, node_id(primary))
        writer.wait_for_more()
        assert shard.wait_for_followers() is other
        record = shard.view().shards["s1"].record
        assert (set(record.members), record.size) == ({node_id(primary), node_id(other)}, 2)
        writer.stop()
        assert writer.missing() == set()
    finally:
        shard.kill()
