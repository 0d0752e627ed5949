"""A rewind that is interrupted at every step: a crash, a full disk, another role."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.fleet import Fleet
from tests.sim.fleet_node import FleetNode

from millstream.server.replication.discarded import PREFIX
from millstream.server.replication.rewinding import Rewinding
from millstream.storage.files.manifest import NAME


class OldPrimary(Fleet):
    """Server 0 was the primary and has frames that no other server has; server 1 is the primary
    now, with its own frames. `fsync` as in the directive."""

    def __init__(self, seed: int, fsync: str, *, rewrites: bool = False) -> None:
        super().__init__(seed, 0)
        self.nodes = self.nodes[:2]
        for index, node in enumerate(self.nodes):
            node.config.appendfsync = fsync
            self.nodes[index] = FleetNode(self, index, node.disk, node.config, self._own())
            self.nodes[index].start()
        self.fsync = fsync
        self._primary = self.nodes[0]
        self._settle()
        self._append(0, 3)
        if rewrites:
            self.nodes[0].persistence.snapshots.rewrite()
        self._settle()
        self.partitions.add(frozenset((0, 1)))
        self._append(0, 4)
        if rewrites:  # the frames to cut begin in one journal and end in the next
            self._fail_a_rewrite(self.nodes[0])
            self._append(0, 2)
        self._run()
        self.nodes[1].ask(self.nodes[1].accept(), b"REPLICAOF", b"NO", b"ONE")
        for _ in range(7):  # it does not wait longer for a silent primary
            self._advance(500)
            self._run()
        assert self.nodes[1].replication.link is None
        self._append(1, 5)
        self._run()
        self._primary = self.nodes[1]
        self.lost = self.nodes[0].persistence.commits.last_seq - 3
        self.partitions.clear()

    def _append(self, index: int, count: int) -> None:
        node = self.nodes[index]
        client = node.accept()
        for number in range(count):
            node.ask(client, b"XADD", b"a", b"*", b"n", b"%d of %d" % (number, index))
            self._run()

    def _fail_a_rewrite(self, node: FleetNode) -> None:
        node.disk.fail("create", name="base")
        node.persistence.snapshots.rewrite()
        self._run()
        node.disk.mend()
        self._run()

    def _run(self) -> None:
        while any(node.has_work() for node in self.nodes):
            for node in self.nodes:
                while node.has_work():
                    node.step()

    def go_back(self) -> None:
        """Server 0 follows server 1, until they are equal."""
        self._guarded(self.nodes[0], self._order_roles)
        self._settle()
        self._judge_all()

    def follow(self, primary: int) -> None:
        """All follow this server, and become equal."""
        self._primary = self.nodes[primary]
        self._order_roles()
        self._settle()
        self._judge_all()

    def guarded_ask(self, node: FleetNode, *words: bytes) -> None:
        self._guarded(node, lambda: node.ask(node.accept(), *words))

    def run_guarded(self) -> None:
        while any(node.has_work() for node in self.nodes) or self._deliverable():
            for node in list(self.nodes):
                if node.has_work():
                    self._guarded(node, node.step)
            if self._deliverable():
                self._deliver()

    @property
    def folders(self) -> set[str]:
        names = self.nodes[0].disk.names()
        return {name.partition("/")[0] for name in names if name.startswith(PREFIX)}


@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_discarded_frames_are_kept_as_a_data_directory(fsync: str, rewrites: bool) -> None:
    fleet = OldPrimary(1, fsync, rewrites=rewrites)
    had = fleet.nodes[0].persistence.commits.last_seq
    fleet.go_back()
    (folder,) = fleet.folders
    assert fleet.nodes[0].replication.totals.rewinds == 1
    assert fleet.nodes[1].replication.resync.full_syncs == 0
    kept = type(fleet.nodes[0].disk)(1)
    for name in fleet.nodes[0].disk.names():
        if name.startswith(folder):
            kept.put(name.partition("/")[2], fleet.nodes[0].disk.content(name))
    assert NAME in kept.names()
    old = FleetNode(fleet, 0, kept, fleet.nodes[0].config, fleet._own())
    old.persistence.load()
    assert old.persistence.commits.last_seq == had


@pytest.mark.parametrize("rewrites", [False, True])
@pytest.mark.parametrize("tear", [False, True])
def test_a_crash_at_any_step_of_a_rewind(tear: bool, rewrites: bool) -> None:
    steps = 0
    while True:
        steps += 1
        fleet = OldPrimary(steps, "always", rewrites=rewrites)
        disk = fleet.nodes[0].disk
        disk.crash_at = disk.steps + steps
        fleet.go_back()
        if fleet.nodes[0].disk is disk:
            break  # it was not reached
        assert fleet.nodes[1].replication.resync.full_syncs == 0
    assert steps > 10


FAILURES = ["keep", "truncate", "create", "rename", "sync", "sync_directory", "remove", "write"]


@pytest.mark.parametrize("operation", FAILURES)
def test_a_rewind_that_fails_is_followed_by_a_full_sync(operation: str) -> None:
    fleet = OldPrimary(1, "always", rewrites=True)
    node = fleet.nodes[0]
    node.disk.fail(operation, times=1)
    fleet.go_back()
    assert [failure.times for failure in node.disk.failures] == [0]
    assert (fleet.nodes[1].replication.resync.full_syncs, node.replication.totals.rewinds) == (1, 0)


def test_a_crash_right_after_a_promotion_hides_no_later_write() -> None:
    """The server was accepted by server 1 before. Its own frames are on the disk, and the manifest
    does not show yet that it became a primary: Sentinel may not choose it."""
    fleet = OldPrimary(1, "always")
    fleet.go_back()
    node = fleet.nodes[0]
    assert node.shown_priority == 100
    for one in list(fleet.connections):  # with a link, the promotion would wait for its last frames
        one.cut()
        one.notify("replica")
    node.ask(node.accept(), b"REPLICAOF", b"NO", b"ONE")
    node.ask(node.accept(), b"XADD", b"a", b"*", b"n", b"lost")
    journal = next(worker for worker in node.workers if worker.name == "millstream-journal")
    while node.loop.has_work() or journal.tasks:
        journal.run_one()
        timer = node.loop.take()
        if timer is not None:
            timer.callback(*timer.args)
    node.config.replicaof = "fleet 7001"
    fleet._restart(node, node.disk.copy())
    again = fleet.nodes[0]
    assert again.persistence.commits.last_seq > fleet.nodes[1].persistence.commits.last_seq
    assert again.shown_priority == 0
    fleet.follow(1)
    assert fleet.nodes[0].shown_priority == 100


def promoted(node: FleetNode) -> None:
    node.ask(node.accept(), b"REPLICAOF", b"NO", b"ONE")


def told_again(node: FleetNode) -> None:
    node.ask(node.accept(), b"REPLICAOF", b"fleet", b"7001")


def elsewhere(node: FleetNode) -> None:
    node.ask(node.accept(), b"REPLICAOF", b"elsewhere", b"7000")


@pytest.mark.parametrize("order", [promoted, told_again, elsewhere])
def test_another_order_at_any_step_of_a_rewind(order: Callable[[FleetNode], None]) -> None:
    after = 0
    while True:
        after += 1
        fleet = OldPrimary(after, "always", rewrites=True)
        node = fleet.nodes[0]
        fleet._order_roles()
        while node.replication.receiver.change is None:
            fleet._deliver() if fleet._deliverable() else fleet._run()
        for _ in range(after):
            if node.has_work():
                node.step()
        ended = node.replication.receiver.change is None
        order(node)
        fleet.go_back()
        assert len(fleet.folders) <= 1
        if ended:
            break
    assert after > 5


def test_a_rewind_cancelled_after_a_failed_copy_removes_nothing() -> None:
    fleet = OldPrimary(1, "always", rewrites=True)
    node = fleet.nodes[0]
    fleet._order_roles()
    while node.replication.receiver.change is None:
        fleet._deliver() if fleet._deliverable() else fleet._run()
    node.disk.fail("keep", times=1)
    while node.disk.failures[0].times:
        node.step()
    had = node.disk.names()
    promoted(node)
    fleet._run()
    assert set(had) <= set(node.disk.names())
    assert not fleet.folders


def test_a_rewrite_that_ends_at_any_step_of_a_rewind() -> None:
    """The new base may have frames to cut. Then nothing is cut, and the rewind fails."""
    errors: list[Exception | None] = []
    for step in range(40):
        fleet = OldPrimary(step, "always")
        node = fleet.nodes[0]
        node.persistence.snapshots.rewrite()
        for _ in range(step):
            node.step()
        had = node.persistence.commits.last_seq
        Rewinding(node.replication.receiver.tools, had - fleet.lost, errors.append)
        for _ in range(3):
            fleet._run()
            fleet._advance(10)
        assert len(errors) == step + 1
        assert node.persistence.commits.last_seq == (had if errors[-1] else had - fleet.lost)
    texts = {str(error) for error in errors if error is not None}
    assert None in errors
    assert texts == {f"the base here has the frames up to {had}"}
