"""The memory of a simulated server: used memory, and a check of the evictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.model.clients import Key
from tests.sim.model.events import Room, Trimmed
from tests.sim.promises import demand

from millstream.server.execution.eviction import KEYS_AT_ONCE, Eviction
from millstream.server.monitor.memory import Gauge
from millstream.storage.blocks.lazyfree import TO_FREE, free_step
from millstream.storage.blocks.open_block import open_bytes
from millstream.storage.blocks.skiplist import sealed_bytes
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.log.log_ranges import blocks_between
from millstream.storage.streams.stream import Stream

if TYPE_CHECKING:
    from tests.sim.world import World

REST_BYTES = 100_000
ID_MAX = 2**64 - 1
BLOCK_HEADER_BYTES = 64


def free_all() -> None:
    """Free everything that waits to be freed, without a pause."""
    while free_step(KEYS_AT_ONCE):
        pass


class Memory:
    """The memory of one server: the bytes of its blocks, and a constant rest."""

    def __init__(self) -> None:
        self._sealed_before, self._open_before = sealed_bytes(), open_bytes()

    def sealed(self) -> int:
        return sealed_bytes() - self._sealed_before

    def blocks(self) -> int:
        return self.sealed() + open_bytes() - self._open_before

    def held(self) -> int:
        return self.blocks() + REST_BYTES

    def held_at(self, part: float) -> float:
        """The memory held with `part` times the blocks."""
        return REST_BYTES + part * self.blocks()


def judge_bytes(keyspace: Keyspace, memory: Memory) -> None:
    """After all freeing: check that the counted sealed blocks are those of the streams. The last
    block of a stream may be an open one."""
    least = most = 0
    for stream in streams_in(keyspace).values():
        sizes = [
            block.size_bytes - BLOCK_HEADER_BYTES
            for block in blocks_between(stream, 0, 0, ID_MAX, ID_MAX)
        ]
        least += sum(sizes[:-1])
        most += sum(sizes)
    text = f"{memory.sealed()} bytes of blocks are counted, there are {least} to {most}"
    demand(least <= memory.sealed() <= most, text)


def streams_in(keyspace: Keyspace) -> dict[Key, Stream]:
    """All streams, including expired ones. Nothing is deleted."""
    was, keyspace.expiring = keyspace.expiring, False
    try:
        return {
            (db.index, key): value
            for db in keyspace.databases
            for key in db.keys()  # noqa: SIM118
            if isinstance(value := db.get(key), Stream)
        }
    finally:
        keyspace.expiring = was


class WatchedEviction(Eviction):
    """Reports evictions, and checks each of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        super().__init__(
            world.executor.context,
            Gauge(world.memory.held, world.memory.blocks),
            lambda: world.executor.bytes_in,
            lambda: world.loop.time_ms / 1000,
        )

    def evict_to_limit(self) -> bool:
        events = self._world.events
        start, excess, has_freed = len(events), self._excess_bytes(), bool(TO_FREE)
        full = super().evict_to_limit()
        dropped = []
        while len(events) > start:
            trimmed = events.pop()
            assert isinstance(trimmed, Trimmed)
            dropped.insert(0, trimmed)
        events.append(Room(full, dropped))
        self._judge(excess, has_freed, full, dropped)
        return full

    def _excess_bytes(self) -> int:
        return self._world.memory.held() - self.limit_bytes if self.limit_bytes else 0

    def _judge(self, excess: int, has_freed: bool, full: bool, dropped: list[Trimmed]) -> None:
        may_drop = self.evicts and self._world.keyspace.may_delete
        left = self._excess_bytes()
        if excess <= 0:
            demand(not full and not dropped, f"{excess} bytes too many: {full}, {dropped}")
        elif has_freed:
            may_wait = self._world.keyspace.capture is not None
            text = f"released memory goes first: {full}, {dropped}"
            demand(may_wait or not (full or dropped), text)
        elif not self.evicts:
            demand(full and not dropped, f"{excess} bytes too many and {full}, {dropped}")
        if not may_drop:
            demand(not dropped, f"nothing may be dropped: {dropped}")
        elif left > 0 and self._moments():
            # With very many keys, a slice may find no key with a block.
            text = f"refused with {left} bytes too many and blocks to drop"
            demand(not (full and self._is_exact()), text)
            demand(self.goes_on, f"{left} bytes too many, and the eviction has stopped")

    def _drop_oldest(self) -> int:
        demand(self._excess_bytes() > 0, "a block is dropped without need")
        moments, before = self._moments(), len(self._world.events)
        dropped = super()._drop_oldest()
        if len(self._world.events) > before and self._is_exact():
            trimmed = self._world.events[-1]
            assert isinstance(trimmed, Trimmed)
            oldest = min(moments.values()) == moments[trimmed.key]
            demand(oldest, f"of the blocks that end at {moments}, that of {trimmed.key} went")
        return dropped

    def _is_exact(self) -> bool:
        """True if one slice checks all keys."""
        return self._world.profile.keys < KEYS_AT_ONCE // 8

    def _moments(self) -> dict[Key, int]:
        """Milliseconds of the newest ID in the first block of each stream."""
        return {
            key: blocks_between(stream, *first, *first)[0].last_id[0]
            for key, stream in streams_in(self._world.keyspace).items()
            if (first := stream.first_id) is not None
        }
