"""Two shards of one server each, between which slots move while clients write: the real links and
the real data, with the network, the disks and the time of a fleet."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.sim.fleet_node import FleetClient, FleetConfig, FleetNode
from tests.sim.terms_fleet import SECRET, TermsFleet, TermsNode, id_of_node
from tests.support.fakedisk import FakeDisk
from tests.support.mixed_changes import STREAMS, STRINGS, Changes, Words
from tests.support.resp import Error
from tests.support.slot_contents import state_of

from millstream.server.cluster.peers import Peers
from millstream.server.cluster.served_slots import ServedSlots
from millstream.server.cluster.slot_moves.arrivals import Arrivals
from millstream.server.cluster.slot_moves.departures import Departures
from millstream.server.cluster.slot_moves.move_data import SourceNode
from millstream.server.cluster.slot_moves.move_links import MoveLinks
from millstream.server.cluster.slot_moves.slot_import import Phase, SlotImport
from millstream.server.cluster.store.records import SlotRanges
from millstream.server.execution.pubsub import PubSub
from millstream.server.execution.slot_check import SlotCheck
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of
from millstream.storage.keyspace.slot_ranges import ranges_of, slots_of

MOVE = "0a1b"
TAGS = ("x", "yy", "zzz", "w1", "stays")
TAG_SLOTS = [cluster_slot_of(tag.encode()) for tag in TAGS]
# A few slots around those with keys, so that batches end in between.
MOVING = sorted({slot + more for slot in TAG_SLOTS[:-1] for more in range(4)})
RANGES = ranges_of(MOVING)
LAST_SLOT = CLUSTER_SLOTS - 1
NAMES = {*STREAMS, *STRINGS, "orders", "held"}


class MovingNode(TermsNode):
    clustered = True

    def __init__(
        self, fleet: Any, index: int, disk: FakeDisk, config: FleetConfig, chance: random.Random
    ) -> None:
        super().__init__(fleet, index, disk, config, chance)
        self.shard = f"s{index + 1}"
        self.moves = MoveLinks(
            self.replication, lambda: SECRET,
            lambda host, port, connection: fleet.connect(self, port, connection),
        )  # fmt: skip
        self.pubsub = PubSub(self.executor.push_encoded)
        self.slots = SlotCheck(self)
        self.executor.admission.set_slots(self.slots)
        self.served = ServedSlots(self.slots, self.foreign_slot, lambda: 600_000)
        self.moves.leaving.may_leave = lambda move, asked: asked == fleet.allowed_round
        self.cluster = SimpleNamespace(peers=self._peers())

    def start(self) -> None:
        super().start()
        self.served.start(self, self.clients)

    def owns(self, slot: int) -> bool:
        return self.served.owners[slot] == self.shard

    def may_read(self, session: Any, slot: int) -> bool:
        return False

    def unserved_slot(self, slot: int) -> str | None:
        return None

    def is_primary_of_term(self) -> bool:
        return self.terms.is_leading

    def foreign_slot(self, session: Any, slot: int) -> str:
        return f"MOVED {slot} fleet:7001"

    def _peers(self) -> Peers:
        moves = getattr(self, "moves", None)
        return Peers(
            lambda: SECRET, lambda asked: None, self.terms, bytes,
            None if moves is None else moves.leaving,
        )  # fmt: skip

    def forget(self, client: FleetClient) -> None:
        super().forget(client)
        self.moves.forget(client)


class MovingFleet(TermsFleet):
    node_class = MovingNode
    sizes = ((2, 0),)
    node_entries = 4

    def __init__(self, seed: int) -> None:
        self.allowed_round = 0
        self.map = SlotRanges(1, ((0, LAST_SLOT, "s1"),))
        super().__init__(seed)
        self.fsync = "always"
        self.writes = 0
        self.errors: Counter[str] = Counter()
        self.cuts = self.kills = False
        self.terms = {0: 1, 1: 1}
        self.changes = {tag: Changes(seed + at) for at, tag in enumerate(TAGS)}
        self._asked: dict[tuple[bytes, ...], tuple[str, Words]] = {}
        for node in self.moving:
            node.config.appendfsync = "always"
            node.start()
            self._lead(node)
        self.rest(100)
        self.client = self.source.accept()
        for tag, changes in self.changes.items():
            for words in changes.begin():
                self._ask(tag, words)
        self.rest(100)
        for _ in range(self.chance.choice([20, 300])):
            self.write()
        self.rest(100)

    @property
    def moving(self) -> list[MovingNode]:
        return self.nodes  # type: ignore[return-value]

    @property
    def source(self) -> MovingNode:
        return self.moving[0]

    @property
    def target(self) -> MovingNode:
        return self.moving[1]

    @property
    def arriving(self) -> Arrivals:
        return self.target.moves.arriving

    @property
    def leaving(self) -> Departures:
        return self.source.moves.leaving

    # Clients

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: object) -> None:
        self.writes += 1
        if isinstance(reply, Error):
            self.errors[reply.text.partition(" ")[0]] += 1
        if words in self._asked:
            tag, asked = self._asked[words]
            self.changes[tag].learn(asked, reply)

    def _ask(self, tag: str, asked: Words) -> None:
        words = tuple((f"{{{tag}}}{one}" if one in NAMES else str(one)).encode() for one in asked)
        self._asked[words] = tag, asked
        self.source.ask(self.client, *words)

    def write(self) -> None:
        """A change of any key. One of a slot that has left waits."""
        if len(self.client.asked) > 5 or self.client.closed:
            self.client = self.source.accept()
        tag = self.chance.choice(TAGS)
        [words] = self.changes[tag].draw(1)
        if words[0] in ("SWAPDB", "SELECT", "MOVE"):
            return
        if str(words[0]).startswith("FLUSH") and self.chance.random() < 0.9:
            return
        self._ask(tag, words)

    # The judge

    def _judge(self, node: FleetNode) -> None:
        """The model of a fleet does not have all effects: the data of both servers is compared."""

    def _lead(self, node: MovingNode) -> None:
        node.terms.lead(self.terms[node.index], [id_of_node(node.index)], 0)
        node.served.note(self.map, node.shard, node.shard)

    def begin(self) -> None:
        source = SourceNode(id_of_node(0), "fleet", self.source.port, self.terms[0])
        self.target.moves.begin(MOVE, RANGES, "s1", source)

    @property
    def arrival(self) -> SlotImport | None:
        """The move at its target; None: it was not begun in this run."""
        return self.arriving._by_move.get(MOVE)

    def phase(self) -> Phase | None:
        found = self.arrival
        assert found is None or not found.problem, found.problem
        return None if found is None else found._phase

    def restart(self, node: MovingNode, disk: FakeDisk) -> None:
        """A new run of a server, in its next term."""
        self._restart(node, disk)
        self.terms[node.index] += 1
        self._lead(self.moving[node.index])
        if node.index == 0:
            self.client = self.source.accept()

    def _kill(self) -> None:
        node = self.chance.choice(self.moving)
        if self.chance.random() < 0.5:
            self.restart(node, node.disk.copy())
        else:
            self.restart(node, node.disk.after_crash(self.chance.getrandbits(32)))
        if MOVE in self.source.moves.departures and node.index == 0:
            self.allowed_round = 0  # the hand-over is set back, because the term is another one
            self.source.moves.stay(MOVE)

    def until(self, is_reached: Callable[[], bool]) -> None:
        """Writes, work, time, cuts and crashes at random until this is so."""
        weights = [3, 30, 30, 3, 0.3 * self.cuts, 0.1 * self.kills, 0.1 * self.rewrites]
        events = [
            self.write, self._run_if_any, self._deliver_if_any, self._pass_time, self._cut,
            self._kill, self._rewrite,
        ]  # fmt: skip
        for _ in range(40_000):
            if is_reached():
                return
            self.chance.choices(events, weights)[0]()
            assert not self.broken, self.broken
        raise AssertionError(f"not reached: the move is {self.phase()}")

    def follow(self) -> None:
        self.until(self._is_following)

    def _is_following(self) -> bool:
        self.begin()
        return self.phase() is Phase.FOLLOWING

    def hand_over(self, asked_round: int) -> None:
        """Until the target has all in this round, or a later one."""
        self.allowed_round = asked_round
        self.until(self._has_all)

    def _has_all(self) -> bool:
        self.begin()
        if self.phase() is Phase.FOLLOWING:
            if self.allowed_round == 0:
                self.allowed_round = self.terms[0] * 100
            self.arriving.hand_over(MOVE, self.allowed_round)
        return self.allowed_round > 0 and self.arriving.has_all(MOVE, self.allowed_round)

    def judge(self) -> None:
        """The target has all that the source has of these slots."""
        there, here = (contents(node) for node in self.moving)
        assert here == there
        assert there
        assert not any(slot in MOVING for slot in range(CLUSTER_SLOTS) if self._serves(slot))

    def _serves(self, slot: int) -> bool:
        return any(
            node.served.owners[slot] == node.shard and not node.served.hides(slot)
            for node in self.moving
        )

    def move_in_map(self) -> None:
        gone = set(slots_of(RANGES))
        rows = [(slot, slot, "s2" if slot in gone else "s1") for slot in range(CLUSTER_SLOTS)]
        self.map = SlotRanges(2, tuple(rows))


def contents(node: MovingNode) -> dict[bytes, Any]:
    """All that a server has of the moving slots, without the times at which consumers were seen: a
    read that delivers nothing is recorded at most once a second."""
    state = state_of(node.keyspace, MOVING)
    for value in state.values():
        for group in value[0].get("groups", ()) if isinstance(value[0], dict) else ():
            group["consumers"] = [row and [row[0], *row[2:]] for row in group["consumers"]]
    return state
