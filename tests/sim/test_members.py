"""Members of a shard over a model of the store: seeds, and single events."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import cast

import pytest
from tests.sim.member_world import LEASE_S, NODE_TIMEOUT_MS, STEPS, Node, World, play

from millstream.commands.admin.cluster_peers import Reason
from millstream.server.cluster.cluster_view import Found, view_of
from millstream.server.cluster.member_actions import Purpose, Write
from millstream.server.cluster.member_service import is_calm
from millstream.server.cluster.membership import Part
from millstream.server.cluster.slot_moves.move_judge import MoveJudge
from millstream.server.cluster.slot_moves.move_rules import ENDED
from millstream.server.cluster.store.records import NODE, MoveRecord, NodeRecord, Step, decode
from millstream.server.cluster.store.store import Change

SEEDS = 40
EVENTS = {
    "confirmed",
    "leads",
    "follows",
    "rests",
    "restored",
    "GIVE_UP",
    "thaws",
    "is-ordered",
    "is-alone",
    "leads-again",
    "is-empty",
    "recovers",
    "is-refused",
}


def test_what_is_confirmed_stays_and_one_member_leads() -> None:
    events: set[str] = set()
    for seed in range(SEEDS):
        events |= play(seed, STEPS // 2).keys()
    assert EVENTS - events == set()


def begun(size: int, durable: int) -> tuple[World, Node]:
    """A shard whose members have all joined, and its primary."""
    world = World(1, size=(size, durable))
    world.lost_replies = world.slow = 0
    world.begin()
    [leader] = world.leaders()
    return world, leader


def others(world: World, leader: Node) -> list[Node]:
    return [node for node in world.nodes.values() if node is not leader]


def force(node: Node) -> None:
    """CLUSTER FAILOVER FORCE at this node."""
    run = node.run
    run.do(lambda: run.member.stand(Reason.FORCE, run.now_ms))


def elections(world: World) -> int:
    return sum(node.run.member.candidate.elections for node in world.nodes.values())


@pytest.mark.parametrize(("size", "durable"), [(3, 1), (5, 2), (2, 1)])
def test_a_silent_primary_is_replaced_after_the_node_timeout(size: int, durable: int) -> None:
    world, leader = begun(size, durable)
    leader.is_frozen = True
    since_ms = world.now_ms
    while not any(node.run.member.is_leading for node in others(world, leader)):
        world.pass_time(10)
    assert NODE_TIMEOUT_MS // 2 < world.now_ms - since_ms < NODE_TIMEOUT_MS + 500
    world.end()


def test_a_primary_for_which_nothing_is_due_is_calm() -> None:
    world, leader = begun(3, 0)
    world.pass_time(2000)
    member, now_ms = leader.run.member, world.now_ms
    assert [is_calm(node.run.member, now_ms) for node in others(world, leader)] == [False, False]
    end_ms = member.held_until_ms()
    assert is_calm(member, now_ms)
    assert is_calm(member, end_ms - 1000)
    assert not is_calm(member, end_ms - 100)  # soon it may not confirm
    view = member.view
    assert view is not None
    for step in Step:  # the records of moves that have ended stay for a long time
        move = MoveRecord(((0, 9),), "s1", "s2", step, created_ms=1)
        member.view = view._replace(moves={"f" * 40: Found(move, 1, 0)})
        assert is_calm(member, now_ms) == (step in ENDED)
    member.view = view
    ranges = {"f" * 40: ((0, 9),)}
    for imports, departures in (({}, {}), (ranges, {}), ({}, ranges)):  # in its data
        data = SimpleNamespace(imports=imports, departures=departures)
        member.moves = cast(MoveJudge, SimpleNamespace(data=data))
        assert is_calm(member, now_ms) == (not imports and not departures)
    member.moves = None
    member.write(Purpose.HOLD, [], [])
    assert not is_calm(member, now_ms)


def test_the_addresses_of_nodes_that_have_left_are_forgotten() -> None:
    _, leader = begun(3, 1)
    member, now_ms = leader.run.member, leader.run.now_ms
    view = member.view
    assert view is not None
    members = {*view.shards[member.shard].record.members}
    stranger = "f" * 40
    found = Found(NodeRecord("h", 1, 0, "", "", "", ""), 1, 1)
    member.take(view._replace(nodes={**view.nodes, stranger: found}), now_ms)
    assert member.known.keys() == {*members, stranger}
    member.take(view._replace(nodes={}), now_ms)  # members that do not run keep their addresses
    assert member.known.keys() == members


def test_without_copies_a_primary_is_replaced_after_its_lease() -> None:
    world, leader = begun(3, 0)
    leader.is_frozen = True
    while not any(node.run.member.is_leading for node in others(world, leader)):
        assert "lease/s1" in world.store.values or not leader.run.member.may_confirm(
            leader.clock_ms()
        )
        world.pass_time(10)
    world.end()


def test_a_primary_has_the_lease_with_which_it_wrote_its_name() -> None:
    """The outcome of the transaction arrives when that lease has ended, and there is another."""
    world, leader = begun(3, 0)
    member, now_ms = leader.run.member, leader.clock_ms()
    while member.writing is not None:
        world.pass_time(1)
    world.store.commit([], [Change("lease/s1", None)])
    member.take(view_of(world.store.read()), now_ms)
    [write] = [one for one in member.actions if isinstance(one, Write)]
    assert write.purpose is Purpose.HOLD
    commit = world.store.commit(write.compares, write.changes)
    member.lease.end()
    member.lease.granted(12345, LEASE_S, now_ms)
    member.written(Purpose.HOLD, commit, now_ms)
    assert not member.may_confirm(now_ms)


def test_a_primary_that_is_forced_after_its_restart_is_elected() -> None:
    world, leader = begun(3, 1)
    leader.crash(keeps_all=True)
    force(leader)
    world.pass_time(3 * NODE_TIMEOUT_MS)
    world.end()


def test_a_member_that_alone_is_cut_off_ends_no_primary() -> None:
    world, leader = begun(3, 1)
    term = leader.run.member.led_term
    world.cut = {frozenset((leader.name, others(world, leader)[0].name))}
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert elections(world) > 1
    assert leader.run.member.is_leading
    assert leader.run.member.led_term == term
    world.end()


@pytest.mark.parametrize("durable", [0, 1])
def test_a_primary_stands_after_a_promise_of_a_member(durable: int) -> None:
    world, leader = begun(3, durable)
    term = leader.run.member.led_term
    other = others(world, leader)[0]
    other.run.replica.promise(term + 1)
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert world.leaders() == [leader]
    assert leader.run.member.led_term > term + 1
    assert other.run.member.part is Part.FOLLOWING
    world.end()


def test_a_primary_without_the_store_confirms_with_members() -> None:
    world, leader = begun(3, 1)
    world.store_cut = set(world.nodes)
    world.pass_time(60_000)
    assert leader.run.member.may_serve(leader.clock_ms())
    world.end()


def test_a_primary_without_the_store_and_without_copies_stops() -> None:
    world, leader = begun(3, 0)
    world.store_cut = set(world.nodes)
    world.pass_time(60_000)
    assert not leader.run.member.may_serve(leader.clock_ms())
    world.end()


def served_by(world: World, leader: Node) -> None:
    """The shard confirms without the store, in the same term."""
    term = world.record.term
    assert world.leaders() == [leader]
    assert leader.run.member.led_term == term
    before = len(world.confirmed)
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert len(world.confirmed) == before + 1
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert world.record.term == term
    world.end()


def test_a_primary_leads_its_term_again_without_the_store() -> None:
    world, leader = begun(3, 1)
    world._write()
    world.pass_time(100)
    world.store_cut = set(world.nodes)
    leader.crash(keeps_all=False)
    world.pass_time(2 * NODE_TIMEOUT_MS)
    served_by(world, leader)


def test_a_shard_without_the_store_continues_after_power_loss() -> None:
    world, leader = begun(5, 2)
    world._write()
    world.store_cut = set(world.nodes)
    for node in world.nodes.values():
        node.crash(keeps_all=False)
    world.pass_time(2 * NODE_TIMEOUT_MS)
    served_by(world, leader)


def test_without_the_store_an_old_primary_confirms_nothing() -> None:
    """The members have promised a higher term, and follow another one."""
    world, leader = begun(3, 1)
    leader.is_frozen = True
    world.pass_time(3 * NODE_TIMEOUT_MS)
    [successor] = [node for node in world.leaders() if node is not leader]
    world._write()
    world.store_cut = set(world.nodes)
    leader.crash(keeps_all=True)
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert leader.run.member.is_recalled
    assert not leader.run.member.may_serve(leader.clock_ms())
    assert successor.run.member.may_serve(successor.clock_ms())
    leader.run.do(lambda: leader.run.replica.append("w0"))
    world._begun["w0"] = world.now_ms
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert "w0" not in {one.name for one in world.confirmed}
    world.end()


def test_a_copied_directory_takes_no_part_without_the_store() -> None:
    world, leader = begun(3, 1)
    world.store_cut = set(world.nodes)
    copy = Node(world, 3)
    copy.name, copy.disk = leader.name, deepcopy(leader.disk)
    copy.start()
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert copy.run.member.is_lost
    assert copy.run.member.part is Part.RESTING
    assert copy.run.member.refusal_of(leader.name, 9, Reason.FORCE, copy.clock_ms())


def test_without_copies_a_restarted_primary_needs_the_store() -> None:
    world, leader = begun(3, 0)
    world.store_cut = set(world.nodes)
    leader.crash(keeps_all=True)
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert world.leaders() == []
    world.end()


def test_an_election_is_removed_although_its_removal_was_lost() -> None:
    world, leader = begun(3, 1)
    other = others(world, leader)[0]
    world.cut = {frozenset((leader.name, other.name))}
    while "election/s1" not in world.store.values:
        world.pass_time(10)
    world.store_cut = {other.name}
    world.pass_time(2 * NODE_TIMEOUT_MS)
    world.heal()
    world.pass_time(2 * NODE_TIMEOUT_MS)
    assert "election/s1" not in world.store.values
    world.end()


def test_a_store_with_lower_terms_is_not_believed() -> None:
    world, leader = begun(3, 1)
    backup = world.store.copy()
    other = others(world, leader)[0]
    force(other)
    world.pass_time(NODE_TIMEOUT_MS)
    [successor] = world.leaders()
    assert successor is not leader
    world.store = backup.restarted(world.now_ms / 1000)
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert world.leaders() == [successor]
    assert successor.run.member.is_store_old
    assert successor.run.member.may_serve(successor.clock_ms())
    written = world.store.values[NODE + successor.name].data
    assert decode(NodeRecord, written, NODE).is_ahead, "the store says that it is ignored"
    leader.crash(keeps_all=True)  # also after its restart it does not lead again
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert world.leaders() == [successor]


def test_a_store_from_before_a_member_joined_is_not_believed() -> None:
    """The new member has a confirmed write that the other one lacks, and another node takes its
    place in the restored store."""
    world = World(1, size=(3, 1))
    world.lost_replies = world.slow = 0
    first, second, joined = world.nodes.values()
    del world.nodes[joined.name]
    world.begin()
    [leader] = world.leaders()
    other = second if leader is first else first
    backup = world.store.copy()
    world.nodes[joined.name] = joined
    joined.start()
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert leader.run.member.is_leading
    world.cut = {frozenset((leader.name, other.name))}
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert len(world.confirmed) == 1
    world.store = backup.restarted(world.now_ms / 1000)
    world.cut.clear()
    leader.is_frozen = joined.is_frozen = True
    spare = world.nodes["3" * 40] = Node(world, 3)
    spare.start()
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert spare.name in world.record.members
    assert not other.run.member.is_leading
    assert other.run.member.is_store_old


def test_a_store_that_was_restored_is_recovered_from_the_members() -> None:
    """The members have a later term, and believe the new records."""
    world, leader = begun(3, 1)
    backup = world.store.copy()
    other = others(world, leader)[0]
    force(other)
    world.pass_time(NODE_TIMEOUT_MS)
    world._write()
    world.pass_time(NODE_TIMEOUT_MS)
    assert len(world.confirmed) == 1
    assert not world.recover([*world.nodes.values()]), "there is nothing to recover"
    world.store = backup.restarted(world.now_ms / 1000)
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert world.is_store_lost
    assert not world.recover([leader]), "one member of three does not know enough"
    assert world.recover([*world.nodes.values()])
    world.pass_time(5 * NODE_TIMEOUT_MS)
    assert not world.is_store_lost
    world.end()


def test_a_copied_directory_is_refused_while_its_node_lives() -> None:
    """The disk of the copy is not that of the node."""
    world, leader = begun(3, 1)
    node = others(world, leader)[0]
    copy = Node(world, 3)
    copy.name = node.name
    copy.start()
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert "is a copy of that one's" in copy.run.enrollment.problem
    assert copy.run.member.part is Part.RESTING
    assert copy.run.member.refusal_of(leader.name, 9, Reason.FORCE, copy.clock_ms())
    assert node.run.member.part is Part.FOLLOWING
    copy.run.is_alive = False
    world.end()


def test_of_two_processes_at_one_address_the_first_one_rests() -> None:
    """They have the same announced address, and each has a copy of the data."""
    world, leader = begun(3, 1)
    node = others(world, leader)[0]
    copy = Node(world, 3)
    copy.name, copy.port, copy.disk = node.name, node.port, deepcopy(node.disk)
    copy.start()
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert "another process with the ID of this node" in node.run.enrollment.problem
    assert copy.run.enrollment.problem == ""
    assert node.run.member.part is Part.RESTING
    assert node.run.member.refusal_of(leader.name, 9, Reason.FORCE, node.clock_ms())
    version = world.store.values["node/" + node.name].version
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert world.store.values["node/" + node.name].version == version, "they write by turns"
    copy.run.is_alive = False
    world.pass_time(2 * LEASE_S * 1000)
    assert node.run.member.part is Part.FOLLOWING
    world.end()


def test_a_member_without_the_data_is_chosen_only_by_force() -> None:
    """The primary would replace its data with nothing."""
    world = World(1, size=(2, 0))
    world.lost_replies = world.slow = 0
    leader, empty = world.nodes.values()
    del world.nodes[empty.name]
    leader.start()
    world.pass_time(3000)
    world._write()
    world.pass_time(100)
    world.nodes[empty.name] = empty
    world.cut = {frozenset(world.nodes)}
    empty.start()
    world.pass_time(1000)
    assert leader.run.member.is_leading
    assert empty.run.member.shard
    leader.is_frozen = True
    world.pass_time(20 * NODE_TIMEOUT_MS)
    assert not empty.run.member.is_leading
    force(empty)
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert empty.run.member.is_leading


@pytest.mark.parametrize(
    ("reason", "chosen"), [(Reason.SILENCE, "1"), (Reason.FAILOVER, "2"), (Reason.FORCE, "2")]
)
def test_of_equal_members_one_in_the_zone_is_chosen(reason: Reason, chosen: str) -> None:
    """An operator has chosen the candidate."""
    world = World(1, size=(3, 1))
    world.lost_replies = world.slow = 0
    for node in world.nodes.values():
        zone = "b" if node.name == "2" * 40 else "a"
        node.start()
        node.run.enrollment.record = node.run.enrollment.record._replace(zone=zone)
    world.pass_time(3000)
    [leader] = world.leaders()
    if leader.name != "0" * 40:
        wanted = world.nodes["0" * 40].run
        wanted.do(lambda: wanted.member.stand(Reason.FAILOVER, wanted.now_ms))
        world.pass_time(NODE_TIMEOUT_MS)
    primary, candidate = world.nodes["0" * 40], world.nodes["2" * 40]
    assert world.leaders() == [primary]
    run = candidate.run
    if reason is Reason.SILENCE:
        primary.is_frozen = True
        run.member.changed_ms = run.replica.heard_ms = 0  # it is the first to miss the primary
        run.member.candidate._heard_ms = -NODE_TIMEOUT_MS
    else:
        run.do(lambda: run.member.stand(reason, run.now_ms))
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert world.record.primary == chosen * 40
    world.end()


def test_links_with_tls_use_the_port_of_tls() -> None:
    world = World(1, size=(3, 1))
    for node in world.nodes.values():
        node.start()
        node.run.member.uses_tls = node.name != "2" * 40
        node.run.enrollment.record = node.run.enrollment.record._replace(tls_port=node.port + 100)
    world.pass_time(3000)
    [leader] = world.leaders()
    for node in others(world, leader):
        followed = node.run.member.followed
        assert followed is not None
        port = leader.port + 100 if node.run.member.uses_tls else leader.port
        assert followed.address == ("h", port)


def test_a_shard_with_all_members_takes_no_other() -> None:
    world, _leader = begun(3, 1)
    node = world.nodes["3" * 40] = Node(world, 3)
    node.start()
    world.pass_time(3 * NODE_TIMEOUT_MS)
    assert node.run.enrollment.problem.startswith("all shards have all members: ")
    node.run.enrollment.wanted = "s2"
    world.pass_time(NODE_TIMEOUT_MS)
    assert node.run.enrollment.problem == "there is no shard s2"
    assert node.run.member.part is Part.RESTING
