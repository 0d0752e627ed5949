"""Slots that move between shards of real servers, with a real etcd, while clients write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.support.cluster_writer import ClusterWriter
from tests.support.etcd import Etcd
from tests.support.member_servers import MemberServers, ask
from tests.support.resp import Error, Simple
from tests.support.server import Server
from tests.support.stored_cluster import cluster_command
from tests.support.waiting import wait_until

from millstream.server.cluster.slot_moves.move_rules import owners_of
from millstream.server.cluster.store.records import MoveRecord, Step
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

DEBUG = {"enable-debug-command": "yes", "cluster-handover-timeout": "1"}
MOVE_S = 30.0


class Shards:
    """Two shards of servers, s1 and s2."""

    def __init__(self, folder: Path, etcd: Etcd, size: int) -> None:
        durable = min(1, size - 1)
        self.first = MemberServers(folder / "a", etcd, size, durable, given=DEBUG, shards=2)
        self.second = MemberServers(
            folder / "b", etcd, size, durable, given=DEBUG, neighbour=self.first
        )
        self.servers = self.first.servers + self.second.servers

    def start(self) -> Shards:
        for one in (self.first, self.second):
            one.start()
            one.probe = ""
        return self

    def add(self, shard: str) -> Server:
        """A server that is the primary of a new shard."""
        given = {**self.servers[0].directives, "cluster-shard": shard}
        server = Server(self.servers[0].directory.parent / shard, given)
        server.directory.mkdir()
        self.servers.append(server)
        server.start()
        wait_until(lambda: ask(server, "CLUSTER", "INFO"), lambda text: b"cluster_state:ok" in text)  # type: ignore[operator]
        return server

    def kill(self) -> None:
        for server in self.servers:
            if server.is_alive():
                server.kill()

    def run(self, *words: str) -> list[str]:
        """The lines of a command of `millstream cluster` that succeeds."""
        done = cluster_command(self.first.settings, *words)
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    def move(self) -> MoveRecord:
        """The last move."""
        found = self.first.view().moves.values()
        return max((one.record for one in found), key=lambda one: one.created_ms)

    def owners(self, key: str) -> frozenset[str]:
        slot = cluster_slot_of(key.encode())
        return owners_of(self.first.view().map, ((slot, slot),))

    def wait_for(self, step: Step) -> None:
        wait_until(self.move, lambda one: one.step is step, f"the move to be {step}", MOVE_S)

    def stop_at(self, *steps: str) -> None:
        """Those that run stop at these steps, and continue otherwise."""
        for server in self.servers:
            if server.is_alive():
                words = ("DEBUG", "CLUSTER-STOP", *steps)
                wait_until(partial(ask, server, *words), lambda reply: reply == Simple("OK"))


@pytest.fixture
def make(tmp_path: Path, etcd: Etcd) -> Iterator[Callable[[int], Shards]]:
    made: list[Shards] = []

    def call(size: int) -> Shards:
        made.append(Shards(tmp_path, etcd, size))
        return made[0].start()

    yield call
    made[0].kill()


def keys_of(server: Server) -> set[bytes]:
    found = ask(server, "KEYS", "*")
    assert isinstance(found, list)
    return {key for key in found if isinstance(key, bytes)}


def test_slots_move_while_clients_write(make: Callable[[int], Shards]) -> None:
    """Also while both primaries are killed in the hand-over."""
    shards = make(3)
    writers = [ClusterWriter(shards.servers, f"writer{number}") for number in range(3)]
    client = writers[0].client
    for number in range(100):
        client.set(f"k{number}", number)
    assert shards.run("move", "0-16383", "s2")[-1] == "8192 of 8192 slots moved"
    assert keys_of(shards.first.wait_for_primary()) == set()
    for writer in writers:
        writer.wait_for_more(10)

    shards.stop_at("handing")
    shards.run("move", "4000-12000", "s1", "--no-wait")
    shards.wait_for(Step.HANDING)
    killed = [one.primary() for one in (shards.first, shards.second)]
    for server in killed:
        assert server is not None
        server.kill()
    shards.stop_at()
    shards.wait_for(Step.DONE)
    for server in killed:
        assert server is not None
        server.launch()
    for one in (shards.first, shards.second):
        one.wait_for_followers()
    for writer in writers:
        writer.wait_for_more(10)
        writer.check()
    assert [client.get(f"k{number}") for number in range(100)] == [
        b"%d" % number for number in range(100)
    ]
    ranges = shards.first.view().map.ranges
    assert ranges == ((0, 3999, "s2"), (4000, 12000, "s1"), (12001, 16383, "s2"))


def test_moves_of_shards_of_one_server(make: Callable[[int], Shards], etcd: Etcd) -> None:
    """CLUSTER MIGRATION; a kill of both sides after the map has changed; a new shard."""
    shards = make(1)
    servers = [shards.first.servers[0], shards.second.servers[0]]
    writer = ClusterWriter(servers)
    shards.stop_at("copying")
    move = ordered(servers[0], "IMPORT", "8192", "9000", "16000", "16383")
    shards.wait_for(Step.COPYING)
    assert b"\r\ncluster_moves:1\r\n" in ordered(servers[1], "", command="INFO")
    assert ordered(servers[0], "CANCEL", "ID", move.decode()) == 1
    found = status(servers[0], move)
    assert (found[b"state"], found[b"slots"]) == (b"canceled", b"8192-9000 16000-16383")
    assert ordered(servers[0], "STATUS") == ordered(servers[0], "STATUS", "ALL") != []
    for words in (["CANCEL"], ["STATUS", "ID"]):
        assert "wrong number of arg" in str(ask(servers[0], "CLUSTER", "MIGRATION", *words))

    for words, problem in (
        (["FORC"], "unknown argument"),
        (["FORCE", "FORCE"], "wrong number of arguments"),
        (["FORCE"], f"the move {move.decode()} does not wait for another shard"),
    ):
        for server in servers:
            refused = ask(server, "CLUSTER", "MIGRATION", "CANCEL", "ID", move.decode(), *words)
            assert problem in str(refused)
    for words in (["CANCEL", "ALL", "FORCE"], ["STATUS", "ID", "x", "FORCE"]):
        assert "wrong number of arg" in str(ask(servers[0], "CLUSTER", "MIGRATION", *words))

    twice = ask(servers[0], "CLUSTER", "MIGRATION", "IMPORT", "9000", "9010", "9005", "9005")
    assert twice == Error("ERR Slot 9005 specified multiple times")

    shards.stop_at("moved")
    move = ordered(servers[1], "IMPORT", "0", "8191")
    shards.wait_for(Step.MOVED)
    for server in servers:
        server.kill()
    for server in servers:
        server.launch()
    shards.wait_for(Step.DONE)
    wait_until(lambda: status(servers[1], move)[b"state"], lambda one: one == b"completed")
    assert status(servers[0], move)[b"operation"] == b"migrate"
    wait_until(lambda: keys_of(servers[0]), lambda keys: not keys, "no keys of other slots")

    assert shards.run("add-shard") == ["shard s3 has no slots yet"]
    third = shards.add("s3")
    assert shards.run("rebalance")[-1] == "10922 of 10922 slots moved"
    key = next(f"k{n}" for n in count() if "s3" in shards.owners(f"k{n}"))
    assert ask(third, "SET", key, "1") == Simple("OK")
    assert shards.run("drain", "s3")[-1] == "5461 of 5461 slots moved"
    writer.wait_for_more(10)
    writer.check()


def test_slots_that_have_left_are_served_again(make: Callable[[int], Shards]) -> None:
    """The source is killed in a hand-over, and asks the target. At the second time, the target is
    lost, and an operator says so."""
    shards = make(1)
    source, target = shards.first.servers[0], shards.second.servers[0]
    key = next(f"k{n}" for n in count() if "s1" in shards.owners(f"k{n}"))
    assert ask(source, "SET", key, "1") == Simple("OK")
    move = ordered(target, "IMPORT", "0", "8191")

    def leave_and_be_killed() -> None:
        shards.stop_at("handing")
        shards.wait_for(Step.HANDING)
        shards.stop_at("move")  # the target asks the source, and does not write the map
        wait_until(lambda: keys_of(source), lambda keys: not keys, "the slots to leave")
        source.kill()

    def serves() -> object:
        return ask(source, "GET", key)

    shards.stop_at("handing")
    leave_and_be_killed()
    source.launch()
    wait_until(serves, lambda reply: reply == b"1", "the slots to be served", MOVE_S)
    assert status(source, move)[b"retries"] == 1

    leave_and_be_killed()
    target.kill()
    source.launch()
    waits = b"the other shard has to say that it does not serve the slots"
    wait_until(lambda: status(source, move).get(b"last_error"), lambda text: text == waits)
    wait_until(serves, lambda reply: "TRYAGAIN" in str(reply))
    assert ordered(source, "CANCEL", "ID", move.decode(), "FORCE") == 1
    wait_until(serves, lambda reply: reply == b"1")


def ordered(server: Server, *words: str, command: str = "MIGRATION") -> Any:
    reply = ask(server, "CLUSTER", command, *filter(None, words))
    assert not isinstance(reply, Error), reply
    return reply


def status(server: Server, move: bytes) -> dict[bytes, object]:
    found = ask(server, "CLUSTER", "MIGRATION", "STATUS", "ID", move.decode())
    if isinstance(found, Error) or not found:
        return {b"state": found}
    assert isinstance(found, list)
    words = found[0]
    assert isinstance(words, list)
    return dict(zip(words[::2], words[1::2], strict=True))  # type: ignore[arg-type]
