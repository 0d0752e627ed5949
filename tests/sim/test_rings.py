"""Servers that follow each other in a ring: each of them reports it."""

from __future__ import annotations

import logging

import pytest
from tests.sim.fleet import Fleet
from tests.sim.fleet_node import FleetNode
from tests.support.fakedisk import FakeDisk

from millstream.server.monitor.info import fields_of


class Chain(Fleet):
    """Each server follows the one before it; server 0 is the primary."""

    def __init__(self, count: int) -> None:
        super().__init__(5, 0)
        config = type(self.nodes[0].config)
        self.nodes.clear()
        for index in range(count):
            primary = f"fleet {7000 + index - 1}" if index else ""
            own = config(replicaof=primary)
            self.nodes.append(FleetNode(self, index, FakeDisk(index), own, self._own()))
        for node in self.nodes:
            node.start()
        self.pass_seconds(count + 1)
        assert all(node.replication.link.is_connected for node in self.nodes[1:])  # type: ignore

    def pass_seconds(self, count: int) -> None:
        for _ in range(count):
            self.rest(1000)

    def follow(self, index: int, primary: int) -> None:
        node = self.nodes[index]
        node.ask(node.accept(), b"REPLICAOF", b"fleet", b"%d" % (7000 + primary))
        self.pass_seconds(2 * len(self.nodes))

    def last_errors(self) -> list[str]:
        infos = [fields_of(node.replication.info()) for node in self.nodes]
        return [str(info["repl_last_error"]) for info in infos]

    def are_connected(self) -> list[bool]:
        links = [node.replication.link for node in self.nodes]
        return [one is not None and one.is_connected for one in links]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_server_of_a_ring_reports_it(count: int, caplog: pytest.LogCaptureFixture) -> None:
    fleet = Chain(count)
    assert "in a ring" not in str(fleet.last_errors())
    caplog.set_level(logging.WARNING, "millstream.replication")
    fleet.follow(0, count - 1)
    # The links of a larger ring work, also without a primary.
    assert fleet.are_connected() == [count > 2] * count
    sentence = f"{count} servers follow each other in a ring"
    assert all(text.startswith(sentence) for text in fleet.last_errors())
    assert caplog.text.count(sentence) == count  # each reports it once
    caplog.clear()
    fleet.nodes[0].ask(fleet.nodes[0].accept(), b"REPLICAOF", b"NO", b"ONE")
    fleet.pass_seconds(2 * count)
    assert fleet.are_connected() == [False] + [True] * (count - 1)
    assert caplog.text.count("not follow each other in a ring any more") == count - 1


def test_servers_of_a_ring_report_it_without_a_link() -> None:
    """All of them were started in this way."""
    fleet = Chain(3)
    for node in fleet.nodes:
        node.config.replicaof = f"fleet {7000 + (node.index - 1) % 3}"
    for node in list(fleet.nodes):
        fleet._restart(node, node.disk.copy())
    fleet.pass_seconds(6)
    assert fleet.are_connected() == [False] * 3
    assert all(text.startswith("3 servers follow each other") for text in fleet.last_errors())


def test_a_server_below_a_ring_reports_it() -> None:
    fleet = Chain(4)
    fleet.follow(0, 2)
    *_, below = fleet.last_errors()
    assert below.startswith("the primary fleet:7002 of this server; or a server above it; is in a")
    fleet.nodes[3].ask(fleet.nodes[3].accept(), b"REPLICAOF", b"NO", b"ONE")
    fleet.pass_seconds(1)
    assert fleet.nodes[3].replication.link is None  # the request did not go round the ring


def test_a_failover_is_no_ring(caplog: pytest.LogCaptureFixture) -> None:
    fleet = Chain(3)
    caplog.set_level(logging.WARNING, "millstream.replication")
    fleet.nodes[0].ask(fleet.nodes[0].accept(), b"FAILOVER", b"TO", b"10.0.0.201", b"7001")
    fleet.pass_seconds(6)
    assert fleet.are_connected() == [True, False, True]
    assert "in a ring" not in caplog.text


def test_every_server_of_a_chain_passes_a_promotion_on() -> None:
    fleet = Chain(4)
    last = fleet.nodes[3]
    last.ask(last.accept(), b"REPLICAOF", b"NO", b"ONE")
    fleet.pass_seconds(4)
    assert fleet.nodes[0].config.replicaof == "10.0.0.203 7003"
    assert last.replication.promotion.was_complete
