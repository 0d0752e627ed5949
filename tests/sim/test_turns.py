"""The turns of the event loops that an entry takes from a primary to a reader on its replica."""

from __future__ import annotations

from tests.sim.fleet import Fleet
from tests.sim.fleet_node import FleetNode


class Pair(Fleet):
    """Server 1 follows server 0, both are idle, and appends wait for no disk."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, 0)
        self.nodes = self.nodes[:2]
        for index, node in enumerate(self.nodes):
            node.config.appendfsync = "everysec"
            self.nodes[index] = FleetNode(self, index, node.disk, node.config, self._own())
            self.nodes[index].start()
        self._primary = self.nodes[0]
        self._settle()
        self.rest()

    def second(self) -> None:
        """Let a second pass, so that a server without a link connects again."""
        self.rest(1000)


def test_an_entry_reaches_a_replicas_reader_without_another_turn() -> None:
    fleet = Pair(1)
    primary, replica = fleet.nodes
    (link,) = fleet.connections
    primary.ask(primary.accept(), b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    reader = replica.accept()
    replica.ask(reader, b"XREAD", b"BLOCK", b"0", b"STREAMS", b"a", b"$")
    fleet.rest()
    assert reader.asked  # it waits
    primary.ask(primary.accept(), b"XADD", b"a", b"*", b"n", b"2")
    primary.step()  # the end of the tick
    assert link.down.data
    link.down.deliver(len(link.down.data))
    assert not reader.asked
