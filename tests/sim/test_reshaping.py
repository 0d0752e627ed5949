"""Members join and leave a shard while everything fails: what was confirmed stays."""

from __future__ import annotations

import pytest
from tests.sim.member_world import NODE_TIMEOUT_MS, STEPS, Node, World, WorldFailure
from tests.sim.promises import BrokenPromise
from tests.support.effort import examples

from millstream.server.cluster.cluster_view import Found
from millstream.server.cluster.member_actions import Purpose
from millstream.server.cluster.membership import Part
from millstream.server.cluster.reshaping import Reshaping, reshaped
from millstream.server.cluster.store.records import (
    CHANGE,
    ELECTION,
    Holder,
    ShardChange,
    ShardRecord,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare
from millstream.server.cluster.store_recovery import _ShardRecovery

SPARES = 2
EARLY_SEEDS = range(46, 60)
A, B, C, D = (letter * 40 for letter in "abcd")


class ReshapedWorld(World):
    """Operators change the members, and nodes that left lose their data or come back."""

    def __init__(self, seed: int, steps: int = STEPS, size: tuple[int, int] | None = None) -> None:
        super().__init__(seed, steps, size)
        self.restores = 0  # a member that left may believe a backup in which it is one
        self.may_lose = False  # an operator may not know of a member that joined
        for number in range(self.size, self.size + SPARES):
            node = Node(self, number)
            self.nodes[node.name] = node

    def order(self, change: ShardChange) -> None:
        """Write a change into the store, as `millstream cluster` does."""
        self.note(f"operator orders {change}")
        self.store.commit([Compare(CHANGE + "s1", 0)], [Change(CHANGE + "s1", encode(change))])
        self.tell_watches()

    def _step(self) -> None:
        if self.chance.random() < 0.02:
            self._change_members()
        super()._step()

    def _change_members(self) -> None:
        if self.is_store_lost:
            return
        if CHANGE + "s1" in self.store.values:
            if self.chance.random() < 0.3:  # the operator has waited long enough
                self.note("operator gives-up")
                self.store.commit([], [Change(CHANGE + "s1", None)])
            return
        members = self.record.members
        spares = sorted(self.nodes.keys() - set(members))
        add = self.chance.choice(["", *spares])
        remove = self.chance.choice(["", *members])
        if add or remove:
            self.order(ShardChange(add, remove))


def test_what_is_confirmed_stays_when_members_change() -> None:
    changed = 0
    for seed in range(examples(15)):
        world = ReshapedWorld(seed, STEPS // 2)
        changed += world.run().get("RESHAPE", 0)
    assert changed > 20


def begun(size: int, durable: int) -> tuple[ReshapedWorld, Node, list[Node], list[Node]]:
    """A shard that works: its primary, the other members, and the spares."""
    world = ReshapedWorld(1, size=(size, durable))
    world.lost_replies = world.slow = 0
    world.begin()
    members = world.record.members
    [leader] = world.leaders()
    others = [world.nodes[name] for name in members if name != leader.name]
    spares = [node for name, node in world.nodes.items() if name not in members]
    return world, leader, others, spares


def test_a_member_with_the_only_copy_does_not_leave() -> None:
    """The other one lacks what was confirmed, until it is reached again."""
    world, leader, (has_all, lacks), _ = begun(3, 1)
    lacks.is_frozen = True
    world._write()
    world.pass_time(1000)
    assert len(world.confirmed) == 1
    world.order(ShardChange("", has_all.name))
    world.pass_time(10 * NODE_TIMEOUT_MS)
    assert has_all.name in world.record.members
    lacks.thaw()
    world.pass_time(NODE_TIMEOUT_MS)
    assert set(world.record.members) == {leader.name, lacks.name}
    assert world.record.size == 2
    has_all.is_frozen = True
    world.pass_time(NODE_TIMEOUT_MS)
    world._write()
    world.end()


def test_a_lost_member_is_replaced_and_the_new_one_counts() -> None:
    world, leader, (lost, other), (spare, _) = begun(3, 1)
    lost.is_frozen = True
    term = world.record.term
    world.order(ShardChange(spare.name, lost.name))
    world.pass_time(3 * NODE_TIMEOUT_MS)
    record = world.record
    assert set(record.members) == {leader.name, other.name, spare.name}
    assert (record.size, record.primary, record.term) == (3, leader.name, term + 1)
    other.is_frozen = True  # so only the new one can confirm
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert len(world.confirmed) == 1
    leader.is_frozen = True
    other.thaw()
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert world.record.primary == spare.name
    world.end()


def test_the_election_of_a_member_that_left_stops_no_other() -> None:
    """It lives, so its election stays in the store."""
    world, leader, (left, other), (spare, _) = begun(3, 1)
    lease = left.run.member.lease.id
    candidate = Change(ELECTION + "s1", encode(Holder(left.name, 9)), lease)
    world.order(ShardChange(spare.name, left.name))
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert left.name not in world.record.members
    world.store.commit([], [candidate])
    leader.is_frozen = True
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert world.record.primary in (other.name, spare.name)
    world.end()


def test_a_member_that_may_have_left_counts_after_no_restart() -> None:
    """The primary crashes with the transaction on its way, and etcd does not answer any more."""
    world, leader, (left, other), (spare, _) = begun(3, 1)
    world.order(ShardChange(spare.name, left.name))
    while leader.run.member.writing is not Purpose.RESHAPE:
        world.pass_time(1)
    world.store_cut = {leader.name, left.name}
    other.is_frozen = spare.is_frozen = True
    leader.crash(keeps_all=True)
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert leader.run.member.is_recalled
    assert left.run.member.part is Part.FOLLOWING
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert world.confirmed == []
    other.thaw()  # it has not left
    world.pass_time(NODE_TIMEOUT_MS)
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert len(world.confirmed) >= 1
    world.end()


def test_a_member_leaves_only_with_the_order_on_the_disk() -> None:
    world, leader, (left, _), _ = begun(3, 1)
    world.full_disks = 1
    world.order(ShardChange("", left.name))
    world.pass_time(10 * NODE_TIMEOUT_MS)
    assert left.name in world.record.members
    assert not leader.run.member.is_kept
    world.full_disks = 0
    world.pass_time(2 * NODE_TIMEOUT_MS)
    assert left.name not in world.record.members
    world.end()


def test_a_backup_with_the_old_members_is_not_believed() -> None:
    world, _, (old, _), (spare, _) = begun(3, 1)
    backup = world.store.copy()
    world.order(ShardChange(spare.name, old.name))
    world.pass_time(3 * NODE_TIMEOUT_MS)
    world.store = backup.restarted(world.now_ms / 1000)
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert all(world.nodes[name].run.member.is_store_old for name in world.record.members)


def test_a_member_that_may_have_left_does_not_count_again() -> None:
    """The outcome of the transaction is unknown: it may still be carried out."""
    world, leader, (left, other), (spare, _) = begun(3, 1)
    world.order(ShardChange(spare.name, left.name))
    while leader.run.member.writing is not Purpose.RESHAPE:
        world.pass_time(1)
    world.store_cut = {leader.name}
    other.is_frozen = spare.is_frozen = True
    del leader.run.replica.acked[other.name]  # the links end
    del leader.run.replica.acked[spare.name]
    world._write()
    world.pass_time(5 * NODE_TIMEOUT_MS)
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert world.confirmed == []
    world.end()
    assert left.name not in world.record.members


def test_the_only_member_needs_its_lease_while_another_one_joins() -> None:
    """It may not learn that the other one is a member, which could elect itself."""
    world, leader, [], (spare, _) = begun(1, 0)
    world.order(ShardChange(spare.name, ""))
    while world.record.size == 1:
        world.pass_time(1)
    world.store_cut = {leader.name}
    world.cut = {frozenset((leader.name, spare.name))}
    while not spare.run.member.is_leading:
        world.pass_time(10)
        assert not (
            spare.run.member.may_confirm(spare.clock_ms())
            and leader.run.member.may_confirm(leader.clock_ms())
        )
    world.pass_time(NODE_TIMEOUT_MS)
    assert not leader.run.member.may_confirm(leader.clock_ms())
    world.end()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (ShardChange("", D), "is not one of its members"),
        (ShardChange(D, A), "is its primary: use CLUSTER FAILOVER"),
        (ShardChange(B, ""), "is a member of a shard already"),
        (ShardChange(D, B), ""),
        (ShardChange(D, ""), ""),
        (ShardChange("", C), ""),
    ],
)
def test_wrong_changes_are_refused(change: ShardChange, problem: str) -> None:
    record = ShardRecord("f" * 40, 4, A, (A, B, C), 3, 1)
    shards = {"s1": Found(record, 1, 0)}
    if not problem:
        assert reshaped(record, change, shards).term == 5
        return
    with pytest.raises(ValueError, match=problem):
        reshaped(record, change, shards)


def test_a_shard_keeps_enough_members() -> None:
    record = ShardRecord("f" * 40, 4, A, (A, B), 2, 1)
    with pytest.raises(ValueError, match="it needs 2 to 16 members"):
        reshaped(record, ShardChange("", B), {"s1": Found(record, 1, 0)})
    waiting = record._replace(size=3)
    assert reshaped(waiting, ShardChange(C, ""), {}).size == 3


def test_a_change_that_is_impossible_is_removed_from_the_store() -> None:
    world, leader, _, _ = begun(3, 1)
    world.order(ShardChange("", leader.name))
    world.pass_time(NODE_TIMEOUT_MS)
    assert CHANGE + "s1" not in world.store.values
    assert leader.name in world.record.members


def left_alone() -> tuple[ReshapedWorld, list[Node], list[Node]]:
    """A member is replaced and then alone has, with the primary, what was confirmed; another one
    does not know of it. The store is lost. Those that know the last members, and those that do
    not."""
    world, leader, (left, unaware), (spare, _) = begun(3, 1)
    world.store_cut = {left.name, unaware.name}
    world.order(ShardChange(spare.name, left.name))
    while spare.name not in world.record.members:
        world.pass_time(1)
    unaware.is_frozen = left.is_frozen = True
    world.store_cut = set()
    world.pass_time(NODE_TIMEOUT_MS)
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert len(world.confirmed) == 1
    for node in (left, unaware):
        assert node.run.member.record != world.record, "it has not seen them"
    world._lose_store()
    leader.is_frozen = spare.is_frozen = True
    unaware.thaw()
    left.thaw()
    return world, [leader, spare], [left, unaware]


def test_a_lost_store_is_not_recovered_from_old_members() -> None:
    world, aware, old = left_alone()
    assert not world.recover(old)
    for node in aware:
        node.thaw()
    assert world.recover([*aware, old[1]])
    world.end()


def test_the_simulation_finds_a_recovery_from_old_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ShardRecovery, "_require_certain", lambda self: None)
    world, _, old = left_alone()
    assert world.recover(old)
    with pytest.raises(BrokenPromise, match="which were confirmed"):
        world.pass_time(5 * NODE_TIMEOUT_MS)


def test_the_simulation_finds_a_member_that_leaves_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Reshaping, "_are_ready", lambda *_: True)

    def run() -> None:
        for seed in EARLY_SEEDS:
            ReshapedWorld(seed).run()

    with pytest.raises(WorldFailure, match="which were confirmed"):
        run()
