"""Failover of a shard of real servers, with a real etcd: kill -9, suspended processes, no etcd."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.client import ConnectionClosed, RawClient
from tests.support.cluster_writer import ClusterWriter
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask, node_id
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.waiting import wait_until


@pytest.fixture
def shard(tmp_path: Path, etcd: Etcd) -> Iterator[MemberServers]:
    made = MemberServers(tmp_path, etcd)
    yield made.start()
    made.kill()


def test_kill_9_of_a_primary_loses_nothing_confirmed(shard: MemberServers) -> None:
    writer = ClusterWriter(shard.servers)
    writer.wait_for_more()
    first = shard.wait_for_primary()
    first.kill()
    second = shard.wait_for_primary()
    assert second is not first
    writer.wait_for_more()
    with second.client() as client:  # it would confirm what is not on its disk
        for words in (("appendonly", "no"), ("appendfsync", "everysec"), ("appendfsync", "no")):
            refused = client.call("CONFIG", "SET", *words)
            assert "cluster-name needs appendonly yes and appendfsync always" in str(refused)
            assert client.call("CONFIG", "GET", words[0])[1] in (b"yes", b"always")
    first.start()
    shard.wait_for_followers()
    assert writer.missing() == set()

    second.kill()  # and its disk is lost
    shutil.rmtree(second.directory)
    third = shard.wait_for_primary()
    writer.wait_for_more()
    second.directory.mkdir()
    second.launch()
    wait_until(lambda: "shard s1 has all members" in second.log, what="the refusal")
    writer.wait_for_more()
    assert shard.wait_for_primary() is third

    living = set(map(node_id, shard.others(second)))
    [lost] = set(shard.view().shards["s1"].record.members) - living
    shard.change("replace", lost, node_id(second))
    shard.wait_for_followers()
    writer.stop()
    assert writer.missing() == set()


def refuses(client: RawClient, *words: str) -> bool:
    """True if the reply is an error, or the connection is closed."""
    try:
        return isinstance(client.call(*words), Error)
    except (ConnectionClosed, OSError):
        return True


def test_a_suspended_primary_serves_nothing_old(shard: MemberServers) -> None:
    old = shard.wait_for_primary()
    with RawClient(old.port) as client:
        assert client.call("SET", "a", "old") == Simple("OK")
        old.signal(signal.SIGSTOP)
        try:
            new = shard.wait_for_primary(old)
            assert ask(new, "SET", "a", "new") == Simple("OK")
        finally:
            old.signal(signal.SIGCONT)
        assert refuses(client, "SET", "a", "lost")
        assert refuses(client, "GET", "a")
    assert shard.wait_for_followers() is new
    assert ask(new, "GET", "a") == b"new"
    with RawClient(old.port) as client:
        assert client.call("READONLY") == Simple("OK")
        wait_until(lambda: client.call("GET", "a"), lambda value: value == b"new")
        assert client.call("SET", "a", "x") == Error(f"MOVED 15495 127.0.0.1:{new.port}")


def test_clients_are_told_the_zones(shard: MemberServers) -> None:
    zones = {node_id(server).encode(): b"z%d" % n for n, server in enumerate(shard.servers)}
    with RawClient(shard.wait_for_followers().port) as client:
        [[_, nodes, *_]] = [row[2:] for row in client.call("CLUSTER", "SHARDS")]  # type: ignore[union-attr]
        assert {one[1]: one[-2:] for one in nodes} == {
            node: [b"availability-zone", zone] for node, zone in zones.items()
        }
        [[_, _, *nodes]] = client.call("CLUSTER", "SLOTS")  # type: ignore[misc]
        assert {one[2]: one[3] for one in nodes} == {
            node: [b"availability-zone", zone] for node, zone in zones.items()
        }


def test_an_operator_changes_the_primary(shard: MemberServers) -> None:
    writer = ClusterWriter(shard.servers)
    writer.wait_for_more()
    old = shard.wait_for_primary()
    assert "to a replica" in str(ask(old, "CLUSTER", "FAILOVER"))
    target = next(shard.others(shard.wait_for_followers()))
    assert ask(target, "CLUSTER", "FAILOVER") == Simple("OK")
    wait_until(lambda: shard.primary() is target, what="the target", deadline_s=20.0)
    writer.wait_for_more()
    other = next(shard.others(shard.wait_for_followers()))
    assert ask(other, "CLUSTER", "FAILOVER", "FORCE") == Simple("OK")
    shard.wait_for_primary(target)  # perhaps the third one, if that has more
    writer.wait_for_more()
    shard.wait_for_followers()
    writer.stop()
    assert writer.missing() == set()


def nodes_of(server: Server) -> list[tuple[bool, int, int]]:
    """Of each node: whether it has failed, the last sign of life, and the offset."""
    [shard] = ask(server, "CLUSTER", "SHARDS")  # type: ignore[misc]
    offsets = [dict(zip(one[::2], one[1::2], strict=True)) for one in shard[3]]  # type: ignore
    text = ask(server, "CLUSTER", "NODES")
    assert isinstance(text, bytes)
    lines = [line.split() for line in text.splitlines()]
    return [
        (b"fail" in line[2], int(line[5]), one[b"replication-offset"])
        for line, one in zip(lines, offsets, strict=True)
    ]


def test_without_etcd_a_primary_stays_also_after_a_restart(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd").start()
    shard = MemberServers(tmp_path, etcd)
    try:
        first = shard.start().wait_for_primary()
        etcd.kill()
        reads_etcd = next(shard.others(first))
        wait_until(
            lambda: "etcd cannot be reached" in reads_etcd.log, what="the loss", deadline_s=20
        )
        assert ask(first, "SET", "a", "1") == Simple("OK")
        for killed in ([first], shard.servers):
            for server in killed:
                server.kill()
            for server in killed:
                server.launch()
            assert shard.wait_for_followers() is first
            assert ask(first, "GET", "a") == b"1"
        wait_until(
            lambda: nodes_of(first),
            lambda rows: (
                all(not failed and offset for failed, _, offset in rows)
                and sorted(pong > 0 for _, pong, _ in rows) == [False, True, True]
            ),
            "all members",
        )
        failed, pong, offset = nodes_of(reads_etcd)[0]  # the primary
        assert (failed, pong > 0, offset > 0) == (False, True, True)
        first.kill()
        etcd.start()
        second = shard.wait_for_primary()
        assert ask(second, "GET", "a") == b"1"
    finally:
        shard.kill()
        etcd.kill()


def test_without_copies_a_shard_fails_over_after_the_lease(tmp_path: Path, etcd: Etcd) -> None:
    shard = MemberServers(tmp_path, etcd, size=2, durable=0)
    try:
        first = shard.start().wait_for_primary()
        assert ask(first, "SET", "a", "1") == Simple("OK")
        second = next(shard.others(first))
        with RawClient(second.port) as client:
            assert client.call("READONLY") == Simple("OK")
            wait_until(lambda: client.call("GET", "a"), lambda value: value == b"1")
        first.signal(signal.SIGSTOP)
        try:
            assert shard.wait_for_primary(first) is second
            assert ask(second, "GET", "a") == b"1"
        finally:
            first.signal(signal.SIGCONT)
        assert shard.wait_for_followers() is second
    finally:
        shard.kill()


def test_a_primary_that_is_stopped_is_replaced_at_once(shard: MemberServers) -> None:
    """Its lease lasts longer than the node timeout, and it ends both."""
    first = shard.wait_for_followers()
    assert first.stop() == 0
    second = shard.wait_for_primary()
    log = second.log
    assert "is the primary of shard s1" in log
    first.start()
    assert shard.wait_for_followers() is second
