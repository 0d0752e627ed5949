"""What replication needs of the server that it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from millstream.server.durability.workers import TaskWorker
from millstream.server.replication.feeds import Config as FeedsConfig
from millstream.server.replication.feeds import Loop

if TYPE_CHECKING:
    from millstream.server.durability.persistence import Persistence
    from millstream.server.execution.executor import Executor
    from millstream.storage.keyspace.keyspace import Keyspace


class Config(FeedsConfig, Protocol):
    """The directives used here; read each time, so that CONFIG SET works."""

    appendonly: bool
    journal_queue_limit: int
    replicaof: str
    masteruser: str
    masterauth: str
    replica_announce_ip: str
    replica_announce_port: int
    replica_announced: bool
    tls_port: int
    tls_replication: bool
    replica_priority: int
    replica_serve_stale_data: bool
    min_replicas_to_write: int


class Transport(Protocol):
    """The part of an asyncio transport that a replica's link uses."""

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...
    def close(self) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class LinkProtocol(Protocol):
    """What `connect_link` calls: an asyncio protocol. `connection_lost` is also called when the
    connection could not be made."""

    def connection_made(self, transport: Any) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def connection_lost(self, error: Exception | None) -> None: ...


class Node(Protocol):
    """The server: a real one, or one in the simulation."""

    keyspace: Keyspace
    persistence: Persistence
    executor: Executor
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]

    @property
    def config(self) -> Config: ...
    @property
    def loop(self) -> Loop: ...
    @property
    def port(self) -> int: ...
    @property
    def clients(self) -> Mapping[int, Any]: ...

    def next_client_id(self) -> int: ...
    def new_worker(self, name: str, niceness: int) -> TaskWorker: ...
    def new_history(self) -> str:
        """40 random hexadecimal digits."""

    def connect_link(self, host: str, port: int, protocol: LinkProtocol) -> None:
        """Begin to connect to another server."""

    def continue_clock(self) -> None:
        """Continue the steady clock after the latest time in the data, and restart the times to
        live of groups and the leases."""

    def deliver(self, channel: bytes, message: bytes, *, is_shard: bool) -> None:
        """Pass a message of the primary's channels to the subscribers here."""

    def check_waits(self) -> None:
        """More is on the disk, or on replicas, than before: end the waits for it."""
