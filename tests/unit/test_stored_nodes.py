"""The shards of a cluster in etcd, as the gateway sees them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from millstream.server.cluster.slot_map import new_id
from millstream.server.cluster.store.records import (
    CONFIG,
    MAP,
    NODE,
    SHARD,
    Format,
    NodeRecord,
    ShardRecord,
    SlotRanges,
    encode,
)
from millstream.server.cluster.store.store import Contents, Unreachable, Value
from millstream.server.gateway.stored_nodes import StoredNodes

A, B, C = (new_id() for _ in range(3))
PORTS = {A: 7001, B: 7002, C: 7003}
TLS_PORTS: dict[str, int] = {}
HALF = 8191
DOWN = b"-CLUSTERDOWN Hash slot not served: shard %s cannot be reached\r\n"


class Stored:
    """The nodes of a store with the shards s1, of A and B, and s2, of C."""

    def __init__(self, *, is_protected: bool = True) -> None:
        store: Any = None
        self.nodes = StoredNodes(store, None, is_protected=is_protected)
        self.moved: list[int] = []
        self.changes = 0
        self.nodes.on_moved = self.moved.append
        self.rerouted: list[list[int]] = []  # the nodes of slots 0 and 100 after each change
        self.nodes.on_rerouted = self._note_rerouted
        self.nodes.on_change = self._note_change
        self._revision = 0

    def _note_rerouted(self) -> None:
        self.rerouted.append([self.nodes.routes.node_of(slot) for slot in (0, 100)])

    def _note_change(self) -> None:
        self.changes += 1

    def take(
        self,
        primary: str,
        term: int,
        *,
        epoch: int = 1,
        half: int = HALF,
        gone: str = "",
        strangers: Sequence[str] = (),
    ) -> None:
        """The store has this primary of s1, and slots up to `half` in s1."""
        found = {CONFIG: encode(Format(1))}
        found[MAP] = encode(SlotRanges(epoch, ((0, half, "s1"), (half + 1, 16383, "s2"))))
        found[SHARD + "s1"] = encode(ShardRecord(A, term, primary, (A, B), 2, 1))
        found[SHARD + "s2"] = encode(ShardRecord(B, 1, C, (C,), 1, 0))
        for node, port in [*PORTS.items(), *((node, 7009) for node in strangers)]:
            if node != gone:
                tls_port = TLS_PORTS.get(node, 0)
                record = NodeRecord("127.0.0.1", port, tls_port, "", "", "1", "s1")
                found[NODE + node] = encode(record)
        self._revision += 1
        self.nodes.take(Contents(self._revision, {n: Value(d, 1, 0) for n, d in found.items()}))

    def port_of(self, slot: int) -> int | None:
        node = self.nodes.routes.node_of(slot)
        return None if node in self.nodes.failed else self.nodes.place_of(node, "").port


@pytest.fixture
def stored() -> Stored:
    found = Stored()
    found.take(A, 1)
    return found


def test_slots_belong_to_the_primaries(stored: Stored) -> None:
    assert (stored.port_of(0), stored.port_of(HALF), stored.port_of(HALF + 1)) == (7001, 7001, 7003)
    assert len(stored.nodes.all) == 2
    stored.moved.clear()
    stored.take(B, 2)
    assert stored.port_of(0) == 7002
    assert stored.moved == [stored.nodes.routes.node_of(0)]
    stored.take(B, 2, epoch=2, half=99)
    assert (stored.port_of(99), stored.port_of(100)) == (7002, 7003)
    s1, s2 = map(stored.nodes.routes.node_of, (0, 100))
    assert stored.rerouted[-2:] == [[s1, s1], [s1, s2]]
    changes = stored.changes
    stored.take(B, 2, epoch=2, half=99)
    assert stored.changes == changes


@pytest.mark.parametrize(("is_protected", "host"), [(True, "10.0.0.1"), (False, "127.0.0.1")])
def test_nodes_see_that_a_client_is_on_another_machine(*, is_protected: bool, host: str) -> None:
    stored = Stored(is_protected=is_protected)
    stored.take(A, 1)
    place_of, node = stored.nodes.place_of, stored.nodes.routes.node_of(0)
    assert place_of(node, "127.0.0.1").host == "127.0.0.1"
    assert place_of(node, "10.0.0.1").host == host


def test_nothing_is_known_before_the_store_has_answered() -> None:
    empty = Stored().nodes
    node = empty.routes.node_of(5)
    assert node in empty.failed
    assert empty.unreachable(node) == b"-CLUSTERDOWN Hash slot not served\r\n"
    assert empty.all == []


def test_a_store_from_before_is_not_believed(stored: Stored) -> None:
    stored.take(B, 5, epoch=3, half=99)
    stored.take(A, 4, epoch=2)
    assert (stored.port_of(99), stored.port_of(100)) == (7002, 7003)


def test_a_primary_that_has_ended_is_still_known_by_its_address(stored: Stored) -> None:
    stored.take(A, 1, gone=A)  # it may run, without etcd
    assert stored.port_of(0) == 7001
    stored.take("", 2)
    assert stored.port_of(0) is None
    node = stored.nodes.routes.node_of(0)
    assert stored.nodes.unreachable(node) == DOWN % b"s1"


def test_nodes_that_have_left_are_forgotten(stored: Stored) -> None:
    stored.take(A, 1, strangers=[new_id()])
    assert len(stored.nodes._known) == 4
    stored.take(A, 1, gone=A)
    assert stored.nodes._known.keys() == {A, B, C}


def test_nodes_of_two_machines_may_have_one_port(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "PORTS", dict.fromkeys(PORTS, 7001))
    monkeypatch.setattr(sys.modules[__name__], "TLS_PORTS", {A: 8001, B: 8002})
    stored.take(A, 2)
    assert stored.nodes.ports_for(is_tls=True) == {A.encode(): 8001, B.encode(): 8002}
    assert stored.nodes.ports_for(is_tls=False) == {}


def test_nodes_with_tls_only_are_named(
    stored: Stored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(PORTS, B, 0)
    for term in (2, 3):
        stored.take(B, term)
    assert caplog.text.count("s1, at 127.0.0.1, has only a port for TLS: start the gateway") == 1


def test_without_the_store_moved_is_followed(stored: Stored) -> None:
    async def check() -> None:
        nodes = stored.nodes
        s1 = nodes.routes.node_of(0)
        looks: list[None] = []
        nodes._follower.look_soon = lambda: looks.append(None)  # type: ignore[method-assign]
        nodes.note_refusal(s1, b"-MOVED 0 127.0.0.1:7002\r\n")
        await asyncio.sleep(0)
        assert (looks, stored.port_of(0)) == ([None], 7001)  # the store knows better
        nodes._lose(Unreachable("it is gone"))
        nodes.note_refusal(s1, b"-MOVED 0 127.0.0.1:7002\r\n")
        await asyncio.sleep(0)
        assert (stored.port_of(0), stored.port_of(HALF)) == (7002, 7002)
        nodes.note_refusal(s1, b"-MOVED 0 10.0.0.9:7009\r\n")  # a node without a record
        await asyncio.sleep(0)
        assert (stored.port_of(0), stored.port_of(1)) == (7009, 7002)
        assert stored.rerouted[-1] == [nodes.routes.node_of(0), s1]
        nodes.note_refusal(s1, nodes.unreachable(s1))  # the other member may be the primary
        nodes.note_refusal(s1, nodes.unreachable(s1))  # of several clients: once
        await asyncio.sleep(0)
        assert stored.port_of(1) == 7001
        for wrong in (b"-MOVED\r\n", b"-MOVED x y:z\r\n", b"-MOVED 16384 h:1\r\n"):
            nodes.note_refusal(s1, wrong)
        await asyncio.sleep(0)
        stored.take(B, 2)
        assert [stored.port_of(slot) for slot in (0, 1, HALF + 1)] == [7002, 7002, 7003]

    asyncio.run(check())
