"""Small fakes for persistence: blocks, a keyspace, a loop and workers that tests run step by step.

The keyspace has streams of numbers. An effect adds one number to one stream, and every test adds 1,
2, 3, ... so that a prefix of the written data is easy to recognize.
"""

from __future__ import annotations

import random
import re
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from zlib import crc32

from tests.support.fakedisk import FakeDisk

from millstream.errors import BlockError
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine

BLOCK_ENTRIES = 4
_HEAD = struct.Struct("<2sIIIQQQQ")


@dataclass(frozen=True)
class FakeBlock:
    """Numbers, with the IDs (number, 0)."""

    numbers: tuple[int, ...]

    @property
    def first_id(self) -> tuple[int, int]:
        return (self.numbers[0], 0)

    @property
    def last_id(self) -> tuple[int, int]:
        return (self.numbers[-1], 2**64 - 1)

    @property
    def count(self) -> int:
        return len(self.numbers)

    @property
    def live(self) -> int:
        return len(self.numbers)

    def to_bytes(self) -> bytes:
        body = b"".join(number.to_bytes(8, "little") for number in self.numbers)
        head = _HEAD.pack(b"FB", len(body), crc32(body), self.count, *self.first_id, *self.last_id)
        return head + body

    @staticmethod
    def pack(
        blocks: Sequence[FakeBlock], bytes_max: int, entries_max: int
    ) -> tuple[bytes, int, int, int]:
        packed, taken, entries = b"", 0, 0
        while taken < len(blocks):
            if taken and (len(packed) >= bytes_max or entries >= entries_max):
                break
            packed += blocks[taken].to_bytes()
            entries += blocks[taken].count
            taken += 1
        return packed, taken, entries, entries

    @staticmethod
    def unpack(data: bytes | memoryview, at: int, count: int) -> tuple[list[FakeBlock], int]:
        blocks = []
        for _ in range(count):
            try:
                block, size = _read(data[at:])
            except (ValueError, struct.error) as error:
                raise BlockError(at, str(error)) from None
            blocks.append(block)
            at += size
        return blocks, at


def _read(data: bytes | memoryview) -> tuple[FakeBlock, int]:
    magic, length, crc, count, *_ = _HEAD.unpack_from(data)
    body = bytes(data[_HEAD.size : _HEAD.size + length])
    if magic != b"FB" or len(body) != length or crc32(body) != crc:
        raise ValueError("the block is broken")
    return FakeBlock(struct.unpack(f"<{count}Q", body)), _HEAD.size + int(length)


@dataclass
class FakeCaptured:
    db: int
    key: bytes
    kind: str
    meta: dict[str, Any]
    blocks: list[FakeBlock]

    def free_step(self, most: int) -> bool:
        del self.blocks[-most:]
        return len(self.blocks) > 0


@dataclass
class FakeCapture:
    keys: list[FakeCaptured]
    closed: bool = False

    def __post_init__(self) -> None:
        self.given = list(self.keys)
        self.keys.reverse()

    def step(self, max_cost: int) -> list[FakeCaptured] | None:
        assert not self.closed
        if not self.keys:
            return None
        most = max(1, max_cost // 8)
        batch = self.keys[-most:]
        del self.keys[-most:]
        return batch[::-1]

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeKeyspace:
    streams: dict[bytes, list[int]] = field(default_factory=dict)
    strings: dict[bytes, bytes] = field(default_factory=dict)
    restored_global: dict[str, Any] | None = None
    captures: list[FakeCapture] = field(default_factory=list)

    def add(self, key: bytes, number: int) -> bytes:
        """Add a number; return its effect."""
        self.streams.setdefault(key, []).append(number)
        return b"ADD %s %d\r\n" % (key, number)

    def numbers(self) -> list[int]:
        return sorted(number for stream in self.streams.values() for number in stream)

    def captured(self) -> list[FakeCaptured]:
        streams = [
            FakeCaptured(0, key, "stream", {"last": [max(numbers), 2**64 - 1]}, blocks(numbers))
            for key, numbers in self.streams.items()
        ]
        strings = [
            FakeCaptured(1, key, "string", {"value": value}, [])
            for key, value in self.strings.items()
        ]
        return streams + strings

    def begin_capture(self) -> FakeCapture:
        assert all(capture.closed for capture in self.captures), "two captures at once"
        capture = FakeCapture(self.captured())
        self.captures.append(capture)
        return capture

    def restore_small(self, small: Any, most: int) -> int:
        raise AssertionError("this keyspace has no streams")

    def restore(
        self, db: int, key: bytes, kind: str, meta: dict[str, Any], parts: list[FakeBlock]
    ) -> None:
        if kind == "string":
            self.strings[key] = meta["value"]
            return
        self.streams[key] = [number for block in parts for number in block.numbers]
        assert meta["last"] == [max(self.streams[key]), 2**64 - 1]

    def global_meta(self) -> dict[str, Any]:
        return {"databases": 16}

    def restore_global(self, meta: dict[str, Any]) -> None:
        self.restored_global = meta


def blocks(numbers: list[int]) -> list[FakeBlock]:
    return [
        FakeBlock(tuple(numbers[at : at + BLOCK_ENTRIES]))
        for at in range(0, len(numbers), BLOCK_ENTRIES)
    ]


def without_time(payload: bytes) -> bytes:
    """A frame's effects without the time that the journal adds once a second."""
    return re.sub(rb"^\x02\x01\x01[\x80-\xff]*[\x00-\x7f]", b"", payload)


def apply_effects(keyspace: FakeKeyspace, payload: bytes) -> int:
    lines = without_time(payload).split(b"\r\n")[:-1]
    for line in lines:
        if line == b"NOP":  # an effect of the clock alone
            continue
        word, key, number = line.split(b" ")
        if word != b"ADD":
            raise ValueError(f"unknown effect {word!r}")
        keyspace.add(key, int(number))
    return len(lines)


class HandWorker:
    """Runs its tasks when the test calls it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_urgent = False
        self.tasks: deque[Callable[[], None]] = deque()

    def start(self) -> bool:
        return True

    def submit(self, task: Callable[[], None]) -> None:
        self.tasks.append(task)

    def run_one(self) -> bool:
        if self.tasks:
            self.tasks.popleft()()
            return True
        return False

    def drain(self, report: Callable[[float], None] | None = None) -> None:
        while self.run_one():
            pass

    stop = drain

    def pause(self) -> None:
        pass

    def set_urgent(self, urgent: bool) -> None:
        self.is_urgent = urgent


class HandLoop:
    """An event loop whose time changes only when the test changes it."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.ready: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self.timers: list[tuple[float, Callable[..., object], tuple[Any, ...]]] = []

    def clock(self) -> int:
        return self.now_ms

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any) -> None:
        self.ready.append((callback, args))

    call_soon = call_soon_threadsafe

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> None:
        self.timers.append((self.now_ms + delay * 1000, callback, args))

    def run_one(self) -> bool:
        if self.ready:
            callback, args = self.ready.popleft()
            callback(*args)
            return True
        return False

    def advance(self, ms: int) -> None:
        self.now_ms += ms
        due = [timer for timer in self.timers if timer[0] <= self.now_ms]
        self.timers = [timer for timer in self.timers if timer[0] > self.now_ms]
        for _, callback, args in due:
            self.call_soon_threadsafe(callback, *args)


@dataclass
class FakeConfig:
    appendonly: bool = True
    aof_load_truncated: bool = True
    appendfsync: str = "always"
    appendfsync_groups: str = "always"
    save: str | None = None
    auto_aof_rewrite_percentage: int = 100
    auto_aof_rewrite_min_size: int = 64 << 20
    stop_writes_on_bgsave_error: bool = True
    journal_reserve_size: int = 1 << 16
    rdbcompression: bool = False
    proto_max_bulk_len: int = 512 << 20

    def shown(self, name: str) -> str:
        """FLUSHALL then writes a snapshot."""
        return {"save": "3600 1", "appendonly": "no"}[name]


class World:
    """A server's persistence with its environment, run step by step."""

    def __init__(self, disk: FakeDisk, config: FakeConfig | None = None, first: int = 1) -> None:
        self.disk = disk
        self.config = config or FakeConfig()
        self.loop = HandLoop()
        self.keyspace = FakeKeyspace()
        self.workers: list[HandWorker] = []
        self.persistence = Persistence(
            self.config,
            Machine(disk, self.loop.clock, self.loop.clock, self.loop, self._new_worker),
            self.keyspace,
            partial(apply_effects, self.keyspace),
            FakeBlock,
        )
        self.persistence.commits.listen(self, self)
        self.next_number = first
        self.effects = b""
        self.waiting: deque[tuple[int, int]] = deque()  # (sequence number, number), ascending
        self._tick_numbers: list[int] = []
        self.acked: list[int] = []
        self.failed: list[list[int]] = []
        self._changes = 0  # at the last second

    def _new_worker(self, name: str, niceness: int) -> HandWorker:
        worker = HandWorker(name)
        self.workers.append(worker)
        return worker

    def load(self) -> LoadReport:
        report = self.persistence.load()
        numbers = self.keyspace.numbers()
        self.next_number = max(numbers, default=0) + 1
        return report

    def write(self, key: bytes = b"s") -> int | None:
        """Run one write command in this tick; return its number, or None when it was refused."""
        if self.persistence.writable_error() is not None:
            return None
        number = self.next_number
        self.next_number += 1
        self.effects += self.keyspace.add(key, number)
        self._tick_numbers.append(number)
        return number

    def tick(self) -> None:
        """End a tick: commit, and send the replies that may be sent."""
        if not self.effects:
            return
        payload, self.effects = self.effects, b""
        seq = self.persistence.commits.commit(payload)
        self.waiting += [(seq, number) for number in self._tick_numbers]
        self._tick_numbers = []
        self.durable(self.persistence.commits.durable_seq)

    def write_tick(self, key: bytes = b"s") -> None:
        self.write(key)
        self.tick()

    def durable(self, seq: int) -> None:
        while self.waiting and self.waiting[0][0] <= seq:
            self.acked.append(self.waiting.popleft()[1])

    def journal_failed(self) -> None:
        self.failed.append([number for _, number in self.waiting])
        self.waiting.clear()

    def flush_tick(self) -> None:
        self.tick()

    def check_due(self) -> None:
        pass

    def on_queue(self) -> None:
        pass

    def changes(self) -> int:
        return self._changes

    def settle(self) -> None:
        """Run loop and workers until nothing is left to do, except timers."""
        while self.step_any():
            pass

    def step_any(self, chance: random.Random | None = None) -> bool:
        """One step of the loop or of a worker, chosen by `chance` when given."""
        runners = [runner for runner in (self.loop, *self.workers) if _has_work(runner)]
        if not runners:
            return False
        runner = chance.choice(runners) if chance is not None else runners[0]
        return runner.run_one()

    def second(self) -> None:
        self.loop.advance(1000)
        self._changes = self.next_number
        self.persistence.tick_second(self.next_number)
        self.settle()


def _has_work(runner: HandLoop | HandWorker) -> bool:
    return bool(runner.ready if isinstance(runner, HandLoop) else runner.tasks)
