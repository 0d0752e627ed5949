"""The records of a cluster from what its nodes know: which answers are enough."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from millstream.commands.admin.cluster_peers import LastFrame
from millstream.server.cluster.store.records import (
    CHANGE,
    CONFIG,
    MAP,
    MOVE,
    NODE,
    SHARD,
    USERS,
    VERSION,
    Format,
    MoveRecord,
    NodeRecord,
    ShardChange,
    ShardRecord,
    SlotRanges,
    Step,
    encode,
)
from millstream.server.cluster.store.store import Contents, Value
from millstream.server.cluster.store_recovery import (
    TERM_GAP,
    ExpectedSize,
    NodeAnswer,
    Recovery,
    Unrecoverable,
    recover,
    rows_of,
)

A, B, C, D = (letter * 40 for letter in "abcd")
EMPTY = Contents(1, {})


def record(
    term: int, primary: str = A, members: tuple[str, ...] = (A, B, C), durable: int = 1
) -> ShardRecord:
    return ShardRecord("f" * 40, term, primary, members, 3, durable)


def contents(
    shard: ShardRecord, epoch: int = 1, more: Mapping[str, bytes] | None = None
) -> Contents:
    values = {
        CONFIG: encode(Format(VERSION)),
        MAP: encode(SlotRanges(epoch, ((0, 16383, "s1"),))),
        SHARD + "s1": encode(shard),
        NODE + C: encode(NodeRecord("10.0.0.3", 6455, 0, "", "", "", "s1")),
        **(more or {}),
    }
    return Contents(5, {name: Value(data, 5, 0) for name, data in values.items()})


def answer(
    node: str,
    seen: Contents | None,
    *,
    promised: int = 0,
    last: tuple[int, int] | None = (4, 9),
    leads: int = 0,
    confirming: int = 0,
) -> NodeAnswer:
    frame = None if last is None else LastFrame(last[0], "h", last[1])
    return NodeAnswer(node, f"{node[0]}:1", seen, promised, frame, leads, confirming)


def shard_of(found: Recovery) -> ShardRecord:
    return found.shards["s1"]


def refused(
    *answers: NodeAnswer, why: str, stored: Contents = EMPTY, lost: tuple[str, ...] = ()
) -> None:
    with pytest.raises(Unrecoverable) as problem:
        recover(answers, stored, lost)
    assert why in str(problem.value)


OLD, NEW = contents(record(4)), contents(record(5, B), 3)


def test_all_members_are_enough() -> None:
    users = contents(record(5, B), 3, {USERS: b"user a"})
    found = recover([answer(A, OLD, promised=8), answer(B, users), answer(C, OLD)], EMPTY)
    assert shard_of(found) == record(8 + TERM_GAP, "")
    written = {change.name: change.data for change in found.changes}
    assert written[MAP] == encode(SlotRanges(4, ((0, 16383, "s1"),)))
    assert written[USERS] == b"user a"
    assert set(found.compares) == {(name, 0) for name in written}
    assert list(rows_of(found.shards)) == [
        "shard s1: term 1008, 3 of 3 members, its members elect the primary"
    ]


def test_a_primary_that_confirms_and_one_more_are_enough() -> None:
    serving = answer(B, NEW, leads=5, confirming=1)
    assert shard_of(recover([serving, answer(C, OLD)], EMPTY)).term == 5 + TERM_GAP
    assert shard_of(recover([serving, answer(C, OLD)], EMPTY, (), 3)).term == 5 + 4 * TERM_GAP
    refused(serving, why=f"2 of its members have to answer, and 1 do. Ask also {A}, {C} (10.0.0.3")
    alone = serving._replace(confirming=0)
    refused(alone, answer(A, OLD), why=f"term 5 is its newest one. Ask also {C} (10.0.0.3:6455)")
    refused(serving._replace(leads=4), answer(A, OLD), why="or name those whose data is lost")


def test_members_that_are_lost() -> None:
    pair = answer(A, OLD), answer(B, NEW)
    assert shard_of(recover(pair, EMPTY, [C])).members == (A, B, C)
    refused(*pair, why="Ask also", lost=(D,))
    refused(*pair, why=f"{D} is not the ID of a member", lost=(C, D))
    refused(*pair, why="is not the ID of a member", lost=(C[:8], C))
    refused(answer(B, NEW), why="2 of its members have to answer", lost=(A, C))


@pytest.mark.parametrize("durable", [0, 1])
def test_a_shard_without_slots_may_have_lost_all_members(durable: int) -> None:
    """After a drain, its nodes are stopped."""
    drained = record(6, D, (D,), durable)
    known = contents(record(5, B), 3, {SHARD + "s2": encode(drained)})
    all_of_it = answer(A, known), answer(B, known), answer(C, known)
    refused(*all_of_it, why=f"s2: {'1 of its members have' if durable else 'none of its members'}")
    refused(*all_of_it, why=f"Ask also {D}")
    found = recover(all_of_it, EMPTY, [D])
    assert found.shards["s2"] == drained._replace(term=6 + TERM_GAP, primary="")
    move = MoveRecord(((0, 9),), "s1", "s2", Step.COPYING, 1)
    moving = contents(record(5, B), 3, {SHARD + "s2": encode(drained), MOVE + "m": encode(move)})
    refused(answer(A, moving), answer(B, known), answer(C, known), why="s2: ", lost=(D,))
    owned = encode(SlotRanges(4, ((0, 9, "s2"), (10, 16383, "s1"))))
    newer = contents(record(5, B), 4, {SHARD + "s2": encode(drained), MAP: owned})
    refused(answer(A, newer), answer(B, known), answer(C, known), why="s2: ", lost=(D,))


def test_a_shard_to_which_slots_move_has_no_lost_members() -> None:
    """Its primary may be the only one that has seen the new map."""
    move = MoveRecord(((0, 9),), "s2", "s1", Step.HANDING, 1)
    moving = contents(record(5, B), 3, {MOVE + "1": encode(move)})
    refused(answer(A, moving), answer(C, moving), why="the move 1 brought slots", lost=(B,))
    assert recover([answer(node, moving) for node in (A, B, C)], EMPTY)
    later = contents(record(5, B), 4)
    assert recover([answer(A, moving), answer(C, later)], EMPTY, (B,))


def test_one_that_joins_has_to_answer() -> None:
    order = contents(record(5, B), 3, {CHANGE + "s1": encode(ShardChange(D, A))})
    members = [answer(node, order) for node in (A, B, C)]
    refused(*members, why=f"Ask also {D}")
    assert shard_of(recover([*members, answer(D, None, last=(0, 0))], EMPTY, [D])).size == 3
    done = contents(record(6, B), 3)
    assert shard_of(recover([answer(A, done), *members[1:]], EMPTY)).term == 6 + TERM_GAP


def test_what_no_node_knows() -> None:
    three = [answer(A, OLD), answer(B, OLD), answer(C, OLD)]
    refused(answer(A, None), why="none of these nodes has seen this cluster")
    refused(*three[:2], answer(C, OLD, last=(6, 1)), why=f"{C} (c:1) has data of term 6")
    refused(*three, why="nothing is to be recovered", stored=OLD)
    refused(*three[:2], answer(C, None), why=f"Ask also {C}")
    refused(*three[:2], answer(C, OLD, last=None), why=f"Ask also {C}")
    refused(
        *three, answer(A, OLD)._replace(address="x:1"), why=f"a:1 and x:1 are the same node {A}"
    )
    other = contents(record(4, B))
    refused(*three[:2], answer(C, other), why="the nodes know two states of it in term 4")
    moved = contents(record(4), 1, {MAP: encode(SlotRanges(1, ((0, 9, "s1"),)))})
    refused(*three[:2], answer(C, moved), why="two maps of the slots with epoch 1")
    more = contents(record(4), 2, {MAP: encode(SlotRanges(2, ((0, 9, "s2"),)))})
    refused(*three[:2], answer(C, more), why="no node knows the members of the shards s2")


def test_an_old_backup_of_etcd_is_replaced() -> None:
    newer = [answer(A, NEW), answer(B, NEW), answer(C, OLD)]
    found = recover(newer, OLD)
    assert (CONFIG, 5) in found.compares
    assert shard_of(found).term == 5 + TERM_GAP
    journaled = [answer(A, OLD), answer(B, OLD), answer(C, OLD, last=(6, 1))]
    refused(*journaled, why="has data of term 6", stored=OLD)


def test_without_copies_the_member_with_the_most_data_is_named() -> None:
    seen = contents(record(4, durable=0))
    three = [answer(A, seen), answer(B, seen, last=(4, 12)), answer(C, seen, last=(3, 20))]
    assert shard_of(recover(three, EMPTY)) == record(4 + TERM_GAP, B, durable=0)
    equal = [answer(A, seen), answer(B, seen), answer(C, seen)]
    assert shard_of(recover(equal, EMPTY)).primary == A
    serving = answer(A, seen, leads=4)
    refused(serving, *three[1:], why=f"{A} (a:1) serves as its primary until its lease ends")
    refused(*three[1:], why=f"Ask also {A}")
    assert shard_of(recover(three[2:], EMPTY, (A, B))).primary == C


@pytest.mark.parametrize(
    ("expected", "error"),
    [
        (ExpectedSize(), ""),
        (ExpectedSize(1, 3, 1), ""),
        (ExpectedSize(shards=2), "the cluster has 1 shard, and not 2: leave out --shards"),
        (ExpectedSize(members=5), "shard s1 has --members 3, and not 5: leave out --members"),
        (ExpectedSize(durable=0), "shard s1 has --durable 1, and not 0: leave out --durable"),
    ],
)
def test_the_size_that_the_operator_believes(expected: ExpectedSize, error: str) -> None:
    shards = {"s1": record(4)}
    if not error:
        expected.check(shards)
        return
    with pytest.raises(Unrecoverable) as refusal:
        expected.check(shards)
    assert str(refusal.value) == error
