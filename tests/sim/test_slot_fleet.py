"""Slots that move, on servers that restart, follow, and rewind: all know the same states."""

from __future__ import annotations

import pytest
from tests.sim.fleet import Fleet
from tests.sim.fleet_node import FleetNode
from tests.sim.test_rewind import OldPrimary

from millstream.commands.runtime.effects import Effects
from millstream.commands.runtime.slot_effects import (
    import_payload,
    note_dropped,
    note_import,
    note_left,
    note_owned,
    note_stay,
)
from millstream.storage.dump.base_export import export_base
from millstream.storage.dump.file_writing import TARGETS, RdbWriter
from millstream.storage.files.disk import File
from millstream.storage.files.snapshot_format import SLOTS_VERSION
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_ranges import Ranges
from millstream.storage.keyspace.slot_states import Import

ARRIVING, LEAVING = cluster_slot_of(b"x"), cluster_slot_of(b"a")  # `a` is a key of the fleet


def ranges(slot: int) -> Ranges:
    return ((slot, slot),)


def piece(*words: bytes) -> bytes:
    effects = Effects()
    effects.record(0, *words)
    payload = effects.take_payload()
    assert payload is not None
    return payload


class TwoServers(Fleet):
    """Server 1 follows server 0."""

    def __init__(self) -> None:
        super().__init__(1, 0)
        self.nodes = self.nodes[:2]
        for node in self.nodes:
            node.start()
        self._primary = self.nodes[0]
        self.settle()

    @property
    def primary(self) -> FleetNode:
        return self.nodes[0]

    @property
    def parts(self) -> tuple[Keyspace, Effects]:
        return self.primary.keyspace, self.primary.executor.effects

    def settle(self) -> None:
        self._settle()
        self._judge_all()

    def write(self, value: bytes) -> None:
        """A write of a client, which also ends the tick of what was recorded before it."""
        self.primary.ask(self.primary.accept(), b"XADD", b"b", b"*", b"n", value)
        self.settle()

    def begin(self) -> None:
        """One slot arrives, and another one has left."""
        keyspace, effects = self.parts
        made = Import("1f", ranges(ARRIVING), "s1", "ab" * 20, 7, -1)
        note_import(keyspace, effects, made)
        import_payload(keyspace, effects, piece(b"SET", b"x", b"arrived"))
        note_import(keyspace, effects, made._replace(number=9, copied=ARRIVING))
        note_left(keyspace, effects, "2e", ranges(LEAVING), "s2")
        self.write(b"begun")

    def base(self, node: FleetNode) -> File:
        """The newest base."""
        (name,) = [name for name in node.disk.names() if name.startswith("base-")]
        return node.disk.read(name)

    def version(self, node: FleetNode) -> int:
        return SnapshotReader(self.base(node)).summary.header.version

    def exported(self) -> bytes:
        """The base of the primary as a file for Redis."""
        pieces: list[bytes] = []
        writer = RdbWriter(pieces.append, TARGETS["7.2"], b"")
        export_base(self.base(self.primary), writer, 0)
        writer.finish()
        return b"".join(pieces)

    def rewrite(self) -> None:
        for node in self.nodes:
            node.persistence.snapshots.rewrite()
        self.settle()

    def restart(self) -> None:
        for node in list(self.nodes):
            self._restart(node, node.disk.copy())
        self._primary = self.nodes[0]
        self.settle()


def test_a_replica_and_a_restarted_server_have_the_states() -> None:
    fleet = TwoServers()
    fleet.begin()
    states = fleet.primary.keyspace.slot_states
    imports, left = dict(states.imports), dict(states.left)
    assert imports["1f"].number == 9
    for step in ("followed", "restarted", "from a base"):
        for node in fleet.nodes:
            assert node.keyspace.slot_states.imports == imports, step
            assert node.keyspace.slot_states.left == left
            assert node.keyspace.hidden_slots == {ARRIVING, LEAVING}
            assert node.keyspace.databases[0].table[b"x"] == b"arrived"
        if step == "restarted":
            fleet.rewrite()
            assert {fleet.version(node) for node in fleet.nodes} == {SLOTS_VERSION}
            assert b"arrived" not in fleet.exported()
            assert b"begun" in fleet.exported()
        fleet.restart()
    note_owned(*fleet.parts, "1f", 2)
    note_stay(*fleet.parts, "2e")
    fleet.write(b"ended")
    fleet.rewrite()
    for node in fleet.nodes:
        assert not node.keyspace.slot_states
        assert not node.keyspace.hidden_slots
        assert node.keyspace.databases[0].table[b"x"] == b"arrived"
        assert fleet.version(node) == SLOTS_VERSION
    fleet.restart()
    for node in fleet.nodes:
        assert list(node.keyspace.slot_states.owned) == ["1f"]
        assert node.keyspace.slot_states.epoch == 2


def test_a_replica_frees_what_its_primary_has_dropped() -> None:
    fleet = TwoServers()
    fleet.begin()
    note_dropped(*fleet.parts, "1f", 2)
    fleet.write(b"dropped")
    for node in fleet.nodes:
        assert node.keyspace.hidden_slots == {LEAVING}
        assert b"x" not in node.keyspace.databases[0].table


@pytest.mark.parametrize("rewrites", [False, True])
def test_a_rewind_undoes_states(rewrites: bool) -> None:
    fleet = OldPrimary(3, "always", rewrites=rewrites)
    old = fleet.nodes[0]
    note_left(old.keyspace, old.executor.effects, "2e", ranges(LEAVING), "s2")
    old.ask(old.accept(), b"XADD", b"b", b"*", b"n", b"lost")
    fleet.run_guarded()
    assert old.keyspace.hidden_slots == {LEAVING}
    changes: list[frozenset[int]] = []
    old.keyspace.on_slots_hidden = lambda: changes.append(old.keyspace.hidden_slots)
    fleet.go_back()
    assert fleet.nodes[0] is old
    assert old.replication.totals.rewinds == 1
    assert not old.keyspace.slot_states
    assert not old.keyspace.hidden_slots
    assert changes == [frozenset()]
