"""A replica that takes long to load a complete base, or cannot load it at first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.sim.fleet_node import FleetNode
from tests.sim.test_turns import Pair

from millstream.server.replication.reload import Reload
from millstream.server.replication.role import Role


def begin_full_sync(fleet: Pair) -> FleetNode:
    """The replica, which asks for everything."""
    primary, replica = fleet.nodes
    primary.ask(primary.accept(), b"XADD", b"a", b"*", b"n", b"1")
    fleet.rest()
    replica.replication.receiver.doubt()
    for link in fleet.connections:
        link.cut()
    return replica


def test_a_link_survives_a_load_longer_than_repl_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Pair(1)
    load, is_slow = Reload._load, True

    def slow_load(self: Reload) -> None:
        if is_slow:
            self._loop.call_later(0.5, self._load)
        else:
            load(self)

    monkeypatch.setattr(Reload, "_load", slow_load)
    replica = begin_full_sync(fleet)
    for _ in range(3 * replica.config.repl_timeout):
        fleet.second()
    assert replica.executor.loading
    (link,) = (one for one in fleet.connections if not one.is_cut)
    is_slow = False
    fleet.second()
    assert not link.is_cut
    assert fleet._is_equal()


def load_fails_once(
    monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[Role], None] = lambda role: None
) -> None:
    """The first load of a replica fails, after `meanwhile`; another full sync follows."""
    fleet = Pair(1)
    read, reads = Reload._read_slices, 0

    def fail_once(self: Reload) -> bool:
        nonlocal reads
        reads += 1
        if reads > 1:
            return read(self)
        meanwhile(replica.replication)
        raise MemoryError

    monkeypatch.setattr(Reload, "_read_slices", fail_once)
    replica = begin_full_sync(fleet)
    for _ in range(5):
        fleet.second()
    assert reads > 1
    assert not replica.executor.loading
    assert fleet._is_equal()


def test_a_load_that_fails_is_followed_by_another_full_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load_fails_once(monkeypatch)


def test_a_load_that_fails_after_a_new_order_is_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """REPLICAOF arrives while the complete base is loaded."""

    def go_elsewhere_and_back(role: Role) -> None:
        role.follow("fleet", 7001)  # itself: no link
        role.follow("fleet", 7000)

    load_fails_once(monkeypatch, go_elsewhere_and_back)
