"""Plays one seed of a shard: its members decide as in a server, over a model of the store, of the
network, of disks and of replication.

Checked all the time: what was confirmed is never missing at a later primary; of two confirmations,
the one that began after the end of the other has no lower term; a store that was restored from a
backup is not believed. Once everything is healed, one member leads and confirms.

The store is lost, too, and an operator writes its records from what some nodes know.

Nodes are also restarted while the store cannot be reached, alone or all at once, and take part with
what they have seen.

The model of replication has what the promises rest on: frames with the term in which they were
made, a journal whose end is lost in a crash, acknowledgements of frames that are on a disk, and a
promised term that is stored before it is answered.
"""

from __future__ import annotations

import heapq
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from tests.sim.promises import demand
from tests.sim.seeds import Play, play_seeds
from tests.sim.store_model import StoreState

from millstream.commands.admin.cluster_peers import LastFrame, Reason
from millstream.server.cluster.cluster_view import ClusterView, view_of
from millstream.server.cluster.enrollment import AUTO, Enrollment
from millstream.server.cluster.member_actions import (
    Action,
    AskPromise,
    AskReturn,
    Follow,
    GetLease,
    KeepLease,
    Lead,
    ReadAgain,
    Rest,
    Write,
    needs_disk,
)
from millstream.server.cluster.member_lease import MemberLease
from millstream.server.cluster.member_service import CALM_MS, is_calm
from millstream.server.cluster.membership import Member, Part
from millstream.server.cluster.recollection import answer_of, describe
from millstream.server.cluster.seen_keeping import LATER_S
from millstream.server.cluster.slot_moves.move_rules import may_keep_later
from millstream.server.cluster.store.records import (
    CONFIG,
    MAP,
    SHARD,
    VERSION,
    Format,
    NodeRecord,
    RecordError,
    ShardRecord,
    SlotRanges,
    decode,
    encode,
)
from millstream.server.cluster.store.seen_store import contents_of, values_to_keep
from millstream.server.cluster.store.store import Change, Commit, Contents, LeaseEnded
from millstream.server.cluster.store_recovery import CHOICES, NodeAnswer, Unrecoverable, recover

# Members of the shard, and how many besides the primary must have each frame.
SIZES = ((3, 1), (3, 1), (3, 0), (1, 0), (2, 1), (5, 2), (2, 0))
STEPS = 400  # faults and requests
NODE_TIMEOUT_MS = 1000
LEASE_S = 3
BEAT_MS = 200
LOOK_MS = 50
READ_MS = 1000
TRACE_LINES = 100


class WorldFailure(AssertionError):
    """A seed that shows a broken promise; prints the command that replays it."""


class Frame(NamedTuple):
    term: int
    name: str  # of the write; "" for the frame that begins a line of history


class Confirmed(NamedTuple):
    """A write, the term of the primary that has confirmed it, and when."""

    name: str
    term: int
    ended_ms: float


class Asked(NamedTuple):
    """A replica wants frames: those that it has, and how many of them are on its disk."""

    by: Run
    term: int
    number: int
    frames: list[Frame]
    synced: int


class Disk:
    """The data that survives a crash: frames, the last ones perhaps not synced, the promise, and
    what was seen in the store."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.synced = 0
        self.promised_term = 0
        self.seen: dict[str, str] = {}


class Replica:
    """The data of one run of a node, as `member_actions.Data` wants it, and its links."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.disk = run.node.disk
        self.lead_order: Lead | None = None
        self.follow_order: Follow | None = None
        self.heard_ms = 0
        self.begun = 0  # the number of frames before those of the own term
        self.acked: dict[str, tuple[int, int]] = {}  # frames of members, and when they said so
        self.pending: list[tuple[int, str]] = []  # frame, write
        self.polls = self.newest_poll = 0

    # For the member

    @property
    def promised(self) -> int:
        return self.disk.promised_term

    def silence_ms(self) -> int | None:
        return self.run.now_ms - self.heard_ms if self.heard_ms else None

    def standing(self) -> LastFrame:
        frames = self.disk.frames[: self.disk.synced]
        return LastFrame(frames[-1].term if frames else 0, "", len(frames))

    def confirming_members(self) -> int:
        order, now_ms = self.lead_order, self.run.now_ms
        if order is None:
            return 0
        recent = [
            node
            for node, (_, at_ms) in self.acked.items()
            if node in order.members and now_ms - at_ms <= NODE_TIMEOUT_MS
        ]
        return len(recent)

    def acknowledged_frame(self, node: str) -> int:
        order = self.lead_order
        if order is None or self.disk.promised_term > order.term:
            return 0
        return self.acked.get(node, (0, 0))[0]

    # Orders

    def lead(self, order: Lead) -> None:
        if self.lead_order is None or self.lead_order.term != order.term:
            self.follow_order = None
            self.promise(order.term)
            self.acked, self.pending = {}, []
            self.begun = len(self.disk.frames)
            self.disk.frames.append(Frame(order.term, ""))
            self.sync()
        self.lead_order = order

    def follow(self, order: Follow) -> None:
        self.promise(order.term)
        self.lead_order, self.follow_order = None, order
        self.heard_ms, self.pending = 0, []

    def promise(self, term: int) -> None:
        """On the disk at once: the answer is late, instead."""
        self.disk.promised_term = max(self.disk.promised_term, term)
        if self.lead_order is not None and self.lead_order.term < term:
            self.lead_order, self.pending = None, []
        if self.follow_order is not None and self.follow_order.term < term:
            self.follow_order = None

    # Frames

    def sync(self) -> None:
        count, frames = len(self.disk.frames), self.disk.frames[-1:]
        self.run.later(self.run.world.delay(1, 8), lambda: self._synced(count, frames))

    def _synced(self, count: int, last: list[Frame]) -> None:
        if self.disk.frames[count - 1 : count] == last:
            self.disk.synced = max(self.disk.synced, count)
        self.release()

    def append(self, name: str) -> None:
        self.disk.frames.append(Frame(self.lead_order.term, name))  # type: ignore[union-attr]
        self.pending.append((len(self.disk.frames), name))
        self.sync()

    def poll(self) -> None:
        """A replica asks its primary for frames, and says which are on its disk."""
        order = self.follow_order
        if order is not None:
            frames, synced = list(self.disk.frames), self.disk.synced
            self.polls += 1
            asked = Asked(self.run, order.term, self.polls, frames, synced)
            self.run.send(order.node, lambda run: run.replica.asked(asked))

    def asked(self, asked: Asked) -> None:
        by, term, number, frames, synced = asked
        node = by.node.name
        order = self.lead_order
        if order is None or order.term != term or self.disk.promised_term > term:
            return
        ours = self.disk.frames
        common = 0
        while common < min(len(frames), len(ours)) and frames[common] == ours[common]:
            common += 1
        before = self.acked.get(node, (0, 0))[0]
        self.acked[node] = max(before, min(common, synced)), self.run.now_ms
        durable = ours[common : self.disk.synced]
        self.run.send_to(by, lambda run: run.replica.received(term, number, common, durable))
        self.release()

    def received(self, term: int, number: int, common: int, frames: list[Frame]) -> None:
        order = self.follow_order
        if order is None or order.term != term or self.disk.promised_term > term:
            return
        if number < self.newest_poll:
            return  # a connection keeps the order
        self.newest_poll = number
        self.heard_ms = self.run.now_ms
        ours = self.disk.frames
        if len(ours) < common:
            return
        if ours[common:][: len(frames)] == frames and (frames or len(ours) == common):
            pass  # an earlier answer had them
        else:
            ours[common:] = frames
            self.disk.synced = min(self.disk.synced, common)
        if self.disk.synced < len(ours):
            self.sync()

    def safe(self) -> int:
        """The number of frames that are on enough disks, as the primary; 0: none of its term."""
        order, run = self.lead_order, self.run
        if order is None or self.disk.promised_term > order.term:
            return 0
        counts = sorted(
            (count for node, (count, _) in self.acked.items() if node in order.members),
            reverse=True,
        )
        safe = self.disk.synced
        if order.durable:
            safe = min(safe, counts[order.durable - 1] if len(counts) >= order.durable else 0)
        return safe if safe > self.begun and run.member.may_confirm(run.now_ms) else 0

    def release(self) -> None:
        """Confirm what is on enough disks."""
        safe = self.safe()
        while self.pending and self.pending[0][0] <= safe:
            _, name = self.pending.pop(0)
            self.run.world.confirm(name, self.run.node, self.lead_order.term)  # type: ignore[union-attr]


class Run:
    """One run of a node's process."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.world = node.world
        self.replica = self.make_replica()
        self.member = Member(node.name, self.replica, MemberLease(LEASE_S), NODE_TIMEOUT_MS)
        self.enrollment = Enrollment(
            self.member, NodeRecord("h", node.port, 0, "", "", "", ""), node.wanted
        )
        if node.disk.seen:
            self.member.seen = view_of(contents_of(1, node.disk.seen))
        self.seen = node.disk.seen  # later perhaps more than what is on the disk
        self.is_alive = True
        self._is_to_write = False
        self._answering = self.world.store  # the store that has answered last
        self._reads = self._newest_read = 0
        self.read()
        self._tick()
        self._read_later()
        self._beat()

    def make_replica(self) -> Replica:
        return Replica(self)

    @property
    def now_ms(self) -> int:
        """The steady clock of the node, which has a rate of its own."""
        return self.node.clock_ms()

    def later(self, ms: float, action: Callable[[], None]) -> None:
        self.world.at(self.world.now_ms + ms, lambda: self.do(action))

    def do(self, action: Callable[[], None]) -> None:
        """Now, or when the process continues."""
        if not self.is_alive:
            return
        if self.node.is_frozen:
            self.node.put_off.append((self, action))
            return
        action()
        self.carry_out()

    def _tick(self) -> None:
        self.member.look(self.now_ms)
        self.enrollment.look()
        self.later(CALM_MS if is_calm(self.member, self.now_ms) else LOOK_MS, self._tick)

    def _beat(self) -> None:
        self.replica.poll()
        self.later(BEAT_MS * self.world.chance.uniform(0.5, 1.2), self._beat)

    def _read_later(self) -> None:
        self.read()
        self.later(READ_MS, self._read_later)

    # The store

    def call(self, what: Callable[[StoreState, float], Any], done: Callable[[Any], None]) -> None:
        """Call the store. Its answer may be late or lost; then `done` gets None after a while."""
        world = self.world
        answered = []

        def answer(found: Any) -> None:
            if not answered:
                answered.append(True)
                done(found)

        def arrive() -> None:
            if world.reaches_store(self.node):
                store = world.store
                before = store.revision
                found = what(store, world.now_ms / 1000)
                if store.revision != before:
                    world.tell_watches()
                if world.chance.random() >= world.lost_replies:
                    world.at(world.now_ms + world.delay(0, 10), lambda: back(found, store))

        def back(found: Any, store: StoreState) -> None:
            if world.reaches_store(self.node):
                self.do(lambda: hear(found, store))

        def hear(found: Any, store: StoreState) -> None:
            if store is not self._answering:  # the watch has ended
                self._answering = store
                self.member.note_gap()
            answer(found)

        world.at(world.now_ms + world.delay(0, 10, slow=True), arrive)
        self.later(500, lambda: answer(None))

    def read(self) -> None:
        self._reads += 1
        number = self._reads

        def take(contents: Any) -> None:
            if number < self._newest_read:
                return  # a later one was faster
            self._newest_read = number
            if contents is None:
                self.member.lose()
                return
            try:
                view = view_of(contents)
            except RecordError:  # the store was lost
                self.member.lose()
                return
            self.member.take(view, self.now_ms)
            if not self.member.is_store_old:
                self.keep(contents, view)
            self.enrollment.look()

        self.call(lambda store, now_s: store.read(), take)

    def keep(self, contents: Contents, view: ClusterView) -> None:
        """On the disk at once or a little later, or not at all."""
        member, disk = self.member, self.node.disk
        self.seen = values_to_keep(contents, self.seen)
        names = self.seen.keys() | disk.seen.keys()
        changed = [name for name in names if self.seen.get(name) != disk.seen.get(name)]
        has_order = any(map(needs_disk, member.actions))
        led_shard = member.shard if member.is_leading else ""
        if not changed or has_order or not may_keep_later(changed, view, led_shard):
            self.write_seen()
        elif not self._is_to_write:
            self._is_to_write = True
            self.later(self.world.chance.uniform(0, 1000 * LATER_S), self.write_seen)

    def write_seen(self) -> None:
        disk, self._is_to_write = self.node.disk, False
        if self.world.chance.random() >= self.world.full_disks:
            disk.seen = self.seen
        self.member.is_kept = disk.seen == self.seen

    def answer_seen(self) -> NodeAnswer:
        """As the command CLUSTER SEEN."""
        found = describe(self.member, "c", 1, self.seen or None, self.now_ms)
        return answer_of(found, "c", self.node.name)

    # Orders of the member

    def carry_out(self) -> None:
        actions = self.member.actions
        if self._is_to_write and any(map(needs_disk, actions)):
            self.write_seen()
        while actions:
            self._carry_out(actions.pop(0))

    def _carry_out(self, action: Action) -> None:
        match action:
            case GetLease() | KeepLease():
                self._get_or_keep(action)
            case Write():
                self._commit(action)
            case ReadAgain():
                self.read()
            case AskPromise(node, _, term, reason):
                self._ask(node, term, reason)
            case AskReturn():
                self.ask_return(action)
            case Lead():
                again = "leads-again" if self.member.is_recalled else "leads"
                self.world.note(f"{self.node.name} {again} {action.term} {action.members}")
                self.replica.lead(action)
                self.world.judge_leader(self.node, action.term)
            case Follow():
                self.world.note(f"{self.node.name} follows {action.node} {action.term}")
                self.replica.follow(action)
            case Rest():
                self.world.note(f"{self.node.name} rests")

    def _get_or_keep(self, action: GetLease | KeepLease) -> None:
        lease, sent_ms = self.member.lease, self.now_ms
        late_s = self.world.chance.uniform(0, 1)

        def carry_out(store: StoreState, now_s: float) -> tuple[int, float | None]:
            if isinstance(action, KeepLease):
                return action.lease, store.keep_alive(action.lease, now_s, late_s)
            return store.grant(action.ttl_s, now_s, late_s)

        def done(got: tuple[int, float | None] | None) -> None:
            if got is None:
                lease.failed(self.now_ms)
            elif isinstance(action, GetLease) and got[1] is not None:
                lease.granted(*got, sent_ms)
            else:
                lease.kept(got[1], sent_ms)

        self.call(carry_out, done)

    def _commit(self, action: Write) -> None:
        def commit(store: StoreState, now_s: float) -> Commit | LeaseEnded:
            try:
                return store.commit(action.compares, action.changes)
            except LeaseEnded as problem:
                return problem

        def written(got: Commit | LeaseEnded | None) -> None:
            if isinstance(got, LeaseEnded):
                self.member.lease.end()
                got = None
            self.member.written(action.purpose, got, self.now_ms)

        data = [change.data for change in action.changes]
        self.world.note(f"{self.node.name} {action.purpose.name} {data}")
        self.call(commit, written)

    def ask_return(self, action: AskReturn) -> None:
        raise AssertionError("no slots move here")

    def _ask(self, node: str, term: int, reason: Reason) -> None:
        me = self.node.name
        if node == me:
            self.replica.promise(term)
            self.later(
                self.world.delay(1, 8), lambda: self.answer(me, term, self.replica.standing())
            )
            return
        self.send(node, lambda run: run.promise_to(me, term, reason))

    def promise_to(self, candidate: str, term: int, reason: Reason) -> None:
        refusal = self.member.refusal_of(candidate, term, reason, self.now_ms)
        if not refusal:
            self.replica.promise(term)
        me = self.node.name

        def tell() -> None:
            standing = None if refusal else self.replica.standing()
            self.send(candidate, lambda run: run.answer(me, term, standing))

        self.world.note(f"{me} asked by {candidate} for {term}: {refusal or 'promises'}")
        self.later(self.world.delay(1, 8), tell)

    def answer(self, node: str, term: int, standing: LastFrame | None) -> None:
        self.member.promised(node, term, standing, self.now_ms)

    def send(self, node: str, deliver: Callable[[Run], None]) -> None:
        """A message to another node; it is lost if the network is cut, or that one restarts."""
        self.send_to(self.world.nodes[node].run, deliver)

    def send_to(self, to: Run, deliver: Callable[[Run], None]) -> None:
        world, node = self.world, to.node.name
        if world.is_cut(self.node.name, node):
            return
        world.at(
            world.now_ms + world.delay(0, 15, slow=True),
            lambda: None if world.is_cut(self.node.name, node) else to.do(lambda: deliver(to)),
        )


class Node:
    """A machine: its disk, its clock, and the run of the process on it."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"{number}" * 40
        self.wanted = AUTO  # the shard
        self.port = 7000 + number
        self.disk = Disk()
        self.is_frozen = False
        self.put_off: list[tuple[Run, Callable[[], None]]] = []
        self.rate = world.chance.uniform(0.97, 1.03)
        self.run: Run

    def clock_ms(self) -> int:
        return 1000 + int(self.world.now_ms * self.rate)

    def start(self) -> None:
        self.run = Run(self)

    def crash(self, keeps_all: bool) -> None:
        """The process ends; a power cut also loses what is not synced."""
        self.run.is_alive = False
        self.put_off.clear()
        self.is_frozen = False
        disk = self.disk
        if not keeps_all:
            kept = self.world.chance.randint(disk.synced, len(disk.frames))
            del disk.frames[kept:]
        disk.synced = min(disk.synced, len(disk.frames))
        self.start()
        self.run.replica.sync()

    def thaw(self) -> None:
        self.is_frozen = False
        put_off, self.put_off = self.put_off, []
        for run, action in put_off:
            run.do(action)


class World:
    """One shard, its store, and what happens to them."""

    module = "tests.sim.member_world"  # plays a seed again

    def __init__(self, seed: int, steps: int = STEPS, size: tuple[int, int] | None = None) -> None:
        self.seed, self.steps = seed, steps
        self.chance = chance = random.Random(seed)
        self.size, self.durable = size or chance.choice(SIZES)
        self.now_ms = 0.0
        self.store = StoreState()
        self.lost_replies = chance.choice([0, 0, 0.05])
        self.slow = chance.choice([0, 0.02])
        self.full_disks = chance.choice([0, 0, 0.1])
        # Without N, two primaries are only kept apart by leases, which a backup has not.
        self.restores = 0.3 if self.durable and chance.random() < 0.3 else 0
        self.losses = 0.1  # of the store
        self.may_lose = self.durable > 0  # members that are lost for ever, as an operator says
        self.cut: set[frozenset[str]] = set()
        self.store_cut: set[str] = set()
        self.confirmed: list[Confirmed] = []
        self._begun: dict[str, float] = {}  # when each write was sent
        self.trace: deque[str] = deque(maxlen=TRACE_LINES)
        self.counts: dict[str, int] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._writes = 0
        self._backup: StoreState | None = None
        self.make_shards(SlotRanges(1, ((0, 16383, "s1"),)), ["s1"])
        self.nodes = {node.name: node for node in self.make_nodes()}

    def make_shards(self, slot_map: SlotRanges, names: list[str]) -> None:
        """Write the records of a new cluster."""
        record = ShardRecord("f" * 40, 0, "", (), self.size, self.durable)
        changes = [Change(CONFIG, encode(Format(VERSION))), Change(MAP, encode(slot_map))]
        changes += [Change(SHARD + name, encode(record)) for name in names]
        self.store.commit([], changes)

    def make_nodes(self) -> list[Node]:
        return [Node(self, number) for number in range(self.size)]

    # Time and network

    def at(self, ms: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (ms, self._number, action))

    def pass_time(self, ms: float) -> None:
        end_ms = self.now_ms + ms
        while self._events and self._events[0][0] <= end_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            self.store.pass_to(self.now_ms / 1000)
            action()
        self.now_ms = end_ms

    def delay(self, least_ms: float, most_ms: float, slow: bool = False) -> float:
        if slow and self.chance.random() < self.slow:
            return self.chance.uniform(0, 3000)
        return self.chance.uniform(least_ms, most_ms)

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut

    def reaches_store(self, node: Node) -> bool:
        return node.name not in self.store_cut

    def note(self, text: str) -> None:
        text = re.sub(r"(\d)\1{39}", r"n\1", text)
        self.trace.append(f"{self.now_ms:>9.1f} {text}")
        kind = text.split()[1] if " " in text else text
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def tell_watches(self) -> None:
        """The store has changed. Some watches stay silent."""
        for node in self.nodes.values():
            if self.chance.random() < 0.9:
                node.run.later(self.delay(0, 15), node.run.read)

    # Promises

    def confirm(self, name: str, by: Node, term: int) -> None:
        begun_ms = self._begun[name]
        for one in reversed(self.confirmed):
            if one.ended_ms < begun_ms:
                demand(one.term <= term, f"{name} was confirmed in term {term}, after {one}")
                break
        self.confirmed.append(Confirmed(name, term, self.now_ms))
        self.counts["confirmed"] = self.counts.get("confirmed", 0) + 1
        for node in self.nodes.values():
            order = node.run.replica.lead_order
            if order is not None and order.term > term and self.durable:
                self._judge_has(node, [name])

    def judge_leader(self, node: Node, term: int) -> None:
        if self.durable:
            self._judge_has(node, [one.name for one in self.confirmed if one.term < term])

    def _judge_has(self, node: Node, names: list[str]) -> None:
        have = {frame.name for frame in node.disk.frames}
        missing = [name for name in names if name not in have]
        demand(not missing, f"{node.name} leads without {missing[:5]}, which were confirmed")

    # The play

    def begin(self) -> None:
        for node in self.nodes.values():
            node.start()
        self.pass_time(3000)

    def run(self) -> dict[str, int]:
        try:
            self.begin()
            for _ in range(self.steps):
                self._step()
            self.end()
        except Exception as problem:
            raise WorldFailure(self._story(problem)) from problem
        return self.counts

    def _story(self, problem: Exception) -> str:
        lines = "\n  ".join(self.trace)
        return (
            f"{type(problem).__name__}: {problem}\nM {self.size}, N {self.durable}\nlast events:\n"
            f"  {lines}\nplay it again: python -m {self.module} {self.seed} --steps {self.steps}"
        )

    def _step(self) -> None:
        kinds = [
            (30, self._write_some), (10, self._rest), (0.5, self._cut_or_heal),
            (0.4, self._cut_store),
            (0.5, self._crash), (0.4, self._freeze_or_thaw), (0.1, self._ask_for_change),
            (0.3, self.heal), (0.6, self._isolate_primary), (1, self._suspend_candidate),
            (0.3, self._restart_without_store),
            (self.restores, self._restore_store), (self.losses, self._lose_store),
            (1, self._recover_some),
        ]  # fmt: skip
        event = self.chance.choices([e for _, e in kinds], [w for w, _ in kinds])[0]
        event()
        self.pass_time(self.chance.choice([1, 5, 20, 100]))

    def leaders(self) -> list[Node]:
        """The nodes that are the primary, as far as they know."""
        return [node for node in self.nodes.values() if node.run.member.is_leading]

    def _write_some(self) -> None:
        for _ in range(self.chance.choice([1, 1, 5])):
            self._write()

    def _write(self) -> None:
        leaders = [node for node in self.leaders() if not node.is_frozen]
        if leaders:
            run = self.chance.choice(leaders).run
            if run.member.may_serve(run.now_ms):
                self._writes += 1
                name = f"w{self._writes}"
                self._begun[name] = self.now_ms
                run.do(lambda: run.replica.append(name))

    def _rest(self) -> None:
        self.pass_time(self.chance.choice([100, 500, 2000]))

    def _pair(self) -> frozenset[str]:
        return frozenset(self.chance.sample(sorted(self.nodes), 2))

    def _cut_or_heal(self) -> None:
        if self.size > 1:
            pair = self._pair()
            self.note(f"{sorted(pair)} cut-or-heal")
            self.cut ^= {pair}

    def _isolate_primary(self) -> None:
        """One primary loses the other members, and those lost before are back. It may continue for
        a while, with frames that no other node gets."""
        leaders = self.leaders()
        if leaders:
            alone = self.chance.choice(leaders).name
            self.note(f"{alone} is-alone")
            self.cut = {frozenset((alone, other)) for other in self.nodes if other != alone}
            self.store_cut = {alone} if self.chance.random() < 0.5 else set()

    def _suspend_candidate(self) -> None:
        """A candidate is suspended between its last promise and its transaction."""
        for node in self.nodes.values():
            if node.run.member.candidate.has_election and not node.is_frozen:
                self.note(f"{node.name} is-late")
                node.is_frozen = True
                self.at(self.now_ms + self.chance.uniform(0, 6000), node.thaw)
                return

    def _cut_store(self) -> None:
        name = self.chance.choice(sorted(self.nodes))
        if self.chance.random() < 0.2:
            self.store_cut = set(self.nodes)
        else:
            self.store_cut ^= {name}
        self.note(f"store cut-from {sorted(self.store_cut)}")

    def _crash(self) -> None:
        node = self.chance.choice(sorted(self.nodes.values(), key=lambda one: one.name))
        self.note(f"{node.name} crashes")
        node.crash(self.chance.random() < 0.5)

    def _restart_without_store(self) -> None:
        """The store is lost, or is for some nodes, and then the primary, or the power of all."""
        nodes = sorted(self.nodes.values(), key=lambda one: one.name)
        if self.chance.random() < 0.7:
            self.store_cut = set(self.nodes)
        self.pass_time(self.chance.choice([0, 20, 500]))
        for node in nodes if self.chance.random() < 0.3 else self.leaders():
            self.note(f"{node.name} crashes")
            self.store_cut.add(node.name)
            node.crash(self.chance.random() < 0.5)

    def _freeze_or_thaw(self) -> None:
        node = self.chance.choice(sorted(self.nodes.values(), key=lambda one: one.name))
        self.note(f"{node.name} {'thaws' if node.is_frozen else 'freezes'}")
        if node.is_frozen:
            node.thaw()
        else:
            node.is_frozen = True

    def _ask_for_change(self) -> None:
        node = self.chance.choice(sorted(self.nodes.values(), key=lambda one: one.name))
        reason = self.chance.choice([Reason.FAILOVER, Reason.FORCE])
        self.note(f"{node.name} is-ordered {reason}")
        node.run.do(lambda: node.run.member.stand(reason, node.run.now_ms))

    def _restore_store(self) -> None:
        """Make a backup of the store, or replace the store by the last one."""
        if self._backup is None or self.chance.random() < 0.5:
            self._backup = self.store.copy()
        else:
            self.replace_store(self._backup)

    def replace_store(self, backup: StoreState) -> None:
        self.store = backup.restarted(self.now_ms / 1000)
        self.note("store restored")

    def _lose_store(self) -> None:
        """The store has a new and empty disk."""
        self.note("store is-empty")
        self.store, self._backup = StoreState(), None

    @property
    def is_store_lost(self) -> bool:
        """True if the store is empty, or older than what a node knows."""
        return MAP not in self.store.values or any(
            node.run.member.is_store_old for node in self.nodes.values()
        )

    def _recover_some(self) -> None:
        """The operator asks some nodes. Of the others, some may be lost for ever."""
        if self.is_store_lost:
            share = self.chance.choice([0.4, 0.8])
            asked = [
                node
                for node in self.nodes.values()
                if not node.is_frozen and self.chance.random() < share
            ]
            absent = sorted(self.nodes.keys() - {node.name for node in asked})
            self.recover(asked, absent if self.may_lose and self.chance.random() < 0.3 else [])

    def recover(self, asked: list[Node], lost: Collection[str] = ()) -> bool:
        """`millstream cluster init --from-nodes`."""
        answers = [node.run.answer_seen() for node in asked]
        try:
            found = recover(answers, self.store.read(), lost, self.chance.randrange(CHOICES))
        except Unrecoverable as problem:
            self.note(f"operator is-refused {problem}")
            return False
        self.note(f"operator recovers {found.shards}")
        demand(self.store.commit(found.compares, found.changes).done, "the store has changed")
        self.tell_watches()
        return True

    def _recover_lost(self) -> bool:
        """Recover the store if it is lost. False if nodes have different states of it, because one
        has taken part with a restored one."""
        if self.is_store_lost:
            if not self.recover([*self.nodes.values()]):
                demand(self.restores > 0, "a lost store cannot be recovered")
                return False
            self.pass_time(20_000)
        return True

    def heal(self) -> None:
        self.note("all heals")
        self.cut.clear()
        self.store_cut.clear()
        for node in self.nodes.values():
            if node.is_frozen:
                node.thaw()

    @property
    def record(self) -> ShardRecord:
        """That of the shard in the store."""
        return decode(ShardRecord, self.store.values[SHARD + "s1"].data, "shard/s1")

    def end(self) -> None:
        """Everything works again: soon a member confirms, and all others follow it."""
        self.heal()
        self.lost_replies = self.slow = self.full_disks = 0
        self.pass_time(20_000)
        if not self._recover_lost():
            return
        leaders = self.leaders()
        demand(len(leaders) == 1, f"{len(leaders)} members lead after 20 quiet seconds")
        count = len(self.confirmed)
        self._write()
        self.pass_time(2000)
        demand(len(self.confirmed) == count + 1, "a write is not confirmed after 2 quiet seconds")
        if self.durable:
            self._judge_has(leaders[0], [one.name for one in self.confirmed])
        members = [node for node in self.nodes.values() if node.run.member.shard]
        demand(len(members) == len(self.record.members), "a member does not know that it is one")
        for node in members:
            if node is not leaders[0]:
                demand(node.run.member.part is Part.FOLLOWING, f"{node.name} does not follow")
                demand(node.disk.frames == leaders[0].disk.frames, f"{node.name} has other frames")


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return World(seed, steps).run()


if __name__ == "__main__":
    played = play_seeds(World.module, lambda seed, steps: Play(play(seed, steps)), STEPS)
    sys.exit(played)
