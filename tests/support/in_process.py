"""A server without sockets, disk or clock: an executor whose clients are lists of replies.

Time changes only when a test changes it, callbacks wait until they are run, and the journal only
collects frames, so that a test can check that the effects lead to the same state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.support.fakepersistence import FakeConfig
from tests.support.resp import Reply, encode_command, read_reply

from millstream.commands.runtime.effects import apply_effects
from millstream.commands.table.loader import load_table
from millstream.server.durability.frame_waits import FrameWaits
from millstream.server.execution.executor import Executor
from millstream.server.protocol.outbox import Client, FrameNumbers
from millstream.storage.files.journal_writer import UNBOUNDED
from millstream.storage.groups.group import Group
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

NOW_MS = 1_700_000_000_000

load_table()


class Timer:
    def cancel(self) -> None:
        pass


class Loop:
    """Callbacks wait until `run`; timers never fire automatically."""

    def __init__(self) -> None:
        self.ready: deque[Callable[[], object]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.ready.append(lambda: callback(*args))

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        return Timer()

    def run(self) -> None:
        while self.ready:
            self.ready.popleft()()


class Journal(FrameNumbers):
    """Everything is durable immediately."""

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.last_seq = self.durable_seq = 0
        self.commits = self.refusal = self

    def listen(self, replies: Any, listener: Any) -> None:
        self.flush_tick = listener.flush_tick

    def may_remove(self) -> bool:
        return False

    def make_room(self, payload_bytes: int) -> int:
        return UNBOUNDED

    queued_bytes = 0
    error: bytes | None = None

    def is_queue_full(self, limit_bytes: int) -> bool:
        return self.queued_bytes > limit_bytes

    def commit(self, payload: bytes) -> int:
        self.payloads.append(payload)
        self.last_seq = self.durable_seq = len(self.payloads)
        return self.last_seq


class InProcessClient(Client):
    """A client whose replies are read one by one."""

    def __init__(self, in_process: InProcessServer, resp: int) -> None:
        super().__init__(len(in_process.players) + 1, now_ms=in_process.wall_ms)
        self.resp = resp
        self.authenticated = True
        self.in_process = in_process
        self.unread = b""

    @property
    def unread(self) -> bytes:
        """The bytes that arrived and were not read. Reading moves an offset, so a long reply is not
        copied for each of its elements."""
        return bytes(self._received[self._read_bytes :])

    @unread.setter
    def unread(self, data: bytes) -> None:
        self._received = bytearray(data)
        self._read_bytes = 0

    def transmit(self, data: bytes) -> int:
        self._received += data
        return 0

    def end(self, after_reply: bool) -> int:
        return 0

    def writable(self) -> bool:
        return True

    def send(self, line: str) -> None:
        self.in_process.executor.feed(self, encode_command(words(line)))
        self.in_process.settle()

    def call(self, line: str) -> Reply:
        self.send(line)
        return self.read()

    def read(self) -> Reply:
        reply, self._read_bytes = read_reply(self._received, self._read_bytes)
        if self._read_bytes == len(self._received):
            self.unread = b""
        return reply


def words(line: str) -> list[str]:
    return ["" if word == '""' else word for word in line.split()]


class NoReplicas:
    """A primary without replicas."""

    is_replica = False

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
        pass

    def applied_on(self, seq: int) -> int:
        return 0

    def ask_positions(self) -> None:
        pass

    def synced_on(self, seq: int) -> int:
        return 0


class InProcessServer:
    """A server without sockets, disk and clock."""

    cluster: Any = None

    def __init__(
        self, journal: Journal | None = None, loop: Any = None, *, clustered: bool = False
    ) -> None:
        self.keyspace = Keyspace(clustered=clustered)
        self.persistence = journal or Journal()
        self.loop = Loop() if loop is None else loop
        self.wall_ms = NOW_MS
        self.tick_per_look_ms = 0  # the clock advances by this much each time it is read
        self.players: list[InProcessClient] = []
        self.config = FakeConfig()
        self.logged: list[str] = []
        self.replication = NoReplicas()
        self.executor = Executor(self)
        self.push = self.executor.push
        self.waits = FrameWaits(self.executor, self.persistence, {})  # type: ignore[arg-type]

    def now_ms(self) -> int:
        self.wall_ms += self.tick_per_look_ms
        return self.wall_ms

    def now_us(self) -> int:
        return self.wall_ms * 1000

    def may_debug(self, client: Client) -> bool:
        return True

    def log(self, message: str) -> None:
        self.logged.append(message)

    def random_number(self) -> int:
        return 0x0123456789ABCDEF

    def warn(self, message: str) -> None:
        self.logged.append(message)

    def player(self, resp: int = 2) -> InProcessClient:
        player = InProcessClient(self, resp)
        self.players.append(player)
        self.executor.attach(player)
        return player

    def settle(self) -> None:
        self.executor.end_tick()
        self.loop.run()

    def wait_ms(self, span_ms: int) -> None:
        """Advance the time and run the timer."""
        self.wall_ms += span_ms
        self.executor.due.run_due()
        self.settle()

    def stream(self, key: bytes = b"s") -> Stream:
        found = self.keyspace.databases[0].stream(key)
        assert found is not None
        return found

    def group(self, name: bytes = b"g", key: bytes = b"s") -> Group:
        found = self.stream(key).group(name)
        assert found is not None
        return found

    def replayed(self) -> Keyspace:
        again = Keyspace()
        again.set_time(self.wall_ms)
        for payload in self.persistence.payloads:
            apply_effects(again, payload)
        return again
