"""FAILOVER to a replica that cannot be the primary of others, or is no longer."""

from __future__ import annotations

import pytest
from tests.sim.durable_fleet import play as play_durable
from tests.sim.test_turns import Pair


def test_a_replica_whose_journal_does_not_work_stays_a_replica() -> None:
    fleet = Pair(1)
    primary, replica = fleet.nodes
    replica.disk.fail("write", times=None)
    primary.ask(primary.accept(), b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    assert replica.persistence.writable_error() is not None
    primary.ask(primary.accept(), b"FAILOVER")
    for _ in range(5):
        fleet.rest()
    assert not primary.replication.failover.is_under_way
    assert primary.replication.link is None
    assert replica.replication.link is not None


def lost_answer() -> Pair:
    """Two servers in a FAILOVER: the replica has taken over, and its answer is lost."""
    fleet = Pair(1)
    old, new = fleet.nodes
    old.ask(old.accept(), b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    old.ask(old.accept(), b"FAILOVER")
    while new.replication.link is not None:
        fleet.turn()
    for link in fleet.connections:
        link.cut()
    return fleet


def test_a_refusal_after_the_takeover_leaves_one_primary() -> None:
    fleet = lost_answer()
    old, new = fleet.nodes
    new.disk.fail("write", times=None)
    new.ask(new.accept(), b"XADD", b"a", b"*", b"n", b"2")
    for _ in range(3):
        fleet.second()
    assert new.persistence.writable_error() is not None
    assert old.replication.link is not None
    assert old.replication.failover.is_under_way
    new.disk.mend()
    new.ask(new.accept(), b"BGREWRITEAOF")
    for _ in range(3):
        fleet.second()
    assert not old.replication.failover.is_under_way
    assert old.replication.link is not None
    assert old.replication.link.is_connected


def test_a_replica_that_has_lost_frames_does_not_take_over() -> None:
    """The power fails after it has acknowledged all frames, and before it is asked."""
    fleet = Pair(1)
    old, new = fleet.nodes
    old.ask(old.accept(), b"XADD", b"a", b"*", b"n", b"1")
    for _ in range(3):
        fleet.second()  # the frame is on both disks
    old.ask(old.accept(), b"XADD", b"a", b"*", b"n", b"2")
    fleet.rest()
    old.ask(old.accept(), b"FAILOVER")
    while old.replication.link is None:
        fleet.turn()
    fleet._restart(new, new.disk.after_crash(1))
    new = fleet.nodes[1]
    assert 0 < new.persistence.commits.last_seq < old.persistence.commits.last_seq
    for _ in range(5):
        fleet.second()
    assert not old.replication.failover.is_under_way
    assert old.replication.link is None
    assert new.replication.link is not None
    assert new.persistence.commits.last_seq == old.persistence.commits.last_seq


def test_a_failover_under_replicas_durable_waits_for_the_disk() -> None:
    fleet = Pair(1)
    old, new = fleet.nodes
    old.config.replicas_durable = 1
    old.replication.restrictions.update()
    new.config.appendfsync = "no"
    old.ask(old.accept(), b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    assert new.persistence.commits.last_seq == old.persistence.commits.last_seq
    assert new.persistence.commits.on_disk_seq < new.persistence.commits.last_seq
    old.ask(old.accept(), b"FAILOVER")
    fleet.rest()
    assert old.replication.failover.state == "waiting-for-sync"
    new.persistence.commits.sync_soon()
    for _ in range(3):
        fleet.second()
    assert old.replication.link is not None
    assert new.replication.link is None


def test_a_promoted_replica_of_a_later_primary_ends_no_failover() -> None:
    """Its answer was lost, and it was the primary of another FAILOVER before it is asked again. The
    old primary follows it: there is one primary."""
    play_durable(50210)


@pytest.mark.parametrize("seed", [50012, 70562, 71730])
def test_a_failover_that_loses_its_primary_keeps_its_writes(seed: int) -> None:
    play_durable(seed)


def test_an_unlinked_replica_that_serves_no_old_data_takes_over() -> None:
    """It loses its link at the moment when its primary follows it."""
    fleet = Pair(1)
    old, new = fleet.nodes
    new.config.replica_serve_stale_data = False
    old.ask(old.accept(), b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    old.ask(old.accept(), b"FAILOVER")
    for _ in range(3):
        fleet.second()
    assert new.replication.link is None
    assert old.replication.link is not None
    assert old.replication.link.is_connected


def test_a_server_that_loads_data_does_not_end_a_failover() -> None:
    """It may have taken over before: it is asked again."""
    fleet = lost_answer()
    old, new = fleet.nodes
    new.executor.begin_loading()
    for _ in range(3):
        fleet.second()
    assert old.replication.failover.is_under_way
    new.executor.end_loading()
    for _ in range(3):
        fleet.second()
    assert not old.replication.failover.is_under_way
    assert old.replication.link is not None
