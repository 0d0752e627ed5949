"""`millstream cluster move`, `rebalance`, `drain` and `add-shard`: the orders, without nodes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import cast

import pytest
from click.testing import Result
from tests.support.etcd import Etcd
from tests.support.stored_cluster import cluster_command, stored_view, write

from millstream.cli_error import CliError
from millstream.server.cluster.slot_moves import move_orders
from millstream.server.cluster.slot_moves.move_rules import count_of, owned_by
from millstream.server.cluster.store.records import (
    MAP,
    MOVE,
    NODE,
    SHARD,
    Holder,
    MoveRecord,
    NodeRecord,
    ShardRecord,
    SlotRanges,
    Step,
    encode,
)
from millstream.server.cluster.store.store import (
    Change,
    Commit,
    Compare,
    Contents,
    Store,
    Unreachable,
)
from millstream.server.cluster.store.store_opening import StoreSettings, open_store

A, B, C = "a" * 40, "b" * 40, "c" * 40
Run = Callable[..., Result]
numbers = count(1)


@pytest.fixture
def settings(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> StoreSettings:
    monkeypatch.setattr(move_orders, "AGAIN_S", 0.01)
    return StoreSettings(f"orders{next(numbers)}", etcd.urls)


@pytest.fixture
def run(settings: StoreSettings) -> Run:
    call = partial(cluster_command, settings)
    assert call("init", "--shards", "2", "--members", "1").exit_code == 0
    for shard, node in (("s1", A), ("s2", B)):
        record = ShardRecord("f" * 40, 1, node, (node,), 1, 0)
        write(settings, Change(SHARD + shard, encode(record)))
        write(settings, Change(NODE + node, encode(NodeRecord("h", 1, 0, "", "", "1", shard))))
    return call


@contextmanager
def carried_out(settings: StoreSettings, step: Step, reason: str = "") -> Iterator[None]:
    """Primaries that end every move in this step."""
    is_over = threading.Event()

    def work() -> None:
        while not is_over.wait(0.01):
            for move, found in stored_view(settings).moves.items():
                if found.record.step is Step.PLANNED:
                    record = found.record._replace(step=step, reason=reason)
                    write(settings, Change(MOVE + move, encode(record)))

    thread = threading.Thread(target=work)
    thread.start()
    yield
    is_over.set()
    thread.join()


def test_a_move_is_ordered_and_its_steps_are_shown(run: Run, settings: StoreSettings) -> None:
    with carried_out(settings, Step.DONE):
        done = run("move", "0-9,8192", "s2")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "slots 0-9 from s1 to s2: planned",
        "slots 0-9 from s1 to s2: done",
        "10 of 10 slots moved",
    ]
    (found,) = stored_view(settings).moves.values()
    assert found.record._replace(created_ms=0) == MoveRecord(((0, 9),), "s1", "s2", Step.DONE, 0)


def test_a_move_that_fails_has_exit_code_1(run: Run, settings: StoreSettings) -> None:
    with carried_out(settings, Step.FAILED, "no room"):
        done = run("move", "9", "s2")
    assert done.exit_code == 1
    assert done.output.splitlines()[1:] == [
        "slots 9-9 from s1 to s2: failed (no room)",
        "0 of 1 slot moved",
    ]


def test_the_map_tells_the_end_of_a_move_without_a_record(
    run: Run, settings: StoreSettings
) -> None:
    """Records of moves that have ended are removed after a while."""

    def work() -> None:
        while not stored_view(settings).moves:
            pass
        for move in stored_view(settings).moves:
            owned = SlotRanges(2, ((0, 9, "s2"), (10, 8191, "s1"), (8192, 16383, "s2")))
            write(settings, Change(MOVE + move, None), Change(MAP, encode(owned)))

    thread = threading.Thread(target=work)
    thread.start()
    done = run("move", "0-9", "s2")
    thread.join()
    assert done.output.splitlines()[-1] == "10 of 10 slots moved"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("move", "5-2", "s2"), "5-2 is not a slot or range of slots"),
        (("move", "0-16384", "s2"), "they are 0 to 16383"),
        (("move", "1,,2", "s2"), "a comma has no slot before or after it"),
        (("move", "1-10,5", "s2"), "Slot 5 specified multiple times"),
        (("move", "1", "s9"), "there is no shard s9"),
        (("move", "9000", "s2"), "shard s2 owns these slots already"),
        (("drain", "c"), "no member of a shard has an ID that begins with c"),
        (("add-shard", "s1"), "there is a shard s1 already: the cluster has s1, s2"),
        (("add-shard", "S_1"), "take 1 to 32 small letters and digits"),
        (("add-shard", "--members", "2", "--durable", "2"), "needs more than 2 members"),
        (("add-shard", "--members", "1", "--durable", "1"), "needs more than 1 member: "),
    ],
)
def test_orders_that_are_refused(run: Run, words: tuple[str, ...], error: str) -> None:
    done = run(*words)
    assert (done.exit_code, error in done.output) == (1, True), done.output


def test_slots_that_move_cannot_be_ordered_again(run: Run, settings: StoreSettings) -> None:
    assert run("move", "0-9", "s2", "--no-wait").output == "10 slots will move\n"
    shown = run("status")
    assert shown.output.splitlines()[-1] == "slots 0-9 from s1 to s2: planned"
    (row,) = json.loads(run("status", "--json").output)["moves"]
    assert (row["slots"], row["from"], row["to"]) == ([[0, 9]], "s1", "s2")
    assert "some of the slots 0-9 move to shard s2 already" in run("move", "5", "s2").output
    assert "wait for their end, or use `millstream cluster cancel`" in run("rebalance").output


def test_moves_are_canceled_without_nodes(run: Run, settings: StoreSettings) -> None:
    """The nodes of the new shard may be lost, and CLUSTER MIGRATION needs its primary."""
    for slots, shard in (("0-9", "s2"), ("20", "s2"), ("8192", "s1"), ("8193", "s1")):
        assert run("move", slots, shard, "--no-wait").exit_code == 0
    by_slot = {
        found.record.slots[0][0]: move for move, found in stored_view(settings).moves.items()
    }
    moved = stored_view(settings).moves[by_slot[20]].record._replace(step=Step.MOVED)
    write(
        settings,
        Change(MOVE + by_slot[20], encode(moved)),
        *(Change(NODE + n, None) for n in (A, B)),
    )
    assert run("cancel", "s2").output == "1 move canceled\n"
    steps = {slot: stored_view(settings).moves[move].record.step for slot, move in by_slot.items()}
    planned, canceled = Step.PLANNED, Step.CANCELED
    assert steps == {0: canceled, 20: Step.MOVED, 8192: planned, 8193: planned}
    assert run("cancel").output == "2 moves canceled\n"
    assert run("cancel").output == "0 moves canceled\n"
    assert "there is no shard s9" in run("cancel", "s9").output


def test_moves_to_a_lost_shard_are_canceled_by_force(run: Run, settings: StoreSettings) -> None:
    """Also those that were canceled before; not those whose slots have moved."""
    for slots in ("0", "1", "2"):
        run("move", slots, "s2", "--no-wait")
    moves = {one.record.slots[0][0]: id for id, one in stored_view(settings).moves.items()}
    for slot, step in ((1, Step.MOVED), (2, Step.CANCELED)):
        record = stored_view(settings).moves[moves[slot]].record._replace(step=step)
        write(settings, Change(MOVE + moves[slot], encode(record)))
    assert run("cancel", "--force").exit_code == 2
    write(settings, Change("lease/s2", encode(Holder(B, 1))))
    refused = run("cancel", "s2", "--force")
    assert (refused.exit_code, "s2 has a primary, which says" in refused.output) == (1, True)
    write(settings, Change("lease/s2", None))
    assert run("cancel", "s2", "--force").output == "2 moves canceled\n"
    found = {slot: stored_view(settings).moves[id].record for slot, id in moves.items()}
    assert {slot: (one.step, one.is_forced) for slot, one in found.items()} == {
        0: (Step.CANCELED, True), 1: (Step.MOVED, False), 2: (Step.CANCELED, True)
    }  # fmt: skip
    assert run("cancel", "s2", "--force").output == "0 moves canceled\n"


@pytest.mark.parametrize(("absent", "shard"), [(A, "s1"), (B, "s2")])
def test_a_move_between_shards_that_do_not_run_is_not_ordered(
    run: Run, settings: StoreSettings, absent: str, shard: str
) -> None:
    write(settings, Change(NODE + absent, None))
    refused = run("move", "0-9", "s2")
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"millstream: shard {shard} has no primary that runs: start")
    assert not stored_view(settings).moves


def test_a_new_shard_gets_its_share_once_it_runs(run: Run, settings: StoreSettings) -> None:
    assert run("add-shard").output == "shard s3 has no slots yet\n"
    found = stored_view(settings).shards["s3"].record
    assert (found.term, found.members, found.size, found.durable) == (0, (), 1, 0)
    left_out = run("rebalance")
    assert left_out.stdout == "no slots have to move\n"
    assert left_out.stderr.startswith("millstream: warning: shard s3 gets no slots, because ")
    assert (
        "shard s3 has no primary that runs: start its nodes first" in run("move", "5", "s3").output
    )
    write(
        settings,
        Change(SHARD + "s3", encode(found._replace(primary=C, members=(C,)))),
        Change(NODE + C, encode(NodeRecord("h", 1, 0, "", "", "1", "s3"))),
    )
    assert run("rebalance", "--no-wait").output == "5461 slots will move\n"
    records = [found.record for found in stored_view(settings).moves.values()]
    assert {record.target for record in records} == {"s3"}
    assert max(count_of(record.slots) for record in records) == 1024
    counts = {
        name: sum(count_of(record.slots) for record in records if record.source == name)
        for name in ("s1", "s2")
    }
    assert sorted(counts.values()) == [2730, 2731]


def test_a_drained_shard_has_no_slots(run: Run, settings: StoreSettings) -> None:
    assert run("drain", A[:3], "--no-wait").output == "8192 slots will move\n"
    records = [found.record for found in stored_view(settings).moves.values()]
    assert {(record.source, record.target) for record in records} == {("s1", "s2")}
    moved = {
        slot for record in records for pair in record.slots for slot in range(pair[0], pair[1] + 1)
    }
    ((first, last),) = owned_by(stored_view(settings).map, "s1")
    assert moved == set(range(first, last + 1))


def test_no_shard_is_drained_without_a_name(run: Run, settings: StoreSettings) -> None:
    write(settings, Change(MAP, encode(SlotRanges(1, ((0, 99, "s1"), (100, 16383, "s2"))))))
    done = run("drain", "")
    assert (done.exit_code, "NODE': it is empty" in done.output) == (2, True), done.output
    assert not stored_view(settings).moves


def test_a_move_that_waits_is_shown_with_its_reason(run: Run, settings: StoreSettings) -> None:
    run("move", "0-9", "s2", "--no-wait")
    ((id, found),) = stored_view(settings).moves.items()
    shown: list[str] = []
    reasons = ["", "waits: no", "waits: no", ""]

    class Changing:
        async def read(self) -> Contents:
            step, reason = (Step.COPYING, reasons.pop(0)) if reasons else (Step.DONE, "")
            record = found.record._replace(step=step, reason=reason)
            await open_store(settings).commit([], [Change(MOVE + id, encode(record))])
            return await open_store(settings).read()

    asyncio.run(move_orders.follow_moves(cast(Store, Changing()), {id: found.record}, shown.append))
    words = ["planned", "copying", "copying (waits: no)", "copying", "done"]
    assert shown == [f"slots 0-9 from s1 to s2: {word}" for word in words]


def test_moves_are_followed_over_a_loss_of_etcd(run: Run, settings: StoreSettings) -> None:
    run("move", "0-9", "s2", "--no-wait")
    ((id, found),) = stored_view(settings).moves.items()
    shown: list[str] = []

    class Lossy:
        reads = 0

        async def read(self) -> Contents:
            self.reads += 1
            if self.reads < 3:
                raise Unreachable("etcd cannot be reached")
            return await open_store(settings).read()

    write(settings, Change(MOVE + id, encode(found.record._replace(step=Step.DONE))))
    follow = move_orders.follow_moves(cast(Store, Lossy()), {id: found.record}, shown.append)
    assert asyncio.run(follow)[id].step is Step.DONE
    assert shown[1:] == [
        f"etcd cannot be reached; {move_orders.CONTINUE_LATER}",
        "slots 0-9 from s1 to s2: done",
    ]


@pytest.mark.parametrize("is_done", [True, False])
def test_a_move_is_ordered_once_although_etcd_is_away(
    run: Run, settings: StoreSettings, is_done: bool
) -> None:
    """The first read fails, and the outcome of the first transaction is unknown."""
    failed: list[str] = []
    told: list[str] = []

    class Lossy:
        async def read(self) -> Contents:
            if not failed:
                failed.append("read")
                raise Unreachable("etcd cannot be reached")
            return await open_store(settings).read()

        async def commit(self, compares: list[Compare], changes: list[Change]) -> Commit:
            is_first = "commit" not in failed
            failed.append("commit")
            if is_first and not is_done:
                raise Unreachable("etcd cannot be reached")
            commit = await open_store(settings).commit(compares, changes)
            if is_first:
                raise Unreachable("etcd cannot be reached")
            return commit

    order = move_orders.order_moves(cast(Store, Lossy()), ((0, 9),), "s2", told.append)
    orders = asyncio.run(order)
    assert told == ["etcd cannot be reached; retrying for 10 seconds"]
    assert failed == ["read", "commit", "commit"]
    assert orders.keys() == stored_view(settings).moves.keys()


def test_an_order_whose_outcome_stays_unknown_says_so(
    run: Run, settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move_orders, "LIMIT_S", 0.05)

    class Away:
        async def read(self) -> Contents:
            return await open_store(settings).read()

        async def commit(self, compares: list[Compare], changes: list[Change]) -> Commit:
            raise Unreachable("etcd cannot be reached")

    with pytest.raises(CliError, match="The slots may move nevertheless: `millstream cluster st"):
        asyncio.run(move_orders.order_moves(cast(Store, Away()), ((0, 9),), "s2", print))


def test_slots_of_a_shard_that_does_not_run_cannot_move(run: Run, settings: StoreSettings) -> None:
    write(settings, Change(NODE + B, None))
    done = run("rebalance")
    assert "shard s2 has no primary that runs, and the slots 8192-16383" in done.output
