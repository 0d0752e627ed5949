"""Plays one seed of a cluster whose slots move between shards while members fail.

The members decide as in a server (`member_world`), and so does the judge of moves. Checked all the
time: a write that is confirmed has seen all writes to its slot that were confirmed before it was
sent, whichever shard confirmed them. So two shards never serve one slot, and nothing confirmed is
lost on the way. Once everything is healed, every move ends, nothing of it is left in the data, and
each slot is served with all writes that were confirmed.

The model of a copy is a whole one of the slots at a safe frame of the source, again and again: how
it is made from parts and effects does not matter here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from tests.sim.member_world import (
    NODE_TIMEOUT_MS,
    STEPS,
    Confirmed,
    Frame,
    Node,
    Replica,
    Run,
    World,
)
from tests.sim.promises import demand
from tests.sim.seeds import Play, play_seeds
from tests.sim.store_model import StoreState

from millstream.commands.admin.cluster_peers import Reason
from millstream.server.cluster.cluster_view import ClusterView, Found, view_of
from millstream.server.cluster.member_actions import AskReturn, Purpose, Write
from millstream.server.cluster.slot_moves.move_data import Copied, Left, SourceNode
from millstream.server.cluster.slot_moves.move_judge import MoveJudge, canceled
from millstream.server.cluster.slot_moves.move_rules import ENDED, owned_by, planned
from millstream.server.cluster.store.records import (
    BACKUP_LOCK,
    MOVE,
    MoveRecord,
    SlotRanges,
    Step,
    decode,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare
from millstream.storage.keyspace.slot_ranges import Ranges, ranges_of, slots_of

# Members of a shard, and how many besides the primary must have each frame.
SIZES = ((3, 1), (3, 1), (2, 1), (1, 0), (1, 0))
SHARDS = ("s1", "s2", "s3")
SLOTS = (0, 1000, 2000, 6000, 8000, 11000, 13000, 16000)  # that are written to
PULL_MS = 60
CLOSE_FRAMES = 5
HANDOVER_MS = 2000
AWAY_MS = 12_000  # of a store that is restored: longer than a node takes it for the same
MOVE_MS = 120_000


class Effect(NamedTuple):
    """An effect of a move, in place of the name of a write."""

    kind: str
    move: str
    ranges: Ranges = ()
    contents: tuple[tuple[int, tuple[str, ...]], ...] = ()
    shard: str = ""
    epoch: int = 0


class State:
    """The data of frames: the writes in each slot, and the moves."""

    def __init__(self) -> None:
        self.folded: list[Frame] = []
        self.slots: dict[int, tuple[str, ...]] = {}
        self.imports: dict[str, Effect] = {}
        self.left: dict[str, Left] = {}
        self.owned: set[str] = set()
        self.epoch = 0

    def fold(self, frame: Frame) -> None:
        self.folded.append(frame)
        name: Any = frame.name
        if not isinstance(name, Effect):
            if name:
                slot = int(name.split("@")[1])
                self.slots[slot] = (*self.slots.get(slot, ()), name)
            return
        kind, move, ranges, _, shard, epoch = name
        self.epoch = max(self.epoch, epoch)
        if kind == "IMPORT":
            self.imports[move] = name
        elif kind == "LEAVE":
            self.left[move] = Left(ranges, shard)
        elif kind == "STAY":
            del self.left[move]
        elif kind == "OWN":
            self.slots.update(self.imports.pop(move).contents)
            self.owned.add(move)
        elif move in self.imports:
            del self.imports[move]
        elif move in self.left:
            for slot in slots_of(self.left.pop(move).ranges):
                self.slots.pop(slot, None)

    def hides(self, slot: int) -> bool:
        hidden = [one.ranges for one in (*self.left.values(), *self.imports.values())]
        return any(first <= slot <= last for ranges in hidden for first, last in ranges)

    def contents(self, ranges: Ranges) -> tuple[tuple[int, tuple[str, ...]], ...]:
        return tuple(
            (slot, names)
            for slot, names in sorted(self.slots.items())
            if any(first <= slot <= last for first, last in ranges)
        )


class Pull(NamedTuple):
    """A target asks for the slots; with a revision, also for the hand-over."""

    by: MoveRun
    move: str
    ranges: Ranges
    term: int
    revision: int
    number: int


class Pulled(NamedTuple):
    """The answer: the slots at a safe frame; how many frames are not safe; the frame with LEAVE, if
    it was recorded, or stood, for this revision."""

    pull: Pull
    frame: int
    contents: tuple[tuple[int, tuple[str, ...]], ...]
    missing: int
    left_at: int


class MoveReplica(Replica):
    """The data of a node with moves (`move_data.MoveData`), and its links to other shards."""

    def __init__(self, run: Run) -> None:
        super().__init__(run)
        self._state = State()
        self._links: dict[str, tuple[Ranges, SourceNode]] = {}
        self._asked: dict[str, int] = {}  # revisions
        self._pulled: dict[str, Pulled] = {}
        self._pulls = 0

    @property
    def state(self) -> State:
        return self.state_at(len(self.disk.frames))

    def state_at(self, count: int) -> State:
        state, frames = self._state, self.disk.frames[:count]
        if frames[: len(state.folded)] != state.folded:
            state = State()
        for frame in frames[len(state.folded) :]:
            state.fold(frame)
        if count == len(self.disk.frames):
            self._state = state
        return state

    def record(self, effect: Effect) -> None:
        order = self.lead_order
        if order is not None and self.disk.promised_term <= order.term:
            self.run.world.note(f"{self.run.node.name} {effect.kind} {effect.move}")
            self.disk.frames.append(Frame(order.term, effect))  # type: ignore[arg-type]
            self.sync()

    def last_of(self, move: str) -> int:
        """The number of the last frame about a move; 0: there is none."""
        frames = self.disk.frames
        for at in range(len(frames) - 1, -1, -1):
            name: Any = frames[at].name
            if isinstance(name, Effect) and name.move == move:
                return at + 1
        return 0

    # For the judge

    @property
    def imports(self) -> Mapping[str, Ranges]:
        return {move: effect.ranges for move, effect in self.state.imports.items()}

    @property
    def departures(self) -> Mapping[str, Left]:
        return self.state.left

    @property
    def epoch(self) -> int:
        return self.state.epoch

    def may_begin(self, ranges: Ranges) -> bool:
        return True

    def begin(self, move: str, ranges: Ranges, shard: str, source: SourceNode) -> None:
        if move not in self.state.owned and self._links.get(move) != (ranges, source):
            self._links[move] = ranges, source
            self._pulled.pop(move, None)

    def copied(self, move: str) -> Copied:
        pulled = self._pulled.get(move)
        is_close = pulled is not None and pulled.missing <= CLOSE_FRAMES
        obstacle = "the other shard is silent" if pulled is None else ""
        return Copied(is_close and move in self.state.imports, "", obstacle)

    def hand_over(self, move: str, revision: int) -> None:
        self._asked[move] = revision

    def has_all(self, move: str, revision: int) -> bool:
        pulled = self._pulled.get(move)
        return (
            pulled is not None
            and pulled.pull.revision == revision
            and 0 < pulled.left_at <= pulled.frame
            and move in self.state.imports
            and self.last_of(move) <= self.safe()
        )

    def own(self, move: str, epoch: int) -> None:
        if move in self.state.imports:
            self.record(Effect("OWN", move, epoch=epoch))

    def is_settled(self, move: str) -> bool:
        return move not in self.state.imports and self.last_of(move) <= self.safe()

    def keep(self, moves: Collection[str]) -> None:
        for known in (self._links, self._asked, self._pulled):
            for move in known.keys() - set(moves):
                del known[move]  # type: ignore[attr-defined]

    def has_moved(self, move: str) -> None:
        pass

    def hide(self, move: str, slots: Collection[int], shard: str) -> bool:
        order, state = self.lead_order, self.state
        if order is None or self.disk.promised_term > order.term:
            return False
        shown = {slot for slot in slots if state.slots.get(slot) and not state.hides(slot)}
        if shown:
            self.record(Effect("LEAVE", move, ranges_of(shown), shard=shard))
        return True

    def stay(self, move: str) -> None:
        if move in self.state.left:
            self.record(Effect("STAY", move))

    def drop(self, move: str, epoch: int) -> None:
        if move in self.state.imports or move in self.state.left:
            self.record(Effect("DROP", move, epoch=epoch))

    def give_back(self, move: str, say: Callable[[], None]) -> None:
        """Free what has arrived, and say so when no election loses that."""
        order = self.lead_order
        if order is None or move in self.state.owned:
            return
        self.keep(self._links.keys() - {move})
        self.record(Effect("DROP", move))
        number = len(self.disk.frames)

        def look() -> None:
            if self.lead_order is not None and self.lead_order.term == order.term:
                if self.safe() >= number:
                    say()
                else:
                    self.run.later(10, look)

        look()

    # Links

    def pull_all(self) -> None:
        order = self.lead_order
        if order is None or self.disk.promised_term > order.term:
            return
        for move, (ranges, source) in self._links.items():
            self._pulls += 1
            revision = self._asked.get(move, 0)
            pull = Pull(self.run, move, ranges, source.term, revision, self._pulls)  # type: ignore[arg-type]
            self.run.send(source.node, lambda run, pull=pull: run.replica.pulled(pull))  # type: ignore[misc]

    def pulled(self, pull: Pull) -> None:
        """As the source."""
        order, member = self.lead_order, self.run.member
        judge = self.run.judge  # type: ignore[attr-defined]
        if order is None or order.term != pull.term or judge.refusal_to_copy(member, pull.move):
            return
        left_at = 0
        if pull.revision and judge.may_leave(member, pull.move, pull.revision):
            if pull.move not in self.state.left:
                target = member.view.moves[pull.move].record.target  # type: ignore[union-attr]
                self.record(Effect("LEAVE", pull.move, pull.ranges, shard=target))
            left_at = self.last_of(pull.move)
        safe = self.safe()
        if safe:
            contents = self.state_at(safe).contents(pull.ranges)
            missing = len(self.disk.frames) - safe
            answer = Pulled(pull, safe, contents, missing, left_at)
            self.run.send_to(pull.by, lambda run: run.replica.arrived(answer))  # type: ignore[attr-defined]

    def arrived(self, answer: Pulled) -> None:
        """As the target."""
        move, order = answer.pull.move, self.lead_order
        ranges, source = self._links.get(move, ((), None))
        before = self._pulled.get(move)
        if order is None or source is None or source.term != answer.pull.term:
            return
        if before is not None and before.pull.number > answer.pull.number:
            return  # a connection keeps the order
        self._pulled[move] = answer
        found = self.state.imports.get(move)
        if found is None or found.contents != answer.contents:
            self.record(Effect("IMPORT", move, ranges, answer.contents))


class MoveRun(Run):
    """One run of a node's process."""

    replica: MoveReplica

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.judge = MoveJudge(
            self.replica, lambda: int(self.world.now_ms), lambda: HANDOVER_MS, lambda: MOVE_MS
        )
        self.member.moves = self.judge
        self._pull()

    def make_replica(self) -> Replica:
        return MoveReplica(self)

    def _pull(self) -> None:
        self.replica.pull_all()
        self.later(PULL_MS, self._pull)

    def _commit(self, action: Write) -> None:
        """Often something fails soon after a step."""
        super()._commit(action)
        world: Any = self.world
        if action.purpose is not Purpose.MOVE:
            return
        name, data, _ = action.changes[0]
        move, later_ms = name.removeprefix(MOVE), world.now_ms + world.chance.uniform(0, 200)
        if world.chance.random() < world.trouble:
            world.at(later_ms, lambda: world.disturb(move))
        is_handing = data is not None and decode(MoveRecord, data, name).step is Step.HANDING
        if is_handing and world.chance.random() < world.set_backs:
            world.at(later_ms, lambda: world.set_back(move))

    def ask_return(self, action: AskReturn) -> None:
        asked = action.asked
        self.world.note(f"{self.node.name} asks {asked.node} to return {asked.move}")
        me = self.node.name

        def give_back(run: Any) -> None:
            order = run.replica.lead_order
            if order is not None and order.term == asked.term:
                refusal = run.judge.refusal_to_give_back(run.member, asked)
                run.world.note(f"{run.node.name} returns {asked.move} {refusal}")
                if not refusal:
                    run.replica.give_back(asked.move, lambda: run.send(me, say))

        def say(run: Any) -> None:
            run.judge.returns.answered(action)
            run.member.look(run.now_ms)

        self.send(asked.node, give_back)

    def serves(self, slot: int) -> bool:
        member = self.member
        view = member.view
        if view is None or not member.may_serve(self.now_ms):
            return False
        owned = any(a <= slot <= b and name == member.shard for a, b, name in view.map.ranges)
        return owned and not self.replica.state.hides(slot)


class MoveNode(Node):
    run: MoveRun

    def start(self) -> None:
        self.run = MoveRun(self)


class MoveWorld(World):
    """Three shards, or two, and the moves between them."""

    module = "tests.sim.move_world"

    def __init__(self, seed: int, steps: int = STEPS, size: tuple[int, int] | None = None) -> None:
        super().__init__(seed, steps, size)
        if size is None:
            self.size, self.durable = self.chance.choice(SIZES)
        self.names = SHARDS[: self.chance.choice([2, 3])]
        self.trouble = self.chance.choice([0, 0.3, 0.6])
        # Without N, only leases keep two primaries apart, and a backup has not those of now.
        is_safe = self.durable > 0 or self.size == 1
        self.set_backs = self.chance.choice([0, 0.5]) if is_safe else 0
        self.restores = 0.3 if self.set_backs else 0
        self.losses = 0  # of the store, which has the moves
        self.moves = 0
        self.is_store_away = False
        self._seen: dict[str, frozenset[str]] = {}  # what each write has seen in its slot
        self._slots: dict[int, list[Confirmed]] = {slot: [] for slot in SLOTS}
        self._shards: dict[str, list[Confirmed]] = {name: [] for name in self.names}
        last = len(self.names) - 1
        bounds = [*[0, 5461, 10923][: last + 1], 16384]
        ranges = tuple((bounds[at], bounds[at + 1] - 1, name) for at, name in enumerate(self.names))
        self.make_shards(SlotRanges(1, ranges), [*self.names])
        self.nodes = {node.name: node for node in self.make_nodes()}

    def make_nodes(self) -> list[Node]:
        made: list[Node] = []
        for name in getattr(self, "names", ()):
            for _ in range(self.size):
                node = MoveNode(self, len(made))
                node.wanted = name
                made.append(node)
        return made

    @property
    def view(self) -> ClusterView:
        return view_of(self.store.read())

    def primary_of(self, shard: str) -> MoveNode | None:
        found: Any = self.nodes.get(self.view.shards[shard].record.primary)
        return found

    # Promises

    def confirm(self, name: str, by: Node, term: int) -> None:
        begun_ms = self._begun[name]
        slot, shard = int(name.split("@")[1]), by.run.member.shard
        earlier = {one.name for one in self._slots[slot] if one.ended_ms < begun_ms}
        missing = sorted(earlier - self._seen[name])
        demand(not missing, f"{by.name} confirms {name} without {missing[:5]}")
        confirmed = Confirmed(name, term, self.now_ms)
        self._slots[slot].append(confirmed)
        self._shards[shard].append(confirmed)
        self.confirmed.append(confirmed)
        self.counts["confirmed"] = self.counts.get("confirmed", 0) + 1

    def judge_leader(self, node: Node, term: int) -> None:
        shard = node.run.member.shard
        self._judge_has(node, [one.name for one in self._shards[shard] if one.term < term])

    # The play

    def _step(self) -> None:
        kinds = [
            (12, self._nothing), (1.2, self._plan), (0.2, self._cancel), (0.15, self._lock),
            (1.5, self._disturb),
        ]  # fmt: skip
        self.chance.choices([e for _, e in kinds], [w for w, _ in kinds])[0]()
        super()._step()

    def _nothing(self) -> None:
        pass

    def _lose_store(self) -> None:
        """Not here: the records of moves cannot be written again from what nodes know."""

    def _write(self, slot: int = -1) -> None:
        slot = slot if slot >= 0 else self.chance.choice(SLOTS)
        serving = [
            node.run
            for node in self.nodes.values()
            if isinstance(node, MoveNode) and not node.is_frozen and node.run.serves(slot)
        ]
        if serving:
            run = self.chance.choice(serving)
            self._writes += 1
            name = f"w{self._writes}@{slot}"
            self._begun[name] = self.now_ms
            self._seen[name] = frozenset(run.replica.state.slots.get(slot, ()))
            run.do(lambda: run.replica.append(name))

    def plan(self, ranges: Ranges, target: str) -> None:
        """Write moves into the store, as `millstream cluster move` does."""
        try:
            records = planned(self.view, ranges, target, int(self.now_ms))
        except ValueError:
            return
        for record in records:
            self.moves += 1
            name = f"{MOVE}{self.moves:x}"
            self.note(f"operator plans-move {self.moves:x} {record.slots} to {target}")
            self.store.commit([Compare(name, 0)], [Change(name, encode(record))])
        self.tell_watches()

    def _plan(self) -> None:
        first, last = sorted(self.chance.sample(range(16384), 2))
        self.plan(((first, last),), self.chance.choice(self.names))

    def _active(self) -> list[tuple[str, Found[MoveRecord]]]:
        return [
            (move, found)
            for move, found in self.view.moves.items()
            if found.record.step not in ENDED and found.record.step is not Step.PLANNED
        ]

    def _cancel(self) -> None:
        active = self._active()
        if active:
            move, found = self.chance.choice(active)
            record = canceled(found.record, int(self.now_ms))
            if record is not None:
                self.note(f"operator cancels {move}")
                change = Change(MOVE + move, encode(record))
                self.store.commit([Compare(MOVE + move, found.version)], [change])
                self.tell_watches()

    def _lock(self) -> None:
        is_there = BACKUP_LOCK in self.store.values
        self.note(f"operator {'unlocks' if is_there else 'locks'}")
        self.store.commit([], [Change(BACKUP_LOCK, None if is_there else b"1")])
        self.tell_watches()

    def _disturb(self) -> None:
        active = self._active()
        if active:
            self.disturb(self.chance.choice(active)[0])

    def disturb(self, move: str) -> None:
        """Something fails in the midst of a move."""
        found = self.view.moves.get(move)
        if found is None:
            return
        node = self.primary_of(self.chance.choice([found.record.source, found.record.target]))
        if node is None:
            return
        what = self.chance.choice(["crash", "freeze", "stand", "cut", "no-store"])
        self.note(f"{node.name} {found.record.step}-{what} {move}")
        if what == "crash":
            node.crash(self.chance.random() < 0.5)
        elif what == "freeze" and not node.is_frozen:
            node.is_frozen = True
            self.at(self.now_ms + self.chance.uniform(0, 6000), node.thaw)
        elif what == "cut":
            others = [frozenset((node.name, other)) for other in self.nodes if other != node.name]
            self.cut = {pair for pair in others if self.chance.random() < 0.8}
        elif what == "no-store":
            self.store_cut.add(node.name)
            later_ms = self.now_ms + self.chance.uniform(0, 6000)
            self.at(later_ms, lambda: self.store_cut.discard(node.name))
        elif what == "stand":
            shard = node.run.member.shard
            members = self.view.shards[shard].record.members if shard else ()
            if members:
                run = self.nodes[self.chance.choice(members)].run
                run.do(lambda: run.member.stand(Reason.FAILOVER, run.now_ms))

    def set_back(self, move: str) -> None:
        """The source does not see how the hand-over ends, and then sees a store from before."""
        found = self.view.moves.get(move)
        if found is None:
            return
        names = self.view.shards[found.record.source].record.members
        backup, chance = self.store.copy(), self.chance
        self.note(f"store set-back {move}")
        if chance.random() < 0.5:
            names = tuple(name for name in names if chance.random() < 0.7)
        self.store_cut.update(names)

        def heal() -> None:
            self.store_cut.difference_update(names)

        at_ms = self.now_ms + chance.uniform(100, 4000)
        self.at(at_ms, lambda: self.replace_store(backup))
        self.at(at_ms + AWAY_MS + chance.uniform(0, 500), heal)

    def replace_store(self, backup: StoreState) -> None:
        """The store ends. It takes a while until there is the restored one."""
        if self.is_store_away:
            return
        self.is_store_away = True
        self.note("store ends")

        def restore() -> None:
            self.store, self.is_store_away = backup.restarted(self.now_ms / 1000), False
            self.note("store restored")

        self.at(self.now_ms + AWAY_MS, restore)

    def reaches_store(self, node: Node) -> bool:
        return not self.is_store_away and super().reaches_store(node)

    def end(self) -> None:
        """Everything works again: every move ends, and all slots are served with all writes."""
        self.lost_replies = self.slow = self.full_disks = self.trouble = self.set_backs = 0
        self.pass_time(2 * AWAY_MS)  # trouble that was planned before comes, and is healed, too
        self.heal()
        self.store.commit([], [Change(BACKUP_LOCK, None)])
        self.pass_time(20_000)
        if not self._recover_lost():
            return
        for _ in range(200):
            if all(found.record.step in ENDED for found in self.view.moves.values()):
                break
            self.pass_time(500)
        else:
            demand(False, f"moves do not end: {[*self.view.moves.values()]}")
        self.pass_time(3 * NODE_TIMEOUT_MS)
        for name in self.names:
            node = self.primary_of(name)
            demand(node is not None and node.run.member.is_leading, f"{name} has no primary")
            assert node is not None
            state = node.run.replica.state
            demand(not state.imports and not state.left, f"{node.name} has a rest of a move")
            own = {*slots_of(owned_by(self.view.map, name))}
            demand(state.slots.keys() <= own, f"{node.name} has slots of other shards")
            self._judge_has(node, [one.name for one in self._shards[name]])
        for slot in SLOTS:
            serving = [
                node for node in self.nodes.values()
                if isinstance(node, MoveNode) and node.run.serves(slot)
            ]  # fmt: skip
            demand(len(serving) == 1, f"the slot {slot} is served by {len(serving)} nodes")
            found = set(serving[0].run.replica.state.slots.get(slot, ()))
            missing = sorted({one.name for one in self._slots[slot]} - found)
            demand(not missing, f"the slot {slot} lacks {missing[:5]}")
            count = len(self.confirmed)
            self._write(slot)
            self.pass_time(1000)
            demand(len(self.confirmed) == count + 1, f"no write to slot {slot} is confirmed")
        for found in self.view.moves.values():
            step = found.record.step
            self.counts[step] = self.counts.get(step, 0) + 1


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return MoveWorld(seed, steps).run()


if __name__ == "__main__":
    played = play_seeds(MoveWorld.module, lambda seed, steps: Play(play(seed, steps)), STEPS)
    sys.exit(played)
