"""A replica that cannot apply a frame: nothing after the frame is applied, and what is in memory
is not served, with any later events."""

from __future__ import annotations

import pytest
from tests.sim.fleet_node import FleetNode
from tests.sim.test_turns import Pair

from millstream.commands.runtime.effects import EffectError
from millstream.errors import CommandError
from millstream.server.replication import receiver

POISON = b"poison"


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Pair:
    """Two servers; the replica cannot apply a frame with POISON, but a part of it."""
    apply = receiver.apply_effects

    def some(keyspace: object, payload: bytes) -> int:
        changes = apply(keyspace, payload)  # type: ignore[arg-type]
        if POISON in payload:
            raise EffectError(0, "set by the test")
        return changes

    made = Pair(1)
    monkeypatch.setattr(receiver, "apply_effects", some)
    return made


def append(node: FleetNode, value: bytes) -> None:
    node.ask(node.accept(), b"XADD", b"a", b"*", b"n", value)


def break_replica(fleet: Pair) -> None:
    """The frames reach the replica, which applies none of them before the link is cut."""
    primary, replica = fleet.nodes
    append(primary, b"1")
    fleet.rest()
    arrived = replica.replication.receiver
    arrived._is_scheduled = True  # the loop has not got to it yet
    for value in (b"2", POISON, b"3"):
        append(primary, value)
        fleet.rest()
    arrived._is_scheduled = False
    assert len(arrived._pending) == 3


def test_frames_after_one_that_cannot_be_applied_are_not_applied(fleet: Pair) -> None:
    primary, replica = fleet.nodes
    break_replica(fleet)
    for link in fleet.connections:
        link.cut()
    fleet.rest()
    assert replica.replication.receiver.is_wrong
    assert replica.persistence.commits.last_seq == primary.persistence.commits.last_seq - 2


def test_a_server_whose_data_may_be_wrong_is_not_promoted(fleet: Pair) -> None:
    _, replica = fleet.nodes
    break_replica(fleet)
    for _ in range(2):
        with pytest.raises(CommandError, match="Restart this server"):
            replica.replication.no_primary(is_independent=False)
    assert replica.replication.link is not None
    assert replica.config.replicaof


def test_a_full_sync_is_requested_from_another_primary(
    fleet: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, replica = fleet.nodes
    break_replica(fleet)
    for link in fleet.connections:
        link.cut()
    fleet.rest()
    monkeypatch.undo()
    replica.ask(replica.accept(), b"REPLICAOF", b"fleet", b"7001")  # itself: no link
    assert replica.replication.receiver.is_wrong
    replica.ask(replica.accept(), b"REPLICAOF", b"fleet", b"7000")
    for _ in range(3):
        fleet.second()
    assert not replica.replication.receiver.is_wrong
    assert replica.replication.link.is_connected
    assert fleet._is_equal()
