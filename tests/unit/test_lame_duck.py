"""A lame duck disconnects its clients slowly, those first that lose least."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.server.config.directives import Config
from millstream.server.lame_duck import NAME, STEP_S, LameDuck
from millstream.server.monitor.clock_watch import ClockWatch
from millstream.server.monitor.info import Process

PERIOD_S = 100
REPLICA, BACKUP = SimpleNamespace(is_replica=True), SimpleNamespace(is_replica=False)


class Peer(SimpleNamespace):
    """A client that notes when it is closed."""

    def __init__(self, world: World, **facts: Any) -> None:
        plain = {"feed": None, "name": b"", "queue": None, "watches": {}, "blocked": False,
                 "output_bytes": 0, "last_active_ms": 0, "close_after_reply": False,
                 "has_long_reply": False}  # fmt: skip
        super().__init__(**{**plain, **facts})
        self.world = world

    def close(self, after_reply: bool) -> None:
        assert after_reply
        self.world.leave(self)


class World:
    """A lame duck with a loop that runs when a test says so; it is its clients and listeners."""

    def __init__(self, **directives: int) -> None:
        self.peers: list[Peer] = []
        self.gone: list[Peer] = []
        self.now_s = 1000.0
        self.due: list[Any] = []
        self.stops: list[str] = []
        self.is_listening = True
        self.loading = False
        self.ticks = 0
        parts: Any = self
        self.loop = self
        self.duck = LameDuck(
            Config(lame_duck_period=PERIOD_S, **directives), parts, parts, parts,
            Process("", None, 0, ClockWatch(lambda: 0)), parts, self.stops.append,
        )  # fmt: skip

    def add(self, count: int = 1, **facts: Any) -> list[Peer]:
        added = [Peer(self, **facts) for _ in range(count)]
        self.peers += added
        return added

    def leave(self, peer: Peer) -> None:
        self.peers.remove(peer)
        self.gone.append(peer)

    # What it asks of the other parts

    def lame_duck(self, seconds: int) -> None:
        assert seconds == PERIOD_S

    def values(self) -> list[Peer]:
        return self.peers

    def close(self) -> None:
        self.is_listening = False

    def refuse_new(self) -> None:
        assert not self.is_listening

    def steady_ms(self) -> int:
        return int(self.now_s * 1000)

    def unblock(self, peer: Peer, error: bool) -> bool:
        assert peer.close_after_reply
        assert not error
        self.leave(peer)
        return True

    def accept_new(self) -> None:
        assert not self.is_listening

    async def reopen(self) -> None:
        while True:  # the addresses are never free
            await asyncio.sleep(0)

    def create_task(self, task: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.task = asyncio.get_running_loop().create_task(task)
        return self.task

    def end_tick(self) -> None:
        self.ticks += 1

    def time(self) -> float:
        return self.now_s

    def call_later(self, seconds: float, callback: Any) -> None:
        self.due.append((seconds, callback))

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while self.due and self.now_s + self.due[0][0] <= end_s:
            pause_s, callback = self.due.pop(0)
            self.now_s += pause_s
            callback()


def test_clients_leave_evenly_over_the_period() -> None:
    world = World()
    world.add(1000)
    world.duck.begin()
    assert not world.is_listening
    for part in range(1, 4):
        world.run(PERIOD_S / 4)
        assert len(world.gone) == pytest.approx(250 * part, abs=1000 * STEP_S / PERIOD_S + 1)
        assert world.stops == []
    world.run(PERIOD_S / 4 + STEP_S)
    assert len(world.peers) <= 1000 * STEP_S / PERIOD_S + 1  # the stop closes them
    assert world.stops == [NAME]


def test_those_that_lose_least_leave_first() -> None:
    """Replicas and Sentinels stay to the end, and a client with replies leaves after them."""
    world = World()
    (in_transaction,) = world.add(queue=[])
    (active,) = world.add(last_active_ms=10**9)
    staying = world.add(feed=REPLICA) + world.add(name=b"sentinel-1-cmd")
    idle, blocked = world.add(1), world.add(1, blocked=True, last_active_ms=10**9)
    world.duck.begin()
    world.run(PERIOD_S * 2)
    assert world.gone[:3] == [*idle, *blocked, active]
    assert in_transaction not in world.gone[:3]
    assert world.peers[-2:] == staying
    assert world.stops == [NAME]


def test_a_client_with_unsent_replies_gets_them() -> None:
    world = World()
    (peer,) = world.add(output_bytes=5)
    world.duck.begin()
    world.run(PERIOD_S - STEP_S)
    assert not world.gone
    world.run(STEP_S)
    assert world.stops == [NAME]
    assert peer in world.peers  # the stop closes it


def test_a_client_in_a_long_reply_stays() -> None:
    world = World()
    (peer,) = world.add(has_long_reply=True)
    world.duck.begin()
    world.run(PERIOD_S - STEP_S)
    peer.has_long_reply = False
    assert not world.gone
    world.run(STEP_S)
    assert world.stops == [NAME]


def test_it_waits_for_a_backup() -> None:
    """A replica has a link that does not end."""
    world = World()
    (backup, _) = world.add(feed=BACKUP) + world.add(feed=REPLICA)
    world.duck.begin()
    world.run(PERIOD_S / 2)
    assert (world.stops, world.gone) == ([], [])
    world.leave(backup)
    world.run(STEP_S)
    assert world.stops == [NAME]


def test_a_backup_that_runs_too_long_is_not_waited_for() -> None:
    world = World()
    world.add(feed=BACKUP)
    world.duck.begin()
    world.run(PERIOD_S)
    assert world.stops == [NAME]


def test_it_stops_at_once_without_clients_and_while_loading() -> None:
    world = World()
    world.duck.begin()
    assert world.stops == [NAME]
    world = World()
    world.loading = True
    world.add(1)
    world.duck.begin()
    assert (world.stops, world.is_listening) == ([NAME], True)


def test_a_stop_ends_the_attempts_to_serve_again() -> None:
    async def run() -> None:
        world = World()
        world.duck.begin()
        world.duck.undo()
        await asyncio.sleep(0)
        world.duck.close()
        await asyncio.wait([world.task], timeout=10)
        assert world.task.cancelled()

    asyncio.run(run())
