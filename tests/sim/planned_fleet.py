"""Plays seeds of a fleet with the default `replicas-durable 0`, whose roles change as planned.

A replica is promoted while its primary works, as SENTINEL FAILOVER and operators do it, or the
primary gets FAILOVER, or an order to follow its replica. The network fails and replicas lose their
power; the primary does not. In half of the promotions no server gets an order afterwards: the old
primary finds out. No entry that a client has a reply for may be missing afterwards, except those of
an old primary that did not hear of the promotion for 15 seconds and continues.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.sim.durable_fleet import APPENDS, DurableFleet
from tests.sim.fleet import STEPS, _line_at
from tests.sim.fleet_node import FleetClient, FleetNode
from tests.sim.seeds import Play, play_seeds
from tests.support.fakedisk import FakeDisk
from tests.support.resp import Error, Reply

from millstream.server.replication.promotion import PROMOTING_MS


class PlannedFleet(DurableFleet):
    module = "tests.sim.planned_fleet"
    replicas_durable = 0

    def __init__(self, seed: int, steps: int = STEPS) -> None:
        super().__init__(seed, steps)
        self._newest: FleetNode | None = None  # the server that was promoted last
        self._asked_ms = 0  # when its promotion began

    def _choices(self) -> list[tuple[float, Callable[[], None]]]:
        left_out = [self._fail_over, self._promote_beside, self._fail_over_by_command]
        kept = [(weight, event) for weight, event in super()._choices() if event not in left_out]
        is_failing_over = any(node.replication.failover.is_under_way for node in self.nodes)
        if self._promoted is not None or is_failing_over:  # one change of the roles at a time
            return kept
        changes = [self._promote_beside, self._fail_over_by_command, self._follow_the_replica]
        return [*kept, *((0.3, event) for event in changes)]

    def _follow_the_replica(self) -> None:
        """The primary gets the order to follow one of its replicas."""
        primaries = self._primaries()
        if len(primaries) != 1:
            return
        node = primaries[0]
        online = [feed for feed in node.replication.feeds if feed.is_online]
        if online:  # a server that is not online would be followed without the data
            feed = self.chance.choice(online)
            self.note("ordered to follow its replica", f"{node.index} -> {feed.address}")
            words = (b"REPLICAOF", feed.host.encode(), b"%d" % feed.port)
            self._guarded(node, lambda: node.ask(node.accept(), *words))

    def _promote_beside(self) -> None:
        super()._promote_beside()
        if self._promoting is not None:
            self._asked_ms = self.time_ms

    def _judge_promotion(self, chosen: FleetNode) -> None:
        super()._judge_promotion(chosen)
        self._newest = chosen
        if self._promoted is not None and self.chance.random() < 0.5:
            self.note("promotion without orders", str(chosen.index))
            self._promoted = None
            self._to_order = []

    def _restart(self, node: FleetNode, disk: FakeDisk) -> None:
        """Only an order changes the configuration file, not the contents of the data directory."""
        replicaof = node.config.replicaof
        super()._restart(node, disk)
        self.nodes[node.index].config.replicaof = replicaof

    def answered(self, client: FleetClient, words: tuple[bytes, ...], reply: Reply) -> None:
        if words[0] not in APPENDS or isinstance(reply, Error):
            return
        is_newest = self._newest is None or self._newest.index == client.node.index
        if not is_newest and self.time_ms - self._asked_ms >= PROMOTING_MS:
            self.note("confirmed by a second primary")
            return
        self.note("confirmed")
        name = str(_line_at(client.node.keyspace.histories, client.wrote_seq))
        self.confirmed[name, client.wrote_seq] = f"{words[0].decode()} {reply!r}"

    def _choose_last_primary(self) -> FleetNode:
        primaries = self._primaries()
        newest = None if self._newest is None else self.nodes[self._newest.index]
        if newest not in primaries:
            return super()._choose_last_primary()
        return max(
            primaries, key=lambda node: (node.persistence.commits.frame_bytes, node is newest)
        )

    def _crash_a_replica(self) -> None:
        """A primary that hands over by FAILOVER is none."""
        if not any(node.replication.failover.is_under_way for node in self.nodes):
            super()._crash_a_replica()


def play(seed: int, steps: int = STEPS) -> dict[str, int]:
    return PlannedFleet(seed, steps).run()


if __name__ == "__main__":
    played = play_seeds(
        "tests.sim.planned_fleet", lambda seed, steps: Play(play(seed, steps)), STEPS
    )
    sys.exit(played)
