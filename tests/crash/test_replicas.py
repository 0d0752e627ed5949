"""Real servers that follow each other: catching up, failover by hand, kills on either side."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from tests.support.gate import Gate
from tests.support.replicas import Replicas, facts, fill, has_same, is_up
from tests.support.waiting import wait_until


def test_a_replica_has_the_data_and_refuses_writes(replicas: Replicas) -> None:
    primary = replicas.start("a")
    fill(primary, 300)
    primary.xgroup_create("s", "g", 0)
    primary.xreadgroup("g", "c", {"s": ">"}, count=5)
    primary.set("text", "value", ex=1000)
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    assert primary.wait(1, 5000) == 1
    assert has_same(primary, replica, "s")()
    assert replica.xpending("s", "g") == primary.xpending("s", "g")
    assert replica.get("text") == "value"
    for request in (
        ["XADD", "s", "*", "f", "v"],
        ["XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"],
    ):
        with pytest.raises(redis.exceptions.ReadOnlyError):
            replica.execute_command(*request)
    assert replica.role()[0] == "slave"
    assert facts(primary)["slave0"]["state"] == "online"


def test_waitaof_counts_the_disks_of_replicas(replicas: Replicas) -> None:
    primary = replicas.start("a")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    primary.xadd("s", {"n": "1"})
    assert primary.execute_command("WAITAOF", 1, 1, 10_000) == [1, 1]
    replicas.servers["b"].kill()
    replicas.servers["b"].start()
    assert replicas.client("b").xlen("s") == 1


def test_a_blocked_reader_on_a_replica_wakes_up(replicas: Replicas) -> None:
    primary = replicas.start("a")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    connection = replica.connection_pool.get_connection()
    connection.send_command("XREAD", "BLOCK", "0", "STREAMS", "s", "$")
    wait_until(lambda: facts(replica, "clients")["blocked_clients"] == 1)
    primary.xadd("s", {"n": "1"}, id="5-1")
    assert connection.read_response() == {"s": [["5-1", ["n", "1"]]]}


@pytest.mark.parametrize("killed", ["a", "b"])
def test_a_partial_sync_follows_the_kill_of_either_side(replicas: Replicas, killed: str) -> None:
    primary = replicas.start("a")
    fill(primary, 100)
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    fill(primary, 100)
    assert primary.wait(1, 10_000) == 1  # without any frame it would have no history
    replicas.servers[killed].kill()
    if killed == "b":
        fill(primary, 100)
    replicas.servers[killed].start()
    primary, replica = replicas.client("a"), replicas.client("b")
    wait_until(lambda: is_up(replica))
    fill(primary, 10)
    assert primary.wait(1, 10_000) == 1
    assert has_same(primary, replica, "s")()
    stats = facts(primary, "stats")
    assert stats["sync_partial_ok"] >= 1
    assert stats["sync_full"] == int(killed == "b")


def test_a_full_sync_replaces_other_data(replicas: Replicas) -> None:
    primary, replica = replicas.start("a"), replicas.start("b")
    fill(primary, 2000)
    primary.bgrewriteaof()
    wait_until(lambda: facts(primary, "persistence")["aof_rewrites"] == 1)
    fill(primary, 50)
    fill(replica, 500, "other")
    replicas.follow("b", "a")
    wait_until(lambda: is_up(replica))
    assert primary.wait(1, 10_000) == 1
    assert has_same(primary, replica, "s")()
    assert replica.exists("other") == 0
    replicas.servers["b"].kill()
    replicas.servers["b"].start()
    assert has_same(primary, replicas.client("b"), "s")()


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_during_a_full_sync_leaves_old_or_new_data(replicas: Replicas, seed: int) -> None:
    chance = random.Random(seed)
    primary, replica = replicas.start("a"), replicas.start("b")
    for _ in range(20):
        fill(primary, 2000)
    if seed % 2:
        primary.bgrewriteaof()
        wait_until(lambda: facts(primary, "persistence")["aof_rewrites"] == 1)
    fill(replica, 3, "other")
    replicas.follow("b", "a")
    for _ in range(chance.randrange(40)):  # a moment that differs from run to run
        facts(primary)
    replicas.servers["b"].kill()
    replicas.servers["b"].start()
    replica = replicas.client("b")
    assert (replica.xlen("other"), replica.xlen("s")) in [(3, 0), (0, 40_000)]


@pytest.mark.parametrize("base", ["no base", "old base"])
def test_a_full_sync_that_is_cut_leaves_the_old_data(replicas: Replicas, base: str) -> None:
    """The primary has all entries, or most of them, in its journal only."""
    primary, replica = replicas.start("a"), replicas.start("b")
    fill(primary, 20)
    if base == "old base":
        primary.bgrewriteaof()
        wait_until(lambda: facts(primary, "persistence")["aof_rewrites"] == 1)
    for _ in range(20):
        fill(primary, 100)  # several frames
    fill(replica, 7, "other")
    gate = Gate(replicas.servers["a"].port)

    def has_old() -> bool:
        return (replica.xlen("other"), replica.exists("s")) == (7, 0)

    def begin() -> None:
        """The replica receives a part of the data, and no more."""
        gate.replies.hold(after_bytes=40_000)
        replica.execute_command("REPLICAOF", "127.0.0.1", gate.port)
        gate.replies.wait_held()
        wait_until(lambda: facts(replica)["master_sync_in_progress"] == 1)
        wait_until(lambda: facts(replica).get("master_sync_read_bytes", 0) > 10_000)
        assert has_old()

    try:
        begin()
        gate.cut()
        wait_until(lambda: not is_up(replica))
        assert has_old()
        replica.execute_command("REPLICAOF", "NO", "ONE")
        wait_until(lambda: facts(replica)["role"] == "master")
        assert has_old()
        begin()
        replicas.servers["b"].kill()
        replicas.servers["b"].start()
        replica = replicas.client("b")
        assert has_old()
        begin()
        replicas.servers["a"].kill()
        gate.cut()
        gate.replies.release()
        wait_until(lambda: facts(replica)["repl_connection_errors"] >= 1)
        assert has_old()
        replicas.servers["a"].start()
        primary = replicas.client("a")
        wait_until(lambda: is_up(replica))
        assert (replica.xlen("s"), replica.exists("other")) == (2020, 0)
        assert has_same(primary, replica, "s")()
        replicas.servers["b"].kill()
        replicas.servers["b"].start()
        assert has_same(primary, replicas.client("b"), "s")()
    finally:
        gate.close()


def test_a_full_sync_without_a_journal_of_the_own_survives(replicas: Replicas) -> None:
    primary, replica = replicas.start("a"), replicas.start("b", appendonly="no")
    fill(primary, 300)
    replicas.follow("b", "a")
    wait_until(lambda: is_up(replica))
    assert has_same(primary, replica, "s")()
    replicas.servers["b"].kill()
    replicas.servers["b"].start()
    assert has_same(primary, replicas.client("b"), "s")()


def test_the_old_primary_follows_the_new_one(replicas: Replicas) -> None:
    primary = replicas.start("a")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    third = replicas.start("c", replicaof=replicas.address("b"))
    fill(primary, 100)
    wait_until(lambda: is_up(replica) and is_up(third))
    assert primary.wait(1, 10_000) == 1
    replica.execute_command("REPLICAOF", "NO", "ONE")
    fill(replica, 100)
    replicas.follow("a", "b")
    wait_until(lambda: is_up(primary))
    assert replica.wait(2, 10_000) == 2
    assert has_same(replica, primary, "s")()
    assert has_same(replica, third, "s")()
    assert facts(replica, "stats")["sync_full"] == 1  # of the third server, at the beginning


def split(replicas: Replicas, lost: int) -> None:
    """Server b is made a second primary; server a then gets frames of its own, with `lost`
    entries."""
    primary = replicas.start("a")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    fill(primary, 10)
    wait_until(lambda: is_up(replica))
    assert primary.wait(1, 10_000) == 1
    replica.execute_command("REPLICAOF", "NO", "ONE", "INDEPENDENT")
    fill(primary, lost)
    fill(replica, 3)


def discarded(replicas: Replicas, name: str = "a") -> list[Path]:
    return sorted(replicas.servers[name].directory.glob("discarded-*"))


def entries_in(folder: Path) -> list[int]:
    """The numbers of entries of the streams in a directory."""
    done = subprocess.run(
        [sys.executable, "-m", "millstream", "inspect", str(folder), "--json"],
        capture_output=True,
        check=True,
    )
    return [row["entries"] for row in json.loads(done.stdout)["rows"]]


def test_frames_of_a_dead_line_of_history_are_cut_off_and_kept(replicas: Replicas) -> None:
    split(replicas, 5)
    primary, replica = replicas.client("a"), replicas.client("b")
    replicas.follow("a", "b")
    wait_until(lambda: is_up(primary) and primary.xlen("s") == 13)
    assert has_same(replica, primary, "s")()
    assert facts(primary, "stats")["sync_rewinds"] == 1
    assert facts(replica, "stats")["sync_full"] == 0
    (folder,) = discarded(replicas)
    assert "(streams: 1, entries: 5)" in replicas.servers["a"].log
    assert entries_in(folder) == [15]
    fill(replica, 5)
    assert replica.execute_command("WAITAOF", 0, 1, 10_000) == [1, 1]
    replicas.servers["a"].kill()
    replicas.servers["a"].start()
    assert has_same(replica, replicas.client("a"), "s")()


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_during_a_rewind_leaves_old_or_new_data(replicas: Replicas, seed: int) -> None:
    chance = random.Random(seed)
    split(replicas, 20_000)
    replicas.follow("a", "b")
    for _ in range(chance.randrange(60)):  # a moment that differs from run to run
        facts(replicas.client("a"))
    replicas.servers["a"].kill()
    replicas.servers["a"].start()
    primary, replica = replicas.client("a"), replicas.client("b")
    replicas.follow("a", "b")
    wait_until(lambda: is_up(primary))
    assert replica.wait(1, 10_000) == 1
    assert has_same(replica, primary, "s")()
    assert facts(replica, "stats")["sync_full"] == 0
    assert len(discarded(replicas)) == 1


def test_a_primary_that_lost_its_data_does_not_wipe_its_replica(replicas: Replicas) -> None:
    primary = replicas.start("a")
    fill(primary, 50)
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    assert primary.wait(1, 10_000) == 1
    server = replicas.servers["a"]
    server.kill()
    for file in server.directory.iterdir():
        file.unlink()
    server.start()
    wait_until(lambda: "Nothing is replaced" in replicas.servers["b"].log)
    assert replica.xlen("s") == 50
    assert not discarded(replicas, "b")
    replicas.follow("b", "a")
    wait_until(lambda: is_up(replica))
    assert replica.xlen("s") == 0
    (folder,) = discarded(replicas, "b")
    assert entries_in(folder) == [50]


def test_data_that_a_promoted_server_loses_is_kept(replicas: Replicas) -> None:
    """Sentinel makes a server a replica again that was promoted without it."""
    empty = replicas.start("a")
    server = replicas.start("b")
    fill(server, 50)
    replicas.follow("b", "a")
    wait_until(lambda: is_up(server))
    assert server.xlen("s") == 0
    (folder,) = discarded(replicas, "b")
    assert entries_in(folder) == [50]
    assert f"{folder.name} has a copy" in replicas.servers["b"].log
    fill(empty, 3)
    wait_until(has_same(empty, server, "s"))


def test_a_replica_without_a_journal_does_not_count_as_durable(replicas: Replicas) -> None:
    primary = replicas.start("a", replicas_durable="1")
    replica = replicas.start("b", replicaof=replicas.address("a"), appendonly="no")
    wait_until(lambda: is_up(replica))
    wait_until(lambda: facts(primary)["slave0"]["state"] == "online")
    with pytest.raises(redis.exceptions.ResponseError, match="NOREPLICAS"):
        primary.xadd("s", {"n": "1"})


def test_min_replicas_to_write(replicas: Replicas) -> None:
    primary = replicas.start("a", min_replicas_to_write="1")
    with pytest.raises(redis.exceptions.ResponseError, match="NOREPLICAS Not enough good replicas"):
        primary.xadd("s", {"n": "1"})
    assert "writes are refused with NOREPLICAS" in replicas.servers["a"].log
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    wait_until(lambda: facts(primary)["min_slaves_good_slaves"] == 1)
    assert "writes are accepted" in replicas.servers["a"].log

    def is_accepted() -> bool:
        try:
            return bool(primary.xadd("s", {"n": "1"}))
        except redis.exceptions.ResponseError:
            return False

    wait_until(is_accepted)


def assert_answered_at_once(client: redis.Redis) -> None:
    """Requests of Sentinel and operators do not wait for replicas."""
    sentinel, reader = client.pubsub(), client.pubsub()
    sentinel.subscribe("__sentinel__:hello")
    reader.subscribe("news")
    assert sentinel.get_message(timeout=10)["type"] == "subscribe"
    assert reader.get_message(timeout=10)["type"] == "subscribe"
    assert client.publish("news", "later") == 1
    assert client.publish("__sentinel__:hello", "now") == 1
    assert sentinel.get_message(timeout=10)["data"] == "now"
    assert reader.get_message(timeout=0) is None
    assert client.role()[0] == "master"
    assert client.config_get("replicas-durable") == {"replicas-durable": "1"}
    assert client.client_getname() is None
    assert client.wait(0, 0) == 1
    assert client.execute_command("REPLICAOF", "NO", "ONE")


def test_the_links_are_in_the_list_of_clients(replicas: Replicas) -> None:
    primary = replicas.start("a")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    (link,) = replica.client_list(_type="master")
    assert (link["flags"], link["addr"]) == ("M", replicas.address("a").replace(" ", ":"))
    assert [one["flags"] for one in primary.client_list(_type="replica")] == ["S"]
    assert "M" not in {one["flags"] for one in replica.client_list(_type="normal")}
    assert replica.client_kill_filter(_type="master") == 1
    wait_until(lambda: [one["id"] for one in replica.client_list(_type="master")] != [link["id"]])
    wait_until(lambda: is_up(replica))
    assert "is lost: CLIENT KILL" in replicas.servers["b"].log
    assert facts(primary, "stats")["sync_partial_ok"] >= 1


def test_a_replica_that_cannot_be_made_writable(replicas: Replicas) -> None:
    replica = replicas.start("b")
    with pytest.raises(redis.exceptions.ResponseError, match="always read only"):
        replica.config_set("replica-read-only", "no")


def test_a_replica_that_does_not_read_is_closed_at_its_limit(replicas: Replicas) -> None:
    primary = replicas.start("a", client_output_buffer_limit="replica 10kb 0 0")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))
    replicas.servers["b"].signal(signal.SIGSTOP)
    for _ in range(20):  # 25 MB: the buffers of the sockets take the first ones
        fill(primary, 100, text_bytes=12_500)
    wait_until(lambda: facts(primary)["connected_slaves"] == 0)
    assert facts(primary, "stats")["client_output_buffer_limit_disconnections"] == 1
    replicas.servers["b"].signal(signal.SIGCONT)
    wait_until(has_same(primary, replica, "s"))


def test_replies_wait_for_a_replicas_disk(replicas: Replicas) -> None:
    """Their clients are not idle."""
    primary = replicas.start("a", replicas_durable="1", timeout="1")
    with pytest.raises(redis.exceptions.ResponseError, match="NOREPLICAS"):
        primary.xadd("s", {"n": "1"})
    replica = replicas.start("b", replicaof=replicas.address("a"))
    wait_until(lambda: is_up(replica))

    def is_accepted() -> bool:
        try:
            return bool(primary.xadd("s", {"n": "1"}))
        except redis.exceptions.ResponseError:
            return False

    wait_until(is_accepted)
    replicas.servers["b"].signal(signal.SIGSTOP)
    held = primary.connection_pool.get_connection()
    held.send_command("XADD", "s", "*", "n", "2")
    asked = replicas.client("a")
    wait_until(lambda: facts(asked)["hold_bytes"] > 0)
    wait_until(lambda: facts(asked)["hold_age_ms"] > 2500)
    assert not held.can_read(timeout=0)
    assert_answered_at_once(asked)
    replicas.servers["b"].signal(signal.SIGCONT)
    assert held.read_response()
    assert replica.xlen("s") == 2


def test_a_message_reaches_the_subscribers_of_replicas(replicas: Replicas) -> None:
    primary = replicas.start("a")
    replica = replicas.start("b", replicaof=replicas.address("a"))
    third = replicas.start("c", replicaof=replicas.address("b"))
    wait_until(lambda: is_up(replica) and is_up(third))
    listeners = [client.pubsub() for client in (replica, third)]
    for listener in listeners:
        listener.subscribe("news")
        assert listener.get_message(timeout=10)["type"] == "subscribe"
        listener.ssubscribe("shard")
        assert listener.get_message(timeout=10)["type"] == "ssubscribe"
    assert primary.publish("news", "first") == 0
    assert primary.execute_command("SPUBLISH", "shard", "second") == 0
    for listener in listeners:
        assert listener.get_message(timeout=10)["data"] == "first"
        assert listener.get_message(timeout=10)["data"] == "second"
