"""Faults of a link: each of them has a sentence in the log and a figure in INFO, and
leaves the data as it was. Flipped bits and cuts at any byte are in tests/sim and tests/unit."""

from __future__ import annotations

from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import InvalidResponse, ResponseError
from tests.support.gate import Gate
from tests.support.replicas import Replicas, facts, fill, has_same, is_up
from tests.support.server import Server
from tests.support.small_disk import MEGABYTE, SmallDisk
from tests.support.waiting import wait_until


def split_pair(replicas: Replicas, **directives: str) -> tuple[Redis, Redis]:
    """A primary with data, and a server with other data."""
    primary, replica = replicas.start("a"), replicas.start("b", **directives)
    fill(primary, 20)
    fill(replica, 7, "other")
    return primary, replica


def errors(client: Redis) -> int:
    """The error replies that the server counts as ERR."""
    counted = facts(client, "errorstats").get("errorstat_ERR", {"count": 0})
    return int(counted["count"])


def assert_is_refused(replicas: Replicas, sentence: str) -> None:
    replica = replicas.client("b")
    wait_until(lambda: sentence in replicas.servers["b"].log)
    assert facts(replica)["repl_refusals"] >= 1
    assert sentence.replace(",", ";") in str(facts(replica)["repl_last_error"])
    assert facts(replica)["master_link_status"] == "down"
    assert (replica.xlen("other"), replica.xlen("s")) == (7, 0)


def test_a_wrong_password(replicas: Replicas) -> None:
    primary, replica = split_pair(replicas, masterauth="wrong")
    primary.config_set("requirepass", "right")
    replicas.follow("b", "a")
    refusal = "WRONGPASS invalid username-password pair or user is disabled"
    assert_is_refused(replicas, f"{refusal}: check masteruser and masterauth")
    wait_until(lambda: facts(replica)["repl_refusals"] >= 2)
    assert replicas.servers["b"].log.count("WRONGPASS") == 1
    replica.config_set("masterauth", "right")
    replicas.follow("b", "a")
    wait_until(has_same(primary, replica, "s"))


def test_a_user_whose_name_is_not_utf8(replicas: Replicas) -> None:
    primary = replicas.start("a")
    fill(primary, 20)
    primary.execute_command("ACL", "SETUSER", b"\xff", "on", ">right", "+@all")
    replica = replicas.start("b", masterauth="right")
    replica.config_set("masteruser", b"\xff")
    replicas.follow("b", "a")
    wait_until(has_same(primary, replica, "s"))


def test_a_default_user_without_the_right_to_ping(replicas: Replicas) -> None:
    """As in Redis, the replica continues with AUTH."""
    primary = replicas.start("a")
    fill(primary, 20)
    primary.acl_setuser("link", enabled=True, passwords=["+right"], categories=["+@all"])
    primary.execute_command("ACL", "SETUSER", "default", "-ping")
    replica = replicas.start("b", masteruser="link", masterauth="right")
    replicas.follow("b", "a")
    wait_until(has_same(primary, replica, "s"))


def test_a_port_without_a_server(replicas: Replicas) -> None:
    _, replica = split_pair(replicas)
    replicas.servers["a"].kill()
    replicas.follow("b", "a")
    sentence = "no link to the primary " + replicas.address("a").replace(" ", ":")
    wait_until(lambda: facts(replica)["repl_connection_errors"] >= 1)
    assert facts(replica)["repl_last_error"] == f"{sentence}: Connection refused"
    assert f"{sentence}: Connection refused" in replicas.servers["b"].log
    assert replica.xlen("other") == 7


def test_a_primary_that_ends(replicas: Replicas) -> None:
    """Only the primary logs that it refuses writes for lack of replicas, and not because it stops:
    a replica would say so at each start."""
    durable = {"replicas-durable": "1"}
    replicas.start("a", **durable)
    replica = replicas.start("b", replicaof=replicas.address("a"), **durable)
    primary = replicas.servers["a"]
    wait_until(lambda: is_up(replica) and "writes are accepted" in primary.log)
    assert facts(replica)["repl_connection_errors"] == 0
    primary.stop()
    wait_until(lambda: facts(replica)["repl_connection_errors"] >= 1)
    assert primary.log.count("NOREPLICAS") == 1  # before it had a replica
    assert "has disconnected" not in primary.log
    assert "NOREPLICAS" not in replicas.servers["b"].log
    assert str(facts(replica)["repl_last_error"]).startswith("no link to the primary 127.0.0.1:")


def test_fewer_databases_than_the_primary(replicas: Replicas) -> None:
    split_pair(replicas, databases="4")
    replicas.follow("b", "a")
    assert_is_refused(replicas, "the replica has 4 databases, this server has 16")


HANDSHAKE = ("REPLCONF", "version", "0.0.1", "databases", "16", "capa")


@pytest.mark.parametrize("capability", ["millstream-0", "millstream-1"])
def test_a_replica_of_an_older_version(replicas: Replicas, capability: str) -> None:
    """1: it knows no effects with codes."""
    client = replicas.start("a")
    link = client.connection_pool.get_connection()
    link.send_command(*HANDSHAKE, capability)
    assert link.read_response() == "OK"
    before = errors(client)
    link.send_command("PSYNC", "?", "1")
    with pytest.raises(ResponseError, match=r"has version 0\.0\.1 and does not know the effects"):
        link.read_response()
    assert errors(client) == before + 1


@pytest.mark.parametrize("request_", [("UNKNOWN",), ("PING",), ("PSYNC", "?", "1"), ("XLEN", "s")])
def test_a_request_on_the_link_ends_it(replicas: Replicas, request_: tuple[str, ...]) -> None:
    client = replicas.start("a")
    link = client.connection_pool.get_connection()
    link.send_command(*HANDSHAKE, "millstream-2")
    assert link.read_response() == "OK"
    link.send_command("PSYNC", "?", "1")
    assert str(link.read_response()).startswith("FULLRESYNC")
    link.send_command(*request_)
    wait_until(lambda: "it sent a request on the link" in replicas.servers["a"].log)
    wait_until(lambda: facts(client)["connected_slaves"] == 0)
    with pytest.raises((RedisConnectionError, InvalidResponse)):  # a beat may come before the end
        link.read_response()


def test_servers_that_follow_each_other(replicas: Replicas) -> None:
    one, other = split_pair(replicas)
    replicas.follow("b", "a")
    wait_until(lambda: is_up(other))
    # By its address, the server would know its replica, and the two would change their roles.
    one.execute_command("REPLICAOF", "localhost", replicas.servers["b"].port)
    wait_until(lambda: facts(one)["repl_refusals"] + facts(other)["repl_refusals"] >= 2)
    wait_until(lambda: all(reports_ring(replicas, name, 2) for name in "ab"))
    assert (one.xlen("s"), other.xlen("s")) == (20, 20)
    one.execute_command("REPLICAOF", "NO", "ONE")
    wait_until(lambda: is_up(other))
    fill(one, 5)
    assert one.wait(1, 10_000) == 1
    assert has_same(one, other, "s")()


def test_three_servers_in_a_ring_whose_links_work(replicas: Replicas) -> None:
    primary, second = replicas.start("a"), replicas.start("b", replicaof=replicas.address("a"))
    fill(primary, 20)
    third = replicas.start("c", replicaof=replicas.address("b"))
    wait_until(lambda: is_up(third))
    replicas.follow("a", "c")
    wait_until(lambda: all(map(is_up, (primary, second, third))))
    wait_until(lambda: all(reports_ring(replicas, name, 3) for name in "abc"))


def reports_ring(replicas: Replicas, name: str, servers: int) -> bool:
    """The log and INFO of the server report a ring of this number of servers."""
    sentence = f"{servers} servers follow each other in a ring"
    last_error = str(facts(replicas.client(name))["repl_last_error"])
    return last_error.startswith(sentence) and sentence in replicas.servers[name].log


def test_a_server_that_follows_itself(replicas: Replicas) -> None:
    replica = replicas.start("b")
    fill(replica, 7, "other")
    replicas.follow("b", "b")
    itself = replicas.address("b").replace(" ", ":")
    assert_is_refused(replicas, f"this server follows itself ({itself}), so it has no primary")
    assert f"Can't SYNC while not connected with my master {itself} (" in replicas.servers["b"].log


def test_a_partition_without_an_error_at_either_end(replicas: Replicas) -> None:
    primary = replicas.start("a", repl_timeout="2")
    gate = Gate(replicas.servers["a"].port)
    try:
        replica = replicas.start("b", repl_timeout="2", replicaof=f"127.0.0.1 {gate.port}")
        wait_until(lambda: is_up(replica))
        fill(primary, 5)
        assert primary.wait(1, 10_000) == 1
        gate.requests.hold()
        gate.replies.hold()
        fill(primary, 5)
        wait_until(lambda: facts(primary)["connected_slaves"] == 0)
        wait_until(lambda: not is_up(replica))
        assert "no data was received for 2 seconds" in replicas.servers["b"].log
        assert "no data was received for 2 seconds" in str(facts(replica)["repl_last_error"])
        assert "no data was received from it for 2 seconds" in replicas.servers["a"].log
        assert replica.xlen("s") == 5
        gate.requests.release()
        gate.replies.release()
        wait_until(lambda: is_up(replica))
        wait_until(has_same(primary, replica, "s"))
        assert facts(primary, "stats")["sync_full"] == 1  # at the beginning
    finally:
        gate.close()


def test_a_flipped_bit_and_a_lost_frame(replicas: Replicas) -> None:
    """The link ends, and the replica continues with a partial sync."""
    primary = replicas.start("a")
    gate = Gate(replicas.servers["a"].port)
    try:
        replica = replicas.start("b", replicaof=f"127.0.0.1 {gate.port}")
        wait_until(lambda: is_up(replica))
        fill(primary, 5)
        gate.replies.damage(b"a damaged value")
        primary.xadd("s", {"n": "a damaged value"})
        wait_until(lambda: facts(replica)["repl_link_errors"] == 1)
        assert "checksum" in replicas.servers["b"].log
        wait_until(has_same(primary, replica, "s"))
        gate.replies.hold(b"a value that is cut off")
        primary.xadd("s", {"n": "a value that is cut off"})
        gate.replies.wait_held()
        assert replica.xlen("s") == 6
        gate.cut()
        gate.replies.release()
        wait_until(has_same(primary, replica, "s"))
        assert facts(primary, "stats")["sync_full"] == 1  # at the beginning
    finally:
        gate.close()


@pytest.mark.parametrize("has_base", [True, False])
def test_a_full_disk_during_a_full_sync(replicas: Replicas, tmp_path: Path, has_base: bool) -> None:
    disk = SmallDisk(tmp_path / "disk", 3 * MEGABYTE)
    try:
        primary = replicas.start("a")
        for _ in range(30):
            fill(primary, 2000)
        if has_base:
            primary.bgrewriteaof()
            wait_until(lambda: facts(primary, "persistence")["aof_rewrites"] == 1)
        given = {"journal-reserve-size": "256kb"}
        server = Server(tmp_path / "disk" / "data", given, wrapper=disk.wrapper)
        (disk.here / "data").mkdir()
        server.log_path = tmp_path / "b.log"
        replicas.servers["b"] = server.start()
        replica = replicas.client("b")
        fill(replica, 7, "other")
        replicas.follow("b", "a")
        sentence = "the full sync has failed: No space left on device"
        wait_until(lambda: sentence in server.log)
        wait_until(lambda: facts(replica)["repl_failed_syncs"] >= 1)
        assert facts(replica)["repl_last_error"] == sentence
        assert replica.xlen("other") == 7
        server.kill()
        server.start()
        assert replicas.client("b").xlen("other") == 7
        server.kill()
    finally:
        disk.unmount()
