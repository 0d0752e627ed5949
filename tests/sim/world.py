"""The environment of a simulated server: loop, clock, workers, clients, and the server's wiring.

server/wiring connects its parts as in a real server; parts that need a process are left out.
"""

from __future__ import annotations

import functools
import heapq
import logging
import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from tests.sim.data import Data
from tests.sim.memory import Memory, WatchedEviction, free_all
from tests.sim.model.clients import ClientModel, Key, Request
from tests.sim.model.events import Added, Done, Event, Held, Released, Trimmed, Turn
from tests.sim.players import Player, Profile
from tests.sim.promises import BrokenPromise
from tests.sim.replay import Replay
from tests.support.fakedisk import Crashed, FakeDisk, Inode
from tests.support.fakepersistence import FakeConfig, HandWorker
from tests.support.history import Operation
from tests.support.in_process import NoReplicas
from tests.support.resp import encode_command

from millstream.commands.access.users import changed_user
from millstream.commands.access.verdict import Denial
from millstream.commands.runtime.effects import apply_effects, changes_only_groups
from millstream.commands.table.loader import load_table
from millstream.errors import CommandError
from millstream.server.durability.commits import Commits
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.access import Access
from millstream.server.execution.blocking import Waiter
from millstream.server.execution.executor import Executor
from millstream.server.protocol.outbox import Client
from millstream.storage.blocks.block import Block
from millstream.storage.capture.restored_times import continue_times
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.journal_format import FRAME_SIZE, HEADER_SIZE
from millstream.storage.files.manifest import NAME as MANIFEST
from millstream.storage.files.manifest import load_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.keyspace import Keyspace

load_table()


class Timer:
    """The result of call_later."""

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self.callback = callback
        self.args = args
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimLoop:
    """An event loop that runs one callback at a time.

    Its own time only increases; the wall clock may jump. A timer may fire a millisecond early, as
    in loops with a cached or coarse clock.
    """

    def __init__(self, chance: random.Random) -> None:
        self.time_ms = 0
        self.ready: deque[Timer] = deque()
        self.timers: list[tuple[int, int, Timer]] = []
        self._chance = chance
        self._number = 0

    def call_soon(self, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(callback, args)
        self.ready.append(timer)
        return timer

    call_soon_threadsafe = call_soon

    def call_later(self, delay_s: float, callback: Callable[..., object], *args: Any) -> Timer:
        timer = Timer(callback, args)
        early_ms = self._chance.choice([0, 0, 0, 1])
        moment_ms = self.time_ms + max(0, round(delay_s * 1000) - early_ms)
        self._number += 1
        heapq.heappush(self.timers, (moment_ms, self._number, timer))
        return timer

    def next_timer_ms(self) -> int | None:
        while self.timers and self.timers[0][2].cancelled:
            heapq.heappop(self.timers)
        return self.timers[0][0] if self.timers else None

    def take(self) -> Timer | None:
        """The callback to run next; None when there is none."""
        while (moment_ms := self.next_timer_ms()) is not None and moment_ms <= self.time_ms:
            self.ready.append(heapq.heappop(self.timers)[2])
        while self.ready:
            timer = self.ready.popleft()
            if not timer.cancelled:
                return timer
        return None

    def run_ready(self) -> None:
        while (timer := self.take()) is not None:
            timer.callback(*timer.args)

    def has_work(self) -> bool:
        moment_ms = self.next_timer_ms()
        return bool(self.ready) or (moment_ms is not None and moment_ms <= self.time_ms)


class WatchedRefusal:
    """Reports to the model whether writes are refused, each time that the executor looks."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def error(self) -> bytes | None:
        world = self._world
        error = world.persistence.writable_error()
        text = None if error is None else error.decode()
        may_remove = world.persistence.may_remove()
        world.events.append(Turn(text, world.executor.queue_full, may_remove))
        return error


class WatchedCommits(Commits):
    """Records each frame before it goes to the journal, and checks its effects."""

    world: World

    def make_room(self, payload_bytes: int) -> int:
        return self._predictable(super().make_room, payload_bytes)

    def make_last_room(self, payload_bytes: int) -> int:
        return self._predictable(super().make_last_room, payload_bytes)

    def _predictable(self, make: Callable[[int], int], payload_bytes: int) -> int:
        try:
            return make(payload_bytes)
        except CommandError as refusal:
            if self.world.profile.refuses_large:
                raise
            # The model cannot predict which requests of a batch are refused; test_full_disk tests
            # this case. Here the machine crashes.
            raise Crashed(str(refusal)) from refusal

    def commit(self, payload: bytes | None) -> int:
        assert payload is not None, "an effect could not be recorded"
        self.world.frame(self.last_seq + 1, payload)
        return super().commit(payload)


class WatchedExecutor(Executor):
    """Records the ticks, which may end during the turn for a client's bytes. Freeing takes
    simulated time, so that it needs several turns."""

    def journal_failed(self) -> None:
        world, commits = self.server, self.commits
        world.journal_failed = True
        if len(self.effects) or commits.durable_seq < commits.last_seq:
            world.on_unknown()
        super().journal_failed()

    def end_tick(self) -> int:
        full = {
            number
            for number, client in self.server.clients.items()
            if client.is_stopped() and not client.blocked
        }
        super().end_tick()
        self.server.ticks.append(full)
        return 0

    def read_ns(self) -> int:  # read while objects are freed
        self.server.time_passes = True
        try:
            return super().read_ns()
        finally:
            self.server.time_passes = False


class HeldClients(dict[int, "SimClient"]):
    """Clients whose requests wait for the disk; reports each change to the model."""

    def __init__(self, events: deque[Event]) -> None:
        super().__init__()
        self._events = events

    def __setitem__(self, number: int, client: SimClient) -> None:
        self._events.append(Held(number, client.postponed_words()))
        super().__setitem__(number, client)


class ConnectedClients(dict[int, "SimClient"]):
    """The clients by ID, and what CLIENT does to them."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def unblock(self, client: Client, error: bool) -> bool:
        return self._world.executor.unblock_client(client, error)


class ReportedChanges:
    """Replaces the notification of subscribers: it reports changes of streams to the model."""

    def __init__(self, keyspace: Keyspace, events: deque[Event]) -> None:
        self._keyspace = keyspace
        self._events = events

    def keyspace_event(self, kind: bytes, event: bytes, name: bytes, db_index: int) -> None:
        key: Key = db_index, name
        if event == b"xadd":
            self._events.append(Added(key))
        elif event == b"xtrim":
            stream = self._keyspace.databases[db_index].stream(name)
            self._events.append(Trimmed(key, None if stream is None else stream.first_id))


class ReportedRequests:
    """Replaces the slow log: it reports the end of each request to the model."""

    def __init__(self, events: deque[Event]) -> None:
        self._events = events

    def note(self, now_ms: int, taken_us: int, words: Sequence[bytes], client: Client) -> None:
        self._events.append(Done(tuple(words)))


class UnloggedAccess(Access):
    """Without ACL LOG, which shows the connection of a client."""

    def _note(self, client: Client, found: Denial, context: str) -> None:
        pass


class DurableFrames:
    """The highest frame that is certainly on the disk, regardless of a crash."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk = disk
        self._read: dict[str, tuple[Inode, int]] = {}
        self._manifest = b""
        self._journals: tuple[str, ...] = ()
        self.seq = 0

    def look(self) -> int:
        """Frames synced in a current journal, and frames that a published base replaced."""
        manifest = self._disk.durable_files.get(MANIFEST)
        if manifest is not None and manifest.durable != self._manifest:
            self._manifest = manifest.durable
            self._read_manifest()
        for name in self._journals:
            inode = self._disk.durable_files.get(name)
            if inode is not None:
                known = self._read.get(name)
                start = known[1] if known is not None and known[0] is inode else HEADER_SIZE
                self._read[name] = inode, self._scan(inode.durable, start)
        return self.seq

    def _scan(self, durable: bytes, at: int) -> int:
        while at + FRAME_SIZE <= len(durable):
            end = at + FRAME_SIZE + int.from_bytes(durable[at : at + 4], "little")
            if end > len(durable):
                break
            self.seq = max(self.seq, int.from_bytes(durable[at + 8 : at + 16], "little"))
            at = end
        return at

    def _read_manifest(self) -> None:
        safe = FakeDisk()
        for name, inode in self._disk.durable_files.items():
            safe.put(name, inode.durable)
        manifest = load_manifest(safe)
        assert manifest is not None
        self._journals = manifest.journals
        if manifest.base is not None:
            self.seq = max(self.seq, SnapshotReader(safe.read(manifest.base)).summary.seq)


class SimClient(Client):
    """A client without a socket: it collects its replies, each with the durable frame at that
    time."""

    def __init__(self, world: World, player: Player, number: int, resp: int) -> None:
        super().__init__(number, now_ms=world.now_ms())
        self.resp = resp
        self.authenticated = True
        self.world = world
        self.player = player
        self.model = ClientModel(number, resp)
        # Bytes, the durable frame at that time, and whether the data shown must survive every
        # crash.
        self.received: list[tuple[bytes, int, bool]] = []
        self.unread = b""
        self.unsent = b""
        self.boundaries: deque[tuple[int, Request]] = deque()
        self.asked: dict[int, tuple[Request, Operation]] = {}  # by the request's identity
        self.written = 0  # bytes of all requests made
        self.sent = 0
        self.ended = False

    def transmit(self, data: bytes) -> int:
        if self.ended:
            raise BrokenPromise(f"client {self.id} is sent something after its end")
        self.received.append((data, self.world.safe_seq(), self.world.answers_are_safe()))
        return 0

    def end(self, after_reply: bool) -> int:
        self.ended = True
        self.closed = True
        return 0

    def writable(self) -> bool:
        return not self.paused

    def ask(self, request: Request) -> None:
        data = encode_command(request)
        self.unsent += data
        self.written += len(data)
        self.boundaries.append((self.written, request))

    def take(self, size: int) -> tuple[bytes, list[Request]]:
        """The next bytes to send, and the requests that they complete."""
        data, self.unsent = self.unsent[:size], self.unsent[size:]
        self.sent += len(data)
        whole = []
        while self.boundaries and self.boundaries[0][0] <= self.sent:
            whole.append(self.boundaries.popleft()[1])
        return data, whole


class Faults(logging.Handler):
    """Records the exceptions that the server logs: handlers that failed."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.found.append(logging.Formatter().format(record))


class World:
    """One run of a server, from load to crash, on a disk that survives."""

    def __init__(
        self, disk: FakeDisk, profile: Profile, chance: random.Random, wall_ms: int, before: Data
    ) -> None:
        """`before` is the data at `first_seq`, the last frame of the previous run."""
        self.disk = disk
        self.profile = profile
        self.chance = chance
        self.loop = SimLoop(chance)
        self.wall_ms = self.steady_start_ms = wall_ms
        self.clients = ConnectedClients(self)
        self.frames: dict[int, bytes] = {}
        self.replay = Replay(before.copy())
        self.broken: list[str] = []
        self.workers: list[HandWorker] = []
        self.durable = DurableFrames(disk)
        self.events: deque[Event] = deque()
        self.releases = 0  # of clients that waited for the disk
        self.time_passes = False  # each time the clock is read
        self.journal_failed = False
        self.on_unknown: Callable[[], None] = lambda: None
        self.keyspace = Keyspace(node_entries=profile.node_entries, node_bytes=profile.node_bytes)
        self.keyspace.producers_max = profile.producers_max
        self.pubsub = ReportedChanges(self.keyspace, self.events)
        self.slowlog = ReportedRequests(self.events)
        self.replication = NoReplicas()
        self.config = FakeConfig(
            appendfsync=profile.fsync,
            appendfsync_groups=profile.group_fsync,
            auto_aof_rewrite_min_size=profile.rewrite_bytes,
        )
        self.persistence = Persistence(
            self.config,
            Machine(disk, self.now_ms, self.steady_ms, self.loop, self._new_worker),
            StoredKeyspace(self.keyspace),
            functools.partial(apply_effects, self.keyspace),
            Block,
        )
        commits: Any = self.persistence.commits
        commits.__class__, commits.world = WatchedCommits, self
        self.snapshots = self.persistence.snapshots
        self.settings = self
        # For each tick since the last event, the clients that had not taken their replies.
        self.ticks: list[set[int]] = []
        self.executor = WatchedExecutor(self)
        self.executor.refusal = WatchedRefusal(self)
        self._watch_backpressure()
        self.access = UnloggedAccess(self.executor, self.clients, self._kill)
        self.executor.context.events = b"t"
        self.executor.set_slow(0, 0)
        self.memory = Memory()
        self.eviction = WatchedEviction(self)
        self.served: list[int] = []  # clients whose waits ended, in this order
        self.executor.serving.waiting.on_end = self._note_served

    def _watch_backpressure(self) -> None:
        gate = self.executor.backpressure
        gate.clients = HeldClients(self.events)
        release = gate.release

        def told_release() -> Any:
            clients, unread = release()
            gate.clients = HeldClients(self.events)
            self.events.append(Released([client.id for client in clients]))
            self.releases += len(clients)
            return clients, unread

        gate.release = told_release  # type: ignore[method-assign]
        self.executor.limit_queue(self.profile.queue_bytes)

    def _note_served(self, waiter: Waiter) -> None:
        self.served.append(waiter.client.id)

    def _kill(self, client: Client) -> None:
        raise BrokenPromise(f"client {client.id} is disconnected, and subscribes to nothing")

    def set_rules(self, request: Request) -> None:
        """ACL SETUSER, before there are clients."""
        _, _, name, *rules = request
        self.access.set_user(changed_user(self.access.users.new(name), rules))

    def start(self) -> None:
        self.keyspace.set_time(self.now_ms(), self.steady_ms())
        self.keyspace.expiring = False
        self.persistence.load()
        self.keyspace.expiring = True
        if self.keyspace.newest_steady_ms > self.steady_ms():
            self.steady_start_ms = self.keyspace.newest_steady_ms - self.loop.time_ms
            continue_times(self.keyspace, self.steady_ms())
        self.executor.end_tick()
        self.loop.call_later(1, self._tick_second)

    def step(self) -> bool:
        """Run one task of a worker or one callback of the loop; False when there is neither."""
        busy = [worker for worker in self.workers if worker.tasks]
        if busy and self.chance.random() < 0.5:
            return self.chance.choice(busy).run_one()
        timer = self.loop.take()
        if timer is not None:
            timer.callback(*timer.args)
        return bool(busy or timer)

    def stop(self) -> None:
        """A clean end, like Server.stop: finish the tick, sync."""
        self.executor.end_tick()
        self.persistence.close()

    def abandon(self) -> None:
        """Free its streams, to which references may still exist."""
        job = self.persistence.snapshots.job
        if job is not None and job.capture is not None:
            job.capture.close()
            job.capture = None  # it has flushed tables
        for database in self.keyspace.databases:
            database.clear()
        free_all()

    def limit_memory(self, limit_bytes: int, evicts: bool) -> None:
        """CONFIG SET maxmemory, maxmemory-policy"""
        self.eviction.limit_bytes, self.eviction.evicts = limit_bytes, evicts
        self.loop.call_soon(self.executor.eviction_work.limit_memory, self.eviction)

    def now_ms(self) -> int:
        self.loop.time_ms += self.time_passes
        return self.wall_ms + self.loop.time_ms

    def steady_ms(self) -> int:
        """A time that only increases, regardless of the wall clock."""
        return self.steady_start_ms + self.loop.time_ms

    def now_us(self) -> int:
        return self.now_ms() * 1000

    def warn(self, sentence: str) -> None:
        pass

    def frame(self, seq: int, payload: bytes) -> None:
        self.frames[seq] = payload
        try:
            self.replay.apply(payload)
        except AssertionError as problem:  # raised here, it could become a handler's reply
            self.broken.append(f"frame {seq}: {problem}")

    def safe_seq(self) -> int:
        """The last frame whose replies may be sent now: with `always`, the last durable one, and
        those after it that change only groups, if these need not be synced."""
        if not self.answers_are_safe():
            return self.persistence.commits.last_seq
        seq = self.durable.look()
        while self.need_not_be_synced(seq + 1):
            seq += 1
        return seq

    def need_not_be_synced(self, seq: int) -> bool:
        """True for a recorded frame that a power failure may remove although a reply showed it."""
        is_free = self.config.appendfsync_groups == "everysec" and seq in self.frames
        return is_free and changes_only_groups(self.frames[seq])

    def answers_are_safe(self) -> bool:
        return self.config.appendfsync == "always" and not self.journal_failed

    def refuses_writes(self) -> bool:
        return Persistence.writable_error(self.persistence) is not None

    def _new_worker(self, name: str, niceness: int) -> HandWorker:
        worker = HandWorker(name)
        self.workers.append(worker)
        return worker

    def _tick_second(self) -> None:
        self.loop.call_later(1, self._tick_second)
        self.persistence.tick_second(self.keyspace.dirty)

    # The server's interface for commands.

    def random_number(self) -> int:
        return self.chance.getrandbits(64)

    def set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """CONFIG SET."""
        for name, value in pairs:
            if name != b"appendfsync":
                raise CommandError("ERR not simulated")
            self.config.appendfsync = value.decode()
            self.persistence.commits.set_fsync(value.decode())


__all__ = ["Crashed", "Faults", "SimClient", "World"]
