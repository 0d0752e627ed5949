"""A real Redis that follows our server: full sync, commands, cuts, restarts, WAIT and INFO.

`millstream compare --as-replica` says what is right.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.client.proxy import Proxy
from tests.support.client import RawClient
from tests.support.redis_follower import assert_same, change_under_load, is_even, new_redis
from tests.support.resp import Error
from tests.support.server import Server
from tests.support.waiting import wait_until
from tests.wire.test_following_redis import change_everything
from tests.wire.test_import import fill

from millstream.server.replication.redis_feeds import FEEDS_MAX


@pytest.fixture
def primary(durable_server: Server) -> Server:
    return durable_server


@pytest.fixture
def proxy(primary: Server) -> Iterator[Proxy]:
    made = Proxy(primary.port)
    yield made
    made.close()


@pytest.fixture
def redis(tmp_path: Path, proxy: Proxy) -> Iterator[Server]:
    """A Redis that follows the primary through the proxy."""
    made = new_redis(tmp_path / "redis", proxy.port).start()
    yield made
    made.kill()


def fill_ours(client: RawClient) -> None:
    fill(client)
    client.call("SELECT", 0)


def test_a_redis_follows(primary: Server, redis: Server) -> None:
    with primary.client() as ours, redis.client() as theirs:
        fill_ours(ours)
        assert_same(primary, redis)
        change_everything(ours)
        assert_same(primary, redis)
        mine = ours.info("replication")
        assert mine["connected_slaves"] == "0"  # Sentinel must not promote it
        assert mine["redis_replicas"] == "1"
        assert f"port={redis.port},state=online," in mine["redis_replica0"]
        role, offset, replicas = ours.call("ROLE")
        assert role == b"master"
        assert [name for _, name, _ in replicas] == [b"%d" % redis.port]
        assert int(replicas[0][2]) <= offset
        assert theirs.call("ROLE")[3] == b"connected"
        assert theirs.info("replication")["master_sync_in_progress"] == "0"
        assert ours.call("CLIENT", "LIST", "TYPE", "replica").count(b"\n") == 1
        ours.call("XADD", "orders", "*", "last", "entry")
        assert ours.call("WAIT", 1, 5000) == 1
        assert theirs.call("XREVRANGE", "orders", "+", "-", "COUNT", 1)[0][1] == [b"last", b"entry"]
        assert ours.call("WAITAOF", 1, 1, 50) == [1, 0]


def test_it_follows_under_load_with_cuts(primary: Server, redis: Server, proxy: Proxy) -> None:
    """Writers change everything; the link is cut, the Redis killed, our server restarted."""
    with primary.client() as ours, redis.client() as theirs:
        wait_until(lambda: is_even(ours, theirs), what="the full sync")
    change_under_load(primary, 1, proxy.cut_all, 3)
    assert_same(primary, redis)
    change_under_load(primary, 2, lambda: redis.restart("SIGKILL"), 2)
    assert_same(primary, redis)
    with primary.client() as ours, redis.client() as theirs:
        stats = ours.info("stats")
        assert int(stats["sync_partial_ok"]) >= 1
        assert int(stats["sync_full"]) >= 2
        assert theirs.call("XADD", "s", "*", "a", "b").text.startswith("READONLY")
    primary.restart("SIGKILL")
    assert_same(primary, redis)


def test_it_asks_with_psync_until_the_journal_works(primary: Server, redis: Server) -> None:
    """After SYNC, it would acknowledge nothing: WAIT would never count it."""
    with primary.client() as ours, redis.client() as theirs:
        wait_until(lambda: is_even(ours, theirs), what="the full sync")
        ours.call("CONFIG", "SET", "appendonly", "no")
        wait_until(lambda: "NOMASTERLINK" in redis.log, what="a refusal")
        ours.call("CONFIG", "SET", "appendonly", "yes")
        ours.call("XADD", "s", "1-1", "a", "b")
    assert_same(primary, redis)
    assert "Retrying with SYNC" not in redis.log


def test_it_may_load_for_longer_than_the_timeout(
    new_server: Callable[..., Server], tmp_path: Path
) -> None:
    """While it loads, it acknowledges nothing. After that, it does so once a second."""
    primary = new_server("primary", {"repl-timeout": "3"}).start()
    with primary.client() as ours:
        for number in range(24):
            ours.call("SET", f"key{number}", os.urandom(1 << 20))
        redis = new_redis(tmp_path / "redis", primary.port)
        redis.directives["key-load-delay"] = "200000"
        try:
            redis.start()
            assert_same(primary, redis)
            assert int(ours.info("stats")["sync_full"]) == 1
            assert "no data was received" not in primary.log
        finally:
            redis.kill()


def test_many_may_follow(primary: Server) -> None:
    """Only full syncs are limited."""
    with ExitStack() as links:
        for number in range(FEEDS_MAX + 2):
            link = links.enter_context(primary.client())
            with primary.client() as client:
                mine = client.info("replication")
            link.send("PSYNC", mine.get("redis_replid", "?"), 1 if number else -1)
            wait_until(lambda n=number: online(primary) == n + 1, what="the link")  # type: ignore[misc]


def online(primary: Server) -> int:
    with primary.client() as client:
        lines = client.info("replication").items()
    return sum(name.startswith("redis_replica") and "state=online" in text for name, text in lines)


def test_changes_during_a_full_sync_are_bounded(primary: Server) -> None:
    """The Redis reads nothing, so the RDB cannot be sent, and changes wait on the disk."""
    with primary.client() as ours, primary.client() as link:
        for number in range(12):  # more than a socket takes
            ours.call("SET", f"key{number}", os.urandom(1 << 20))
        ours.call("CONFIG", "SET", "replica-redis-spool-limit", "1mb")
        link.send("PSYNC", "?", "-1")
        wait_until(
            lambda: "state=send_bulk" in ours.info("replication").get("redis_replica0", ""),
            what="the RDB",
        )
        ours.call("SET", "key0", bytes(900_000))
        assert ours.info("replication")["redis_replicas"] == "1"
        ours.call("SET", "key0", bytes(900_000))
        wait_until(lambda: ours.info("replication")["redis_replicas"] == "0", what="the end")
    assert "and replica-redis-spool-limit allows 1048576" in primary.log
    assert "closing client" not in primary.log


def test_a_redis_needs_a_journal_here(server: Server) -> None:
    with server.client() as client:
        client.call("CONFIG", "SET", "appendonly", "no")
        try:
            reply = client.call("PSYNC", "?", "-1")
            assert isinstance(reply, Error)
            assert reply.text.startswith("NOMASTERLINK this server has appendonly off")
            assert client.call("SYNC").text.startswith("ERR this server has appendonly off")
        finally:
            client.call("CONFIG", "SET", "appendonly", "yes")


def test_a_replica_sends_no_commands(new_server: Callable[..., Server], server: Server) -> None:
    replica = new_server("replica", {"replicaof": f"127.0.0.1 {server.port}"}).start()
    with replica.client() as client:
        wait_until(
            lambda: client.info("replication")["master_link_status"] == "up", what="the link"
        )
        reply = client.call("PSYNC", "?", "-1")
        assert "only a primary sends commands" in reply.text
        assert reply.text.startswith("NOMASTERLINK ")  # or the Redis sends SYNC
        client.call("REPLCONF", "rdb-only", 1)
        client.send("SYNC")
        assert b"$" in client.read_to_end()
