"""A replica records that its primary has accepted it; what it confirms depends on the record."""

from __future__ import annotations

from tests.sim.test_turns import Pair


def test_frames_count_as_synced_after_the_acceptance_is_stored() -> None:
    """After a restart without the record, Sentinel would not choose the replica, whatever frames
    it has."""
    fleet = Pair(1)
    primary, replica = fleet.nodes
    replica.ask(replica.accept(), b"REPLICAOF", b"NO", b"ONE")
    fleet.rest()
    replica.disk.fail("rename", times=None)
    replica.ask(replica.accept(), b"REPLICAOF", b"fleet", b"7000")
    fleet.second()
    primary.ask(primary.accept(), b"XADD", b"a", b"*", b"n", b"1")
    for _ in range(3):
        fleet.second()
    seq = primary.persistence.commits.last_seq
    assert replica.persistence.commits.on_disk_seq == seq
    assert primary.replication.applied_on(seq) == 1
    assert primary.replication.synced_on(seq) == 0
    replica.disk.mend()
    for _ in range(3):
        fleet.second()
    assert primary.replication.synced_on(seq) == 1
