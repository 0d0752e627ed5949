"""A full sync and a promotion that are interrupted at every step of the disk."""

from __future__ import annotations

import pytest
from tests.sim.test_rewind import OldPrimary, promoted


class Diverged(OldPrimary):
    """Server 0 has other frames than server 1, and they are in its base: a rewind is impossible."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, "always")
        for node in self.nodes:
            node.persistence.snapshots.rewrite()
        self._run()


@pytest.mark.parametrize("tear", [False, True])
def test_a_crash_at_any_step_of_a_full_sync(tear: bool) -> None:
    steps = 0
    while True:
        steps += 1
        fleet = Diverged(steps)
        disk = fleet.nodes[0].disk
        disk.crash_at = disk.steps + steps
        fleet.go_back()
        assert fleet.nodes[1].replication.resync.full_syncs >= 1
        if fleet.nodes[0].disk is disk:
            break  # it was not reached
    assert steps > 8


def test_a_crash_at_any_step_of_a_promotion() -> None:
    steps = 0
    while True:
        steps += 1
        fleet = OldPrimary(steps, "always")
        fleet.go_back()
        node = fleet.nodes[0]
        disk = node.disk
        disk.crash_at = disk.steps + steps
        fleet.guarded_ask(node, b"REPLICAOF", b"NO", b"ONE")
        fleet.run_guarded()  # the last frames arrive
        fleet.guarded_ask(fleet.nodes[0], b"XADD", b"a", b"*", b"n", b"after")
        fleet.run_guarded()
        fleet.partitions.clear()
        fleet.follow(0)
        if fleet.nodes[0].disk is disk:
            break
    assert steps > 2


def test_a_full_sync_that_is_cancelled_after_its_copy_leaves_no_copy() -> None:
    fleet = Diverged(1)
    node = fleet.nodes[0]
    fleet._order_roles()
    while not fleet.folders:
        busy = [one for one in fleet.nodes if one.has_work()]
        if busy:
            busy[0].step()
        elif fleet._deliverable():
            fleet._deliver()
        else:
            fleet._advance(1000)
    assert node.replication.change is not None
    assert not node.replication.change.is_published
    promoted(node)
    fleet._run()
    assert not fleet.folders
    assert node.replication.following is None
