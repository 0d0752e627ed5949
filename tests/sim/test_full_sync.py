"""A full sync and a promotion that are interrupted at every step of the disk."""

from __future__ import annotations

from itertools import count

import pytest
from tests.sim.fleet import Least
from tests.sim.fleet_node import FleetNode
from tests.sim.test_rewind import OldPrimary, promoted

BASES = ["whole", "old", "none"]  # of the primary: it has all frames, some of them, or is not there


class Diverged(OldPrimary):
    """Server 0 has other frames than server 1, and they are in its base: a rewind is impossible."""

    def __init__(self, seed: int, base: str = "whole") -> None:
        super().__init__(seed, "always")
        for node in self.nodes if base != "none" else self.nodes[:1]:
            node.persistence.snapshots.rewrite()
        self._run()
        if base == "old":
            self._append(1, 9)
        old, new = (node.persistence for node in self.nodes)
        (*_, (line, _)) = self.nodes[0].keyspace.histories
        self.least[0] = Least((line, old.commits.last_seq), new.commits.frame_bytes)

    def begin(self, steps: int) -> bool:
        """Server 0 begins to follow server 1. Whether they are equal after these steps."""
        self._order_roles()
        for _ in range(steps):
            for node in self.nodes:
                if node.has_work():
                    node.step()
            for one in self.connections:
                if one.up.data:
                    one.up.deliver(len(one.up.data))
                elif one.down.data and one.down.is_read:
                    one.down.deliver(min(len(one.down.data), 300))
        return self._is_equal()


@pytest.mark.parametrize("base", BASES)
def test_a_crash_at_any_step_of_a_full_sync(base: str) -> None:
    steps = 0
    while True:
        steps += 1
        fleet = Diverged(steps, base)
        disk = fleet.nodes[0].disk
        disk.crash_at = disk.steps + steps
        fleet.go_back()
        assert fleet.nodes[1].replication.resync.full_syncs >= 1
        if fleet.nodes[0].disk is disk:
            break  # it was not reached
    assert steps > 8


@pytest.mark.parametrize("base", BASES)
def test_a_promotion_at_any_step_of_a_full_sync(base: str) -> None:
    """The link is cut before. The server has the old data, or all of the new data."""
    had_old = 0
    for steps in count(step=2):
        fleet = Diverged(1, base)
        is_equal = fleet.begin(steps)
        node = fleet.nodes[0]
        for one in fleet.connections:
            one.cut()
            one.notify("replica")
        promoted(node)
        fleet.rest()
        fleet._judge(node)
        fleet._judge_least(node)
        had_old += node.persistence.commits.frame_bytes < fleet.least[0].new_bytes
        if is_equal:
            break
    assert had_old > 5


@pytest.mark.parametrize("is_on", [True, False])
def test_a_switch_of_the_journal_during_a_full_sync(is_on: bool) -> None:
    """appendonly is `is_on` first, then the opposite, then on."""
    for steps in count(step=2):
        fleet = Diverged(1, "none")
        node, new_bytes = fleet.nodes[0], fleet.least[0].new_bytes
        switch_journal(node, is_on)
        fleet.rest(1000)
        is_equal = fleet.begin(steps)
        switch_journal(node, not is_on)
        fleet._settle()
        fleet.rest(2000)  # a journal that could not be begun is begun again
        assert node.persistence.commits.attached is not is_on
        switch_journal(node, True)
        fleet.rest(2000)
        assert node.persistence.commits.attached
        fleet._restart(node, node.disk.after_crash(1))
        assert fleet.nodes[0].persistence.commits.frame_bytes >= new_bytes
        if is_equal:
            break


def switch_journal(node: FleetNode, is_on: bool) -> None:
    node.config.appendonly = is_on
    node.persistence.set_appendonly(is_on)


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


def test_a_full_sync_cancelled_after_its_copy_leaves_no_copy() -> None:
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
    assert node.replication.receiver.change is not None
    assert not node.replication.receiver.change.is_published
    promoted(node)
    fleet._run()
    assert not fleet.folders
    assert node.replication.link is None
