"""Slots move between shards while everything fails: nothing is lost, and no slot has two owners."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.sim import move_world
from tests.sim.member_world import NODE_TIMEOUT_MS, WorldFailure
from tests.sim.move_world import AWAY_MS, MoveNode, MoveReplica, MoveWorld, play
from tests.sim.promises import BrokenPromise
from tests.sim.store_model import StoreState
from tests.support.effort import examples

from millstream.server.cluster.cluster_view import Found
from millstream.server.cluster.member_actions import ReadAgain
from millstream.server.cluster.slot_moves import move_judge, move_returns
from millstream.server.cluster.slot_moves.move_data import Copied
from millstream.server.cluster.slot_moves.move_judge import WAITS_MS, MoveJudge, canceled
from millstream.server.cluster.store.records import (
    BACKUP_LOCK,
    MOVE,
    TEXT_MAX,
    MoveRecord,
    Step,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare

ROOT = Path(__file__).resolve().parents[2]
STEPS = 150
EVENTS = {"LEAVE", "STAY", "OWN", "DROP", "cancels", Step.DONE, Step.CANCELED}
KINDS = {"crash", "freeze", "stand", "cut", "no-store"}


def test_moves_lose_nothing_and_give_a_slot_one_owner() -> None:
    events: set[str] = set()
    for seed in range(examples(12)):
        events |= play(seed, STEPS).keys()
    assert {"set-back", "restored", "asks", "returns"} <= events
    assert EVENTS - events == set()
    assert {kind.partition("-")[2] for kind in events if kind.startswith("copying-")} == KINDS


def begun(size: tuple[int, int] = (1, 0)) -> MoveWorld:
    """A cluster that works, with a write in each shard."""
    world = MoveWorld(1, size=size)
    world.lost_replies = world.slow = world.trouble = world.set_backs = 0
    world.begin()
    for slot in (0, 6000):
        world._write(slot)
    world.pass_time(1000)
    assert len(world.confirmed) == 2
    return world


def step_of(world: MoveWorld, move: str = "1") -> Step:
    return world.view.moves[move].record.step


def wait_for(world: MoveWorld, step: Step, move: str = "1", limit_ms: int = 20_000) -> None:
    end_ms = world.now_ms + limit_ms
    while step_of(world, move) is not step:
        assert world.now_ms < end_ms, f"the move is {step_of(world, move)}, not {step}"
        world.pass_time(1)


def primary(world: MoveWorld, shard: str) -> MoveNode:
    found = world.primary_of(shard)
    assert found is not None
    return found


def begin_hand_over(world: MoveWorld) -> None:
    """Slots of s1 have left, and the map does not say yet that s2 has them."""
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.HANDING)
    while not primary(world, "s1").run.replica.state.left:
        world.pass_time(1)


@pytest.mark.parametrize("shard", ["s1", "s2"])
@pytest.mark.parametrize(
    ("step", "size"),
    [
        *((step, (1, 0)) for step in Step if step not in (Step.CANCELED, Step.FAILED)),
        (Step.HANDING, (3, 1)),
        (Step.MOVED, (3, 1)),
    ],
)
def test_a_move_continues_after_a_crash_at_each_step(
    step: Step, size: tuple[int, int], shard: str
) -> None:
    world = begun(size)
    world.plan(((0, 5000),), "s2")
    wait_for(world, step)
    node = primary(world, shard)
    if size == (1, 0):
        node.crash(keeps_all=False)
    else:
        node.is_frozen = True
        world.at(world.now_ms + 5 * NODE_TIMEOUT_MS, node.thaw)
    wait_for(world, Step.DONE)
    world.end()


def test_the_source_serves_again_when_the_target_is_silent() -> None:
    world = begun()
    begin_hand_over(world)
    primary(world, "s2").is_frozen = True
    wait_for(world, Step.COPYING)
    found = world.view.moves["1"].record
    assert (found.retries, found.reason) == (1, move_judge.NO_TARGET)
    world.pass_time(200)
    world._write(0)
    world.pass_time(200)
    assert len(world.confirmed) == 3
    world.end()
    assert step_of(world) is Step.DONE


def test_a_store_with_an_earlier_step_is_not_believed() -> None:
    """The target has the answer of the source, which serves the slots again. It gives up the
    hand-over, because it has not seen all states of the store. Then the source uses
    the store again."""
    world = begun((3, 1))
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.HANDING)
    backup = world.store.copy()
    world.store_cut.add(primary(world, "s2").name)  # as if its transaction were late
    wait_for(world, Step.COPYING)
    world.pass_time(100)
    world.store = backup.restarted(world.now_ms / 1000)
    world.pass_time(5000)
    assert primary(world, "s1").run.member.is_store_old
    assert step_of(world) is Step.HANDING
    world._write(0)
    world.pass_time(1000)
    assert len(world.confirmed) == 3
    world.heal()
    wait_for(world, Step.COPYING)
    assert world.view.moves["1"].record.reason == move_judge.LOST_SIGHT
    world.end()
    assert step_of(world) is Step.DONE


def test_an_heir_frees_the_slots_if_leave_was_lost() -> None:
    """Without N, the other member may lack the end of a move."""
    world = begun((2, 0))
    source = primary(world, "s1")
    [heir] = [
        world.nodes[one] for one in world.view.shards["s1"].record.members if one != source.name
    ]
    world.cut = {frozenset((source.name, heir.name))}
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.DONE)
    world.pass_time(1000)
    assert 0 not in source.run.replica.state.slots
    assert heir.run.replica.state.slots[0]
    source.is_frozen = True
    world.heal()
    source.is_frozen = True
    world.pass_time(20_000)
    assert primary(world, "s1") is heir
    assert 0 not in heir.run.replica.state.slots
    assert not heir.run.replica.state.left
    world.end()


def handed_over(world: MoveWorld) -> StoreState:
    """Slots of s1 move to s2 while no node of s1 sees the store; its state during the hand-over."""
    begin_hand_over(world)
    backup = world.store.copy()
    world.store_cut = {*world.view.shards["s1"].record.members}
    wait_for(world, Step.MOVED)
    world.pass_time(500)
    world._write(0)
    world.pass_time(1000)
    assert len(world.confirmed) == 3
    return backup


def set_back(world: MoveWorld, backup: StoreState) -> None:
    world.replace_store(backup)
    world.pass_time(AWAY_MS + 200)
    world.heal()
    world.pass_time(10_000)
    assert step_of(world) is Step.COPYING
    for _ in range(5):
        world._write(0)
        world.pass_time(200)


@pytest.mark.parametrize("what", ["primary", "heir", "heirs"])
def test_a_source_doubts_a_store_from_before_its_end(what: str) -> None:
    world = begun((3, 1))
    backup = handed_over(world)
    if what != "primary":
        primary(world, "s1").crash(keeps_all=True)
    if what == "heirs":
        primary(world, "s2").crash(keeps_all=True)
    set_back(world, backup)
    if what == "heirs":
        world.pass_time(10_000)
    assert primary(world, "s1").run.replica.state.left
    assert world.recover([*world.nodes.values()])
    world.end()
    assert world.view.map.epoch == 3


def test_slots_stay_after_a_gap_in_the_hand_over() -> None:
    """The store is the same, or the target has not seen the end: it gives the slots back."""
    world = begun((3, 1))
    begin_hand_over(world)
    world.replace_store(world.store.copy())
    world.pass_time(AWAY_MS + 3000)
    assert world.counts["asks"]
    assert world.counts["STAY"] == 1
    wait_for(world, Step.DONE)
    world.end()


@pytest.mark.parametrize("is_in_store", [False, True])
def test_an_operator_takes_slots_back_from_a_lost_shard(is_in_store: bool) -> None:
    """At the source, or without it."""
    world = begun()
    begin_hand_over(world)
    source, target = primary(world, "s1"), primary(world, "s2")
    target.is_frozen = True
    source.crash(keeps_all=True)
    wait_for(world, Step.COPYING)
    world.pass_time(10_000)
    returns = source.run.judge.returns
    assert source.run.replica.state.left
    assert returns.waits_for("1")
    if is_in_store:
        record = canceled(world.view.moves["1"].record, 5, is_forced=True)
        assert record is not None
        world.store.commit([], [Change(MOVE + "1", encode(record))])
    else:
        returns.forced.add("1")
    world.pass_time(5000)
    assert not source.run.replica.state.left
    assert not returns.waits_for("1")
    assert not returns.forced


@pytest.mark.parametrize("is_restored", [False, True])
def test_the_simulation_finds_a_source_that_never_doubts(
    monkeypatch: pytest.MonkeyPatch, is_restored: bool
) -> None:
    monkeypatch.setattr(move_returns.Returns, "may_stay", lambda *_: True)
    world = begun((3, 1))
    backup = handed_over(world)
    if is_restored:
        with pytest.raises(BrokenPromise, match="without"):
            set_back(world, backup)
    else:
        world.end()


def test_no_slot_is_handed_over_during_a_backup() -> None:
    world = begun()
    world.store.commit([], [Change(BACKUP_LOCK, b"1")])
    world.plan(((0, 5000),), "s2")
    world.pass_time(20_000)
    assert step_of(world) is Step.COPYING
    world.store.commit([], [Change(BACKUP_LOCK, None)])
    wait_for(world, Step.DONE)
    world.end()


def test_a_move_that_is_canceled_leaves_nothing() -> None:
    world = begun()
    world.store.commit([], [Change(BACKUP_LOCK, b"1")])
    world.plan(((0, 5000),), "s2")
    while not primary(world, "s2").run.replica.state.imports:
        world.pass_time(1)
    found = world.view.moves["1"]
    record = canceled(found.record, 5)
    assert record is not None
    world.store.commit([Compare(MOVE + "1", found.version)], [Change(MOVE + "1", encode(record))])
    world.end()
    assert world.view.map.epoch == 1
    assert canceled(found.record._replace(step=Step.MOVED), 5) is None


def test_a_copy_that_never_comes_close_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    monkeypatch.setattr(move_world, "MOVE_MS", 5000)
    monkeypatch.setattr(MoveReplica, "copied", lambda *_: Copied(is_close=False, failure=""))
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.FAILED, limit_ms=25_000)
    assert "cluster-move-timeout" in world.view.moves["1"].record.reason
    monkeypatch.setattr(MoveReplica, "copied", lambda *_: Copied(False, "no room\nfor it"))
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.FAILED, "2")
    assert world.view.moves["2"].record.reason == "no room for it"
    world.end()


def test_a_copy_that_waits_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    world = begun()
    world.store.commit([], [Change(BACKUP_LOCK, b"1")])  # no hand-over begins
    reasons: list[str] = []
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.COPYING)
    for obstacle in ("", "it refuses:\nno", "it refuses:\nno", "x" * 400, ""):
        copied = Copied(is_close=True, failure="", obstacle=obstacle)
        monkeypatch.setattr(MoveReplica, "copied", lambda *_, copied=copied: copied)
        before = world.view.moves["1"].version
        world.pass_time(WAITS_MS + 1000)
        found = world.view.moves["1"]
        reasons.append(found.record.reason)
        is_changed = len(reasons) > 1 and reasons[-1] != reasons[-2]
        assert (found.version != before) is is_changed  # each reason is written once
    waits = "waits: it refuses: no"
    assert reasons == ["", waits, waits, ("waits: " + "x" * 400)[:TEXT_MAX], ""]

    # The reason of the last hand-over stays.
    record = found.record._replace(reason=move_judge.NO_TARGET, retries=1)
    world.store.commit([], [Change(MOVE + "1", encode(record))])
    world.pass_time(WAITS_MS + 1000)
    assert world.view.moves["1"].record.reason == move_judge.NO_TARGET
    world.end()


@pytest.mark.parametrize("size", [(1, 0), (2, 1)])
def test_trouble_that_comes_after_the_play_is_healed(size: tuple[int, int]) -> None:
    """Two members that reach etcd and not each other elect each other without end."""
    world = begun(size)
    world.plan(((0, 5000),), "s2")

    def cut() -> None:
        world.cut = {frozenset(pair) for pair in combinations(world.nodes, 2)}

    world.at(world.now_ms + 200, cut)
    world.end()
    assert step_of(world) is Step.DONE


def test_a_failure_names_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(world: MoveWorld) -> None:
        raise BrokenPromise("nothing is checked")

    monkeypatch.setattr(MoveWorld, "end", broken)
    with pytest.raises(WorldFailure, match=r"python -m tests\.sim\.move_world 7 --steps 5$"):
        play(7, 5)


def test_a_seed_plays_the_same_in_another_process() -> None:
    """The order of a set of texts is another one in each process."""
    played = set()
    for hash_seed in ("1", "2"):
        run = subprocess.run(
            [sys.executable, "-m", "tests.sim.move_world", "--seeds", "3", "--steps", "80"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        played.add(run.stdout)
    assert len(played) == 1


def test_two_moves_of_a_shard_run_and_others_wait() -> None:
    world = begun()
    world.store.commit([], [Change(BACKUP_LOCK, b"1")])
    for first in range(0, 5000, 1000):
        world.plan(((first, first + 999),), "s2")
    record = MoveRecord(((0, 9),), "s1", "s2", Step.PLANNED, 1)
    world.store.commit([], [Change(MOVE + "f", encode(record))])
    world.pass_time(10_000)
    steps = [found.record.step for found in world.view.moves.values()]
    assert steps == [Step.COPYING] * 2 + [Step.PLANNED] * 3 + [Step.FAILED]
    world.end()
    assert [step_of(world, f"{number}") for number in range(1, 6)] == [Step.DONE] * 5
    assert world.view.map.epoch == 6


def test_the_oldest_records_of_moves_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move_judge, "ENDED_MAX", 2)
    world = begun()
    for number in range(1, 6):
        world.plan(((number, number),), "s2")
        wait_for(world, Step.DONE, f"{number}")
    world.pass_time(1000)
    assert list(world.view.moves) == ["4", "5"]
    world.end()


def test_a_source_leaves_only_in_the_hand_over_that_it_has_seen() -> None:
    """A later one may follow one that was set back, after which it would serve again."""
    world = begun()
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.HANDING)
    view = world.view
    version = view.moves["1"].version
    leader = SimpleNamespace(
        view=view, shard="s1", led_term=view.shards["s1"].record.term,
        is_leading=True, is_recalled=False, gaps=0, actions=[],
    )  # fmt: skip
    judge = primary(world, "s1").run.judge
    assert judge.may_leave(leader, "1", version)
    assert not judge.may_leave(leader, "1", version + 1)
    assert leader.actions == [ReadAgain()]
    assert not judge.may_leave(leader, "1", version - 1)
    leader.led_term -= 1
    assert not judge.may_leave(leader, "1", version)
    leader.led_term += 1
    leader.is_recalled = True
    assert not judge.may_leave(leader, "1", version)
    leader.is_recalled = False
    found = view.moves["1"]
    back: Any = Found(found.record._replace(step=Step.COPYING), version, 0)
    leader.view = view._replace(moves={"1": back})
    assert not judge.may_leave(leader, "1", version)


def test_data_that_left_is_freed_when_the_new_map_is_kept() -> None:
    world = begun()
    world.full_disks = 1
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.DONE)
    world.pass_time(5000)
    assert primary(world, "s1").run.replica.state.left
    world.end()


def test_the_simulation_finds_a_source_that_serves_too_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settle = move_judge._Look.settle_departure

    def early(look: Any, move: str, ranges: Any) -> None:
        if look._judge.age_ms(move, look._now_ms) > 500:
            look._data.stay(move)
        else:
            settle(look, move, ranges)

    monkeypatch.setattr(move_judge._Look, "settle_departure", early)
    monkeypatch.setattr(MoveJudge, "has_seen_all", lambda *_: True)
    world = begun()
    world.plan(((0, 5000),), "s2")
    wait_for(world, Step.HANDING)
    source, target = primary(world, "s1"), primary(world, "s2")
    while target.run.member.view.moves["1"].record.step is not Step.HANDING:  # type: ignore[union-attr]
        world.pass_time(1)
    world.store_cut.add(target.name)
    for _ in range(1000):
        if target.run.replica.has_all("1", world.view.moves["1"].version):
            break
        world.pass_time(1)
    world.cut = {frozenset((source.name, target.name))}
    while source.run.replica.state.left:
        world.pass_time(1)
    world._write(0)
    world.pass_time(100)
    assert len(world.confirmed) == 3
    world.store_cut.clear()
    with pytest.raises(BrokenPromise, match="lacks"):
        world.end()


def test_a_stopped_step_stays() -> None:
    world = begun()
    for node in world.nodes.values():
        judge: MoveJudge = node.run.judge  # type: ignore[attr-defined]
        judge.stopped = {Step.COPYING}
    world.plan(((0, 5000),), "s2")
    world.pass_time(10_000)
    assert step_of(world) is Step.COPYING
    assert not primary(world, "s2").run.replica.state.imports
    for node in world.nodes.values():
        node.run.judge.stopped = ()  # type: ignore[attr-defined]
    wait_for(world, Step.DONE)
    world.end()
