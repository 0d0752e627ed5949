"""One server of a fleet: the real executor, persistence and replication, without sockets.

server/wiring connects its parts as in a real server. Time and network are the fleet's.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tests.sim.net import Connection
from tests.sim.world import SimLoop
from tests.support.fakedisk import FakeDisk
from tests.support.fakepersistence import FakeConfig, HandWorker
from tests.support.resp import Reply, encode_command, read_reply

from millstream.commands.runtime.effects import apply_effects
from millstream.commands.table.loader import load_table
from millstream.server.durability.commits import Commits
from millstream.server.durability.frame_waits import FrameWaits
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.executor import Executor
from millstream.server.monitor.info import fields_of
from millstream.server.moving.base_conversion import BaseDumper
from millstream.server.moving.spool_conversion import SpoolConverter
from millstream.server.protocol.outbox import Client
from millstream.server.replication.link_connection import Connector
from millstream.server.replication.role import Role
from millstream.storage.blocks.block import Block
from millstream.storage.capture.restored_times import continue_times
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.keyspace.keyspace import Keyspace

if TYPE_CHECKING:
    from tests.sim.fleet import Fleet

    from millstream.storage.files.manifest import Manifest

load_table()

# HISTORY id number [term]
LINE = re.compile(rb"\x01[\x02\x03]\x2a[0-9a-f]{40}(?:\x01[\x80-\xff]*[\x00-\x7f]){1,2}")


@dataclass
class FleetConfig(FakeConfig):
    def shown(self, name: str) -> str:
        return ""

    journal_queue_limit: int = 1 << 20
    replicaof: str = ""
    proto_max_bulk_len: int = 1 << 20
    masteruser: str = ""
    masterauth: str = ""
    replica_announce_ip: str = ""
    replica_announce_port: int = 0
    replica_announced: bool = True
    tls: Any = field(default_factory=lambda: SimpleNamespace(port=0, replication=False))
    replica_priority: int = 100
    replica_serve_stale_data: bool = True
    min_replicas_to_write: int = 0
    min_replicas_max_lag: int = 10
    replicas_durable: int = 0
    repl_backlog_size: int = 1 << 20
    repl_backlog_ttl: int = 3600
    repl_timeout: int = 60
    client_query_buffer_limit: int = 1 << 20

    def choose_primary(self, replicaof: str) -> None:
        self.replicaof = replicaof


class FleetClient(Client):
    """A connection at the server's end: a replica's, or one of the fleet's own clients."""

    def __init__(self, node: FleetNode, number: int, connection: Connection | None) -> None:
        host = number % 200 if connection is None else 200 + connection.replica.index
        super().__init__(number, address=f"10.0.0.{host}:7", now_ms=node.now_ms())
        self.authenticated = True
        self.node = node
        self.connection = connection
        self.received = bytearray()
        self.asked: list[tuple[bytes, ...]] = []  # requests whose replies are due

    def transmit(self, data: bytes) -> int:
        if self.connection is not None:
            self.connection.down.send(data)
            self.paused = self.connection.down.is_full
        else:
            self.received += data
            self.node.fleet.replied(self)
        return 0

    def end(self, after_reply: bool) -> int:
        self.closed = True
        self.node.executor.detach(self)
        self.node.forget(self)
        if self.connection is not None:
            self.connection.ends.discard("primary")
            if after_reply:  # sent bytes arrive first
                self.connection.closes = True
            else:
                self.connection.cut()
        return 0

    def close(self, after_reply: bool) -> None:
        self.end(after_reply)

    def writable(self) -> bool:
        return not self.paused

    def next_reply(self) -> Reply:
        """The next reply; EOFError while it is not complete."""
        reply, end = read_reply(self.received)
        del self.received[:end]
        return reply


class FleetClients(dict[int, FleetClient]):
    """The clients of a server by their IDs, as far as commands need them."""

    def unblock(self, client: FleetClient, error: bool) -> bool:
        return client.node.executor.unblock_client(client, error)


class WatchedCommits(Commits):
    """Reports each frame to the fleet, without the effect that only names its line of history."""

    node: FleetNode

    def _record(self, payload: bytes | None, must_sync: bool = True) -> int:
        seq = super()._record(payload, must_sync)
        if payload is not None and (line := LINE.match(payload)) is not None:
            payload = payload[line.end() :]
        self.node.fleet.frame(self.node, seq, payload)
        return seq


class WatchedPersistence(Persistence):
    """Tells the fleet when the data is loaded."""

    node: FleetNode

    def end_reading(self) -> None:
        super().end_reading()
        self.node.fleet.has_loaded(self.node)


class WatchedWorker(HandWorker):
    """Informs its node while it runs a task."""

    def __init__(self, name: str, node: FleetNode) -> None:
        super().__init__(name)
        self._node = node

    def run_one(self) -> bool:
        self._node.running = self.name
        try:
            return super().run_one()
        finally:
            self._node.running = ""


class FleetNode:
    """One run of a server, from load to crash, on a disk that survives."""

    clustered = False

    def __init__(
        self, fleet: Fleet, index: int, disk: FakeDisk, config: FleetConfig, chance: random.Random
    ) -> None:
        self.fleet = fleet
        self.index = index
        self.disk = disk
        self.config = config
        self.chance = chance
        self.is_alive = True
        self.is_frozen = False
        self.loop = SimLoop(chance)
        self.loop.time_ms = fleet.time_ms
        self.wall_ms = fleet.wall_ms + chance.choice([0, 0, 3, -3, 500, -700])
        self.steady_start_ms = self.wall_ms
        self.port = 7000 + index
        self.clients = FleetClients()
        self.workers: list[HandWorker] = []
        self.running = ""  # the worker that is running a task
        self._client_number = 0
        self.keyspace = Keyspace(node_entries=fleet.node_entries, clustered=self.clustered)
        machine = Machine(disk, self.now_ms, self.steady_ms, self.loop, self.new_worker)
        self.persistence = WatchedPersistence(
            config,
            machine,
            StoredKeyspace(self.keyspace),
            functools.partial(apply_effects, self.keyspace),
            Block,
        )
        self.executor = Executor(self)
        self.snapshots = self.persistence.snapshots
        self.waits = FrameWaits(self.executor, self.persistence, self.clients)
        connector = Connector(
            config,
            self.keyspace,
            self.persistence,
            dial=lambda host, port, connection: fleet.connect(self, port, connection),
            port=lambda: self.port,
            next_client_id=self.next_client_id,
        )
        self.replication = Role(
            config,
            machine,
            self.keyspace,
            self.persistence,
            self.executor,
            SimpleNamespace(
                connector=connector, converter=SpoolConverter(lambda: 0), dumper=BaseDumper()
            ),
            clients=self.clients,
            new_id=self.new_id,
            continue_clock=self.continue_clock,
            deliver=lambda channel, message, *, is_shard: None,
            check_waits=self.waits.check,
        )
        self.persistence.commits.follow(self.replication)
        self.persistence.node = self
        commits: Any = self.persistence.commits
        commits.__class__, commits.node = WatchedCommits, self
        self._publish = self.persistence.files.publish
        self.persistence.files.publish = self._watch_manifest  # type: ignore[method-assign]

    def _watch_manifest(self, manifest: Manifest, renames: Sequence[tuple[str, str]] = ()) -> None:
        """One worker changes the manifest: two at a time would replace each other's."""
        if self.running not in ("", "millstream-snapshot"):
            self.fleet.broken.append(f"{self.running} changes the manifest")
        self._publish(manifest, renames)

    def start(self) -> None:
        self.disk.locked = False
        self.keyspace.set_time(self.now_ms(), self.steady_ms())
        self.keyspace.expiring = False
        self.persistence.load()
        self.keyspace.expiring = True
        self.continue_clock()
        self.executor.end_tick()
        self.replication.start()
        self.loop.call_later(1, self._tick_second)

    def _tick_second(self) -> None:
        self.loop.call_later(1, self._tick_second)
        self.persistence.tick_second(self.keyspace.dirty)
        self.replication.tick_second()

    @property
    def shown_priority(self) -> int:
        """The priority that Sentinel sees; it asks replicas."""
        facts = fields_of(self.replication.info())
        return int(facts.get("slave_priority", self.config.replica_priority))

    # Clients

    def next_client_id(self) -> int:
        self._client_number += 1
        return self._client_number

    def accept(self, connection: Connection | None = None) -> FleetClient:
        client = FleetClient(self, self.next_client_id(), connection)
        self.clients[client.id] = client
        self.executor.attach(client)
        return client

    def lost(self, client: FleetClient) -> None:
        """The client's connection is gone."""
        self.executor.detach(client)
        self.forget(client)

    def forget(self, client: FleetClient) -> None:
        self.clients.pop(client.id, None)
        self.replication.client_gone(client)

    def ask(self, client: FleetClient, *words: bytes) -> None:
        client.asked.append(words)
        self.executor.feed(client, encode_command(words))

    # Running

    def has_work(self) -> bool:
        return self.loop.has_work() or any(worker.tasks for worker in self.workers)

    def step(self) -> None:
        """Run one task of a worker or one callback of the loop."""
        busy = [worker for worker in self.workers if worker.tasks]
        if busy and (self.chance.random() < 0.5 or not self.loop.has_work()):
            self.chance.choice(busy).run_one()
            return
        timer = self.loop.take()
        if timer is not None:
            timer.callback(*timer.args)

    # What the parts of the server ask for

    def now_ms(self) -> int:
        return self.wall_ms + self.loop.time_ms

    def steady_ms(self) -> int:
        return self.steady_start_ms + self.loop.time_ms

    def now_us(self) -> int:
        return self.now_ms() * 1000

    def warn(self, sentence: str) -> None:
        pass

    def new_worker(self, name: str, niceness: int) -> HandWorker:
        worker = WatchedWorker(name, self)
        self.workers.append(worker)
        return worker

    def new_id(self) -> str:
        return f"{self.chance.getrandbits(160):040x}"

    def continue_clock(self) -> None:
        newest_ms = self.keyspace.newest_steady_ms
        if newest_ms > self.steady_ms():
            self.steady_start_ms = newest_ms - self.loop.time_ms
        continue_times(self.keyspace, self.steady_ms())

    # What commands ask for

    def random_number(self) -> int:
        return self.chance.getrandbits(64)
