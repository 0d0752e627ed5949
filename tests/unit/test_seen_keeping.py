"""A thread writes what a node has seen in the store, at once or for several changes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.resp import Simple
from tests.unit.test_slot_parking import KEY, OTHER, SLOT, Node, waits

from millstream.server.cluster import seen_keeping
from millstream.server.cluster.cluster_secret import ClusterSecret
from millstream.server.cluster.cluster_view import Found
from millstream.server.cluster.member_actions import Lead
from millstream.server.cluster.member_service import MemberService, MemberSettings
from millstream.server.cluster.seen_keeping import SeenKeeping
from millstream.server.cluster.served_slots import ServedSlots
from millstream.server.cluster.slot_moves.move_rules import may_keep_later
from millstream.server.cluster.store.records import (
    Format,
    MoveRecord,
    NodeRecord,
    SlotRanges,
    Step,
    encode,
)
from millstream.server.cluster.store.store import Contents, Value
from millstream.server.config.directives import Config
from millstream.server.execution.pubsub import PubSub
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS

EVERYTHING = (0, CLUSTER_SLOTS - 1)
OK, MOVED = Simple("OK"), f"MOVED {SLOT} there:1"


class Disk:
    """Has what is written: that which was noted last. `error`: it fails."""

    def __init__(self) -> None:
        self.noted = ""
        self.written: list[str] = []
        self.error: Exception | None = None

    def write(self) -> bool:
        if self.error is not None:
            raise self.error
        self.written.append(self.noted)
        return True


class Keeper:
    def __init__(self) -> None:
        self.disk: Any = Disk()
        self.tasks: list[asyncio.Task[None]] = []
        self.done: list[tuple[bool, bool]] = []
        self.keeping = SeenKeeping(self.disk, self.spawn, self.note)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def note(self, done: bool) -> None:
        self.done.append((done, self.keeping.is_writing))


def test_changes_that_may_wait_are_written_together() -> None:
    async def play() -> None:
        keeper = Keeper()
        keeping, disk = keeper.keeping, keeper.disk
        for disk.noted in ("handing", "moved"):
            keeping.write_later()
            await asyncio.sleep(0)
            assert not keeping.is_writing
        disk.noted = "done"
        keeping.hurry()
        assert keeping.is_writing
        await asyncio.gather(*keeper.tasks)
        assert (disk.written, keeper.done) == (["done"], [(True, False)])
        keeping.hurry()  # nothing waits
        assert not keeping.is_writing
        disk.error = ValueError("broken")
        keeping.write_now()
        await keeper.tasks[-1]
        assert keeper.done[1:] == [(False, False)]  # what waits for the disk must not wait forever
        disk.error = None
        keeping.write_later()
        await asyncio.sleep(0)
        keeping.stop()
        assert len(disk.written) == 2
        keeper.tasks[-1].cancel()

    asyncio.run(play())


def test_what_waits_is_written_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_keeping, "LATER_S", 0)

    async def play() -> None:
        keeper = Keeper()
        keeper.keeping.write_later()
        await asyncio.gather(*keeper.tasks)
        assert keeper.done == [(True, False)]

    asyncio.run(play())


def test_who_may_write_a_step_of_a_move_later() -> None:
    def later(step: Step, shard: str) -> bool:
        record = MoveRecord(((0, 5),), "from", "to", step, 1)
        view: Any = SimpleNamespace(moves={"1": Found(record, 1, 0)})
        assert not may_keep_later({"move/1", "shard/from"}, view, shard)
        assert may_keep_later({"move/2", "map"}, view, shard)
        return may_keep_later({"move/1", "map"}, view, shard)

    assert {step for step in Step if later(step, "from")} == {Step.MOVED, Step.DONE}
    assert {step for step in Step if later(step, "to")} == {Step.HANDING, Step.DONE}
    assert all(later(step, shard) for step in Step for shard in ("", "other"))


class Service:
    """A member that gets contents of the store, with a disk that is slow."""

    def __init__(self, *, limits: bool) -> None:
        self.events: list[Any] = []
        note = self.events.append
        confirming = SimpleNamespace(
            limit=lambda seq: note(("limit", seq)) or limits, end_limit=lambda: note("end")
        )
        terms = SimpleNamespace(
            last_seq=7, confirming=confirming, is_leading=True,
            require_lease=lambda needed: None, extend_lease=lambda until_ms: None,
            lead=lambda *order: note("lead"),
        )  # fmt: skip
        self.changed = frozenset({"map", "move/1"})
        seen = SimpleNamespace(note=lambda contents: self.changed, write=lambda: True)
        settings = MemberSettings(
            NodeRecord("h", 1, 0, "", "", "", ""), "s1", 10, 5000, uses_tls=False
        )
        parts: Any = (terms, None, None, SimpleNamespace(look=lambda: None), settings)
        named: Any = {"secret": ClusterSecret(Config()), "seen": seen}
        self.service: Any = MemberService("a" * 40, *parts, self.note_change, **named)
        self.member: Any = SimpleNamespace(
            actions=[], is_leading=True, shard="to", is_store_old=False, is_kept=False, view=None,
            needs_lease=False, take=lambda view, now_ms: None, look=lambda now_ms: None,
            held_until_ms=lambda: 0, is_reachable=True,
        )  # fmt: skip
        self.service.member = self.member
        self.service.enrollment = SimpleNamespace(look=lambda: None, problem="")

    def note_change(self) -> None:
        self.events.append("serves" if self.service.may_serve else "waits")

    async def take(self, step: Step) -> None:
        """The store has this step of a move to the own shard; then the disk has it, too."""
        record = MoveRecord(((0, 5),), "from", "to", step, 1)
        values = {
            "config": encode(Format(1)), "map": encode(SlotRanges(2, ((*EVERYTHING, "to"),))),
            "move/1": encode(record),
        }  # fmt: skip
        found = {name: Value(data, 9, 0) for name, data in values.items()}
        self.service._take(Contents(9, found))
        self.events.append("written")
        await asyncio.gather(*self.service._tasks)


def test_slots_are_served_and_not_confirmed_before() -> None:
    async def play() -> None:
        node = Service(limits=True)
        await node.take(Step.MOVED)
        assert node.events == [("limit", 7), "serves", "written", "end", "serves"]
        assert node.member.is_kept
        alone = Service(limits=False)
        await alone.take(Step.MOVED)
        assert alone.events == [("limit", 7), "waits", "written", "serves"]
        copying = Service(limits=True)
        await copying.take(Step.COPYING)
        assert copying.events == ["waits", "written", "serves"]
        later = Service(limits=True)
        await later.take(Step.HANDING)
        assert later.events == ["serves", "written", "serves"]

    asyncio.run(play())


def test_a_deposed_primary_serves_no_reads_on_a_slow_disk() -> None:
    async def play() -> None:
        node = Service(limits=True)
        node.service.terms.extend_lease = lambda until_ms: node.events.append(until_ms)

        def depose(view: object, now_ms: int) -> None:
            node.member.is_leading, node.member.actions = False, [Lead(5, (), 1)]

        node.member.take = depose
        await node.take(Step.COPYING)
        assert node.events[: node.events.index("written")] == [0, "waits"]

    asyncio.run(play())


def test_orders_wait_until_the_disk_has_what_causes_them() -> None:
    async def play() -> None:
        node = Service(limits=True)
        node.member.actions = [Lead(5, (), 1)]
        await node.take(Step.HANDING)
        assert node.events == ["waits", "written", "lead", "serves"]
        waiting = Service(limits=True)
        task = asyncio.ensure_future(waiting.take(Step.HANDING))
        await asyncio.sleep(0)
        waiting.member.actions = [Lead(5, (), 1)]
        waiting.service.look()  # this does not wait for LATER_S
        assert "lead" not in waiting.events
        await task
        assert waiting.events[-2:] == ["lead", "serves"]

    asyncio.run(play())


def serving(node: Node) -> ServedSlots:
    served = ServedSlots(node.slots, node.foreign_slot, lambda: 2000)
    server: Any = SimpleNamespace(
        executor=node.executor, keyspace=node.keyspace, pubsub=PubSub(node.executor.push_encoded)
    )
    served.start(server, {})
    return served


def test_slots_that_a_map_gives_are_served_once_it_is_written() -> None:
    node = Node()
    served = serving(node)
    parts = ((0, SLOT - 1, "s1"), (SLOT, SLOT, "s2"), (SLOT + 1, CLUSTER_SLOTS - 1, "s1"))
    served.note(SlotRanges(1, parts), "s1", "s1")
    player, waiting = node.player(), node.player()
    assert MOVED in str(player.call(f"SET {KEY} 1"))
    everything = SlotRanges(2, ((*EVERYTHING, "s1"),))
    for _ in range(2):
        served.note(everything, "s1", "s1", is_kept=False)
        waiting.send(f"SET {KEY} 1")
        assert waits(waiting)
    assert player.call(f"SET {OTHER} 1") == OK
    served.note(everything, "s1", "s1")
    node.settle()
    assert [waiting.read(), waiting.read()] == [OK, OK]
    served.note(SlotRanges(3, ((*EVERYTHING, "s2"),)), "s1", "s1", is_kept=False)
    assert MOVED in str(player.call(f"SET {KEY} 1"))  # what has left is not served any more


def test_a_new_primary_serves_nothing_before_that_is_written() -> None:
    node = Node()
    served = serving(node)
    everything = SlotRanges(1, ((*EVERYTHING, "s1"),))
    served.note(everything, "s1", None)
    served.note(everything, "s1", "s1", is_kept=False)
    player = node.player()
    assert MOVED in str(player.call(f"SET {KEY} 1"))
    served.note(everything, "s1", "s1")
    assert player.call(f"SET {KEY} 1") == OK
