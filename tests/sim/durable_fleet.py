"""Plays seeds of a fleet with `replicas-durable 1`, and failovers as Sentinel does them.

A reply to a write may only be sent when another server has its frame on the disk: this is looked up
on the fake disks at that moment. A failover follows the loss of the primary: the replica with the
greatest offset among those with a priority is promoted. In every other seed the roles of living
servers change, too: by FAILOVER without FORCE, and as SENTINEL FAILOVER does it, which promotes a
replica while its primary works. No entry that a client has a reply for may be missing after any of
these.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

from tests.sim.fleet import STEPS, Fleet, Frame, _line_at, has_frame
from tests.sim.fleet_node import FleetClient, FleetNode
from tests.sim.promises import demand
from tests.sim.seeds import Play, play_seeds
from tests.sim.world import DurableFrames
from tests.support.resp import Error, Reply

PROMOTED_AFTER = 400  # steps without a primary, at most
APPENDS = (b"TAPPEND", b"XADD")


class DurableFleet(Fleet):
    module = "tests.sim.durable_fleet"
    replicas_durable = 1

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        super().__init__(seed, steps)
        self.fsync = "always"
        self.confirmed: dict[Frame, str] = {}
        self._promoted: int | None = None  # a replica that is to become the primary
        self._promoting: FleetNode | None = None  # the same, until it is the primary
        self._to_order: list[int] = []  # servers without the order to follow the new primary
        while len(self.nodes) < 3:
            node = self.nodes[-1]
            again = FleetNode(
                self, len(self.nodes), type(node.disk)(seed + 77), node.config, self._own()
            )
            self.nodes.append(again)
        for index, node in enumerate(self.nodes):
            node.config = type(node.config)(
                appendfsync="always",
                replicaof="" if index == 0 else "fleet 7000",
                repl_backlog_size=self.ring_bytes,
                replicas_durable=self.replicas_durable,
            )
            self.nodes[index] = FleetNode(self, index, node.disk, node.config, self._own())

    def _choices(self) -> list[tuple[float, Callable[[], None]]]:
        left_out = [self._change_role, self._freeze_or_thaw, self._crash]
        if self.seed % 2:
            left_out.append(self._fail_over_by_command)
        more = [(0.5, self._crash_a_replica)]
        if self._promoted is not None:  # one change of the roles at a time
            left_out.append(self._fail_over_by_command)
        else:
            more.append((0.3, self._fail_over))
            if self.seed % 2 == 0:
                more.append((0.3, self._promote_beside))
        kept = [(weight, event) for weight, event in super()._choices() if event not in left_out]
        return [*kept, *more]

    def _step(self) -> None:
        super()._step()
        promoting = self._promoting
        if promoting is None:
            self._tell_one()
        elif self.nodes[promoting.index] is not promoting:
            self._promoting = self._promoted = None  # it has crashed, and is a replica again
        elif promoting.replication.link is None:
            self._promoting = None
            self._judge_promotion(promoting)

    def _promote_beside(self) -> None:
        """Sentinel promotes a replica with a link to a primary that works."""
        primaries = self._primaries()
        if len(primaries) != 1 or primaries[0].replication.failover.state != "no-failover":
            return
        linked = [
            node
            for node in self.nodes
            if node.replication.link is not None
            and node.replication.link.is_connected
            and node.replication.link.port == primaries[0].port
            and node.shown_priority > 0
        ]
        if linked:
            node = self._promoting = self.chance.choice(linked)
            self._promoted = node.index
            self.note("promotion with a primary", f"{primaries[0].index} -> {node.index}")
            self._guarded(node, lambda: node.ask(node.accept(), b"REPLICAOF", b"NO", b"ONE"))

    def _judge_promotion(self, chosen: FleetNode) -> None:
        """The data of the new primary is complete, if its primary reported it. The others are
        ordered to follow it later, one after the other."""
        self._to_order = [node.index for node in self.nodes if node is not chosen]
        self.chance.shuffle(self._to_order)
        if chosen.replication.promotion.was_complete:
            self.note("complete promotion", str(chosen.index))
            self._judge_confirmed(chosen)
        else:
            self.note("incomplete promotion", str(chosen.index))
            self.confirmed = {
                frame: value for frame, value in self.confirmed.items() if has_frame(chosen, frame)
            }
            while self._to_order:
                self._tell_next()

    def _tell_one(self) -> None:
        """In some steps after a promotion, a server gets its new primary, or the new primary has
        a power cut."""
        if self._promoted is None:
            return
        chosen = self.nodes[self._promoted]
        if self.chance.random() < 0.03:
            self._tell_next()
        elif self.chance.random() < 0.01:
            self.note("power cut of the promoted server", str(chosen.index))
            self._restart(chosen, chosen.disk.after_crash(self.chance.getrandbits(32)))

    def _tell_next(self) -> None:
        assert self._promoted is not None
        node, port = self.nodes[self._to_order.pop()], 7000 + self._promoted
        self._guarded(node, lambda: node.ask(node.accept(), b"REPLICAOF", b"fleet", b"%d" % port))
        if not self._to_order:
            self._promoted = None

    def _primaries(self) -> list[FleetNode]:
        """One, or none in the middle of a FAILOVER."""
        return [node for node in self.nodes if node.replication.link is None]

    def _fail_over_by_command(self) -> None:
        for node in self._primaries():
            words = [b"TIMEOUT", b"%d" % self.chance.choice([50, 500])]
            feeds = list(node.replication.feeds)
            if feeds and self.chance.random() < 0.5:
                target = self.chance.choice(feeds)
                words += [b"TO", target.host.encode(), b"%d" % target.port]
            before = node.replication.failover.state
            self._guarded(node, functools.partial(node.ask, node.accept(), b"FAILOVER", *words))
            if node.replication.failover.state != before:
                self.note("failover by command", f"{node.index} {words}")

    def _crash_a_replica(self) -> None:
        node = self.chance.choice([n for n in self.nodes if n.replication.link is not None])
        self.note("power cut", str(node.index))
        self._restart(node, node.disk.after_crash(self.chance.getrandbits(32)))

    def _fail_over(self) -> None:
        """The primary is lost. The replica that Sentinel would choose is promoted, the others
        follow it, and the lost server comes back as a replica."""
        primaries = self._primaries()
        if len(primaries) != 1 or primaries[0].replication.failover.state != "no-failover":
            return
        old = primaries[0]
        there = [node for node in self.nodes if node is not old and node.shown_priority > 0]
        if len(there) < len(self.nodes) - 1:
            return  # another server is not available either: that is one loss too many
        chosen = max(there, key=lambda node: node.persistence.commits.frame_bytes)
        self.note("failover", f"{old.index} -> {chosen.index}")
        self._promote_without(old, chosen)
        self._judge_confirmed(chosen)
        for node in self.nodes:
            if node not in (old, chosen):
                node.ask(node.accept(), b"REPLICAOF", b"fleet", b"%d" % chosen.port)
        old.config.replicaof = f"fleet {chosen.port}"
        self._restart(old, old.disk.after_crash(self.chance.getrandbits(32)))

    def _promote_without(self, old: FleetNode, chosen: FleetNode) -> None:
        """The old primary cannot be reached. Sentinel waits until the role has changed."""
        for one in self.connections:
            if old in (one.replica, one.primary):
                one.cut()
                if one.replica is chosen:
                    one.notify("replica")
        pair = frozenset((old.index, chosen.index))
        added = {pair} - self.partitions
        self.partitions |= added
        chosen.ask(chosen.accept(), b"REPLICAOF", b"NO", b"ONE")
        while chosen.replication.link is not None:
            if chosen.has_work():
                chosen.step()
            else:
                self._advance(100)
        self.partitions -= added

    def _judge_confirmed(self, node: FleetNode) -> None:
        for frame, value in self.confirmed.items():
            text = f"node {node.index} has not {value}, frame {frame[1]}, which was confirmed"
            demand(has_frame(node, frame), text)

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: Reply) -> None:
        if words[0] not in APPENDS or isinstance(reply, Error):
            return
        seq = client.wrote_seq
        name = str(_line_at(client.node.keyspace.histories, seq))
        self.note("confirmed")
        have = [
            node
            for node in self.nodes
            if node is not client.node and _has_stored(node, (name, seq))
        ]
        if not have:
            self.broken.append(f"frame {seq} was confirmed and is on no other disk")
        self.confirmed[name, seq] = f"{words[0].decode()} {reply!r}"

    def _heal(self) -> None:
        super()._heal()
        self._judge_confirmed(self._primary)

    def _choose_last_primary(self) -> FleetNode:
        """The primary; after a FAILOVER whose primary was lost, what Sentinel would choose, or the
        server with the most data if none has a priority. An ABORT while the answer to a FAILOVER
        is on its way leaves two primaries. The old one has no replicas and has confirmed nothing
        since."""
        there = [node for node in self.nodes if node.shown_priority > 0]
        if self._to_order and self._promoted is not None:
            return self.nodes[self._promoted]
        candidates = self._primaries() or there or self.nodes
        return max(candidates, key=lambda node: node.persistence.commits.frame_bytes)


def _has_stored(node: FleetNode, frame: Frame) -> bool:
    """True if a server has this frame on its disk."""
    return has_frame(node, frame) and DurableFrames(node.disk).look() >= frame[1]


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return DurableFleet(seed, steps).run()


if __name__ == "__main__":
    played = play_seeds(
        "tests.sim.durable_fleet", lambda seed, steps: Play(play(seed, steps)), STEPS
    )
    sys.exit(played)
