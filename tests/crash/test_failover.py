"""FAILOVER between real servers, and servers that wait for replicas before they stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ReadOnlyError, ResponseError
from tests.support.server import Server
from tests.support.waiting import wait_until


class Pair:
    """A primary `a` and its replica `b`."""

    def __init__(self, folder: Path, **directives: str) -> None:
        given = {name.replace("_", "-"): value for name, value in directives.items()}
        self.a = Server(folder / "a", given).start()
        self.b = Server(folder / "b", {**given, "replicaof": f"127.0.0.1 {self.a.port}"}).start()
        wait_until(lambda: self.facts(self.b)["master_link_status"] == "up")
        wait_until(lambda: self.facts(self.a).get("slave0", {}).get("state") == "online")

    @staticmethod
    def client(server: Server) -> Redis:
        return Redis(port=server.port, decode_responses=True)

    def facts(self, server: Server, section: str = "replication") -> dict[str, object]:
        found: dict[str, object] = self.client(server).info(section)
        return found

    def role(self, server: Server) -> str:
        return str(self.client(server).role()[0])

    def failover(self, *words: object) -> object:
        return self.client(self.a).execute_command("FAILOVER", *words)

    def stop(self) -> None:
        for server in (self.a, self.b):
            if server.is_alive():
                server.signal(signal.SIGCONT)
                server.kill()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.stop()


class Writer:
    """Appends until it is refused; `written` are the numbers that were answered."""

    def __init__(self, client: Redis) -> None:
        self.written: list[int] = []
        self.refusal: Exception | None = None
        self._client = client
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        try:
            while True:
                self._client.xadd("s", {"n": number})
                self.written.append(number)
                number += 1
        except (ResponseError, RedisConnectionError) as error:
            self.refusal = error

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


def test_a_failover_changes_the_roles_and_loses_nothing(pair: Pair) -> None:
    writer = Writer(pair.client(pair.a))
    wait_until(lambda: len(writer.written) > 50)
    assert pair.failover() == "OK"
    writer.join()
    assert isinstance(writer.refusal, ReadOnlyError | RedisConnectionError)
    wait_until(lambda: pair.role(pair.b) == "master" and pair.role(pair.a) == "slave")
    wait_until(lambda: pair.facts(pair.a)["master_link_status"] == "up")
    assert pair.facts(pair.a)["master_failover_state"] == "no-failover"
    there = [int(fields["n"]) for _, fields in pair.client(pair.b).xrange("s")]
    assert there[: len(writer.written)] == writer.written
    pair.client(pair.b).xadd("s", {"n": -1})
    assert pair.client(pair.b).wait(1, 10_000) == 1
    assert pair.client(pair.a).xrange("s") == pair.client(pair.b).xrange("s")
    stats = pair.facts(pair.b, "stats")
    assert (stats["sync_full"], stats["sync_partial_ok"]) == (0, 1)


def test_an_unsuccessful_failover_is_aborted(pair: Pair) -> None:
    client = pair.client(pair.a)
    pair.b.signal(signal.SIGSTOP)
    client.xadd("s", {"n": 0})
    assert pair.failover("TIMEOUT", 300) == "OK"
    assert pair.facts(pair.a)["master_failover_state"] == "waiting-for-sync"
    assert pair.facts(pair.a, "clients")["paused_reason"] == "failover_in_progress"
    with pytest.raises(ResponseError, match="FAILOVER already in progress"):
        pair.failover()
    with pytest.raises(ResponseError, match="REPLICAOF not allowed while failing over"):
        client.execute_command("REPLICAOF", "NO", "ONE")
    client.client_unpause()  # does not end the pause of the failover
    assert client.xadd("s", {"n": 1})  # once it is given up
    assert "no replica had all frames in time" in pair.a.log
    assert pair.role(pair.a) == "master"


def test_a_failover_is_aborted(pair: Pair) -> None:
    client = pair.client(pair.a)
    pair.b.signal(signal.SIGSTOP)
    client.xadd("s", {"n": 0})
    assert pair.failover("TO", "127.0.0.1", pair.b.port) == "OK"
    assert pair.failover("ABORT") == "OK"
    assert client.xadd("s", {"n": 1})
    with pytest.raises(ResponseError, match="No failover in progress"):
        pair.failover("ABORT")


def test_a_forced_failover_promotes_a_replica_that_lags(pair: Pair) -> None:
    client = pair.client(pair.a)
    pair.b.signal(signal.SIGSTOP)
    client.xadd("s", {"n": 0})
    assert pair.failover("TO", "127.0.0.1", pair.b.port, "FORCE", "TIMEOUT", 100) == "OK"
    wait_until(lambda: pair.facts(pair.a)["master_failover_state"] == "failover-in-progress")
    pair.b.signal(signal.SIGCONT)
    wait_until(lambda: pair.role(pair.b) == "master")
    wait_until(lambda: pair.facts(pair.a).get("master_link_status") == "up")
    assert client.xrange("s") == pair.client(pair.b).xrange("s")


def test_failover_refuses_invalid_targets(pair: Pair) -> None:
    for words, text in [
        (["TO", "127.0.0.1", 1], "FAILOVER target HOST and PORT is not a replica"),
        (["FORCE"], "FAILOVER with force option requires both a timeout and target HOST and IP"),
    ]:
        with pytest.raises(ResponseError, match=text):
            pair.failover(*words)
    with pytest.raises(ResponseError, match="FAILOVER is not valid when server is a replica"):
        pair.client(pair.b).execute_command("FAILOVER")
    with pytest.raises(ResponseError, match="only a millstream server"):
        pair.client(pair.b).execute_command("PSYNC", "a" * 40, 1, "FAILOVER")


def has_stopped(server: Server) -> bool:
    return not server.is_alive()


@pytest.mark.parametrize("way", ["SHUTDOWN", "SIGTERM"])
def test_a_server_that_stops_waits_for_its_replicas(pair: Pair, way: str) -> None:
    pair.b.signal(signal.SIGSTOP)
    asked = pair.client(pair.a)
    asked.xadd("s", {"n": 0})
    if way == "SIGTERM":
        pair.a.signal(signal.SIGTERM)
    else:
        pair.client(pair.a).connection_pool.get_connection().send_command("SHUTDOWN")
    wait_until(lambda: asked.info("clients")["paused_reason"] == "shutdown_in_progress")
    pair.b.signal(signal.SIGCONT)
    wait_until(lambda: has_stopped(pair.a))
    assert pair.client(pair.b).xlen("s") == 1


def test_a_shutdown_that_waits_is_aborted(pair: Pair) -> None:
    pair.b.signal(signal.SIGSTOP)
    client = pair.client(pair.a)
    client.xadd("s", {"n": 0})
    waiting = pair.client(pair.a).connection_pool.get_connection()
    waiting.send_command("SHUTDOWN")
    wait_until(lambda: client.info("clients")["paused_reason"] == "shutdown_in_progress")
    assert client.execute_command("SHUTDOWN", "ABORT") is True
    with pytest.raises(ResponseError, match="Errors trying to SHUTDOWN"):
        waiting.read_response()
    assert client.xadd("s", {"n": 1})


def test_a_server_does_not_wait_for_a_replica_forever(tmp_path: Path) -> None:
    pair = Pair(tmp_path, shutdown_timeout="1")
    try:
        pair.b.signal(signal.SIGSTOP)
        pair.client(pair.a).xadd("s", {"n": 0})
        pair.a.signal(signal.SIGTERM)
        wait_until(lambda: has_stopped(pair.a))
        assert "stopping although replicas lack the last changes: 1" in pair.a.log
    finally:
        pair.stop()
