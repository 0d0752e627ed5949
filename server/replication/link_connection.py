"""One connection of a replica to its primary, from the connect to its end.

`LinkProtocol` has the requests and answers, without I/O; this passes bytes between it and the
transport.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Protocol, cast

from millstream import __version__
from millstream.commands.runtime.context import Session
from millstream.errors import StartError
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import in_words
from millstream.server.durability.persistence import Persistence
from millstream.server.replication.link_protocol import LinkProtocol, Opening
from millstream.server.replication.link_transport import LinkTransport
from millstream.server.replication.name_lookup import connect_to_host
from millstream.storage.files.journal_writer import PAYLOAD_MAX
from millstream.storage.keyspace.keyspace import Keyspace

_CONNECT_S = 10.0
_tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference


class Owner(Protocol):
    """The owner of a connection: a `Link` or an `Announcement`."""

    def receive(self, connection: LinkConnection, data: bytes) -> None: ...
    def connection_lost(self, connection: LinkConnection, reason: str) -> None:
        """The other side has ended the connection, or it could not be made."""

    def lost(self, connection: LinkConnection, reason: str) -> None:
        """This side ends the connection."""


def why_lost(error: Exception | None, uses_tls: bool, unanswered: bool) -> str:
    """The reason why a connection has ended, with the directive to check if it is TLS. A server
    closes a connection without an answer when the other side does not speak TLS, or lacks a
    certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}; tls-ca-cert-file names the "
            "authority"
        )
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "this port does not speak TLS; tls-replication needs the tls-port of the primary"
    if isinstance(error, TimeoutError) and not error.args:
        # A Redis without TLS waits for the end of a line, and does not answer.
        reason = f"it has not answered for {_CONNECT_S:g} seconds"
        return f"{reason}; a port without TLS needs tls-replication no" if uses_tls else reason
    if error is not None and not isinstance(error, ConnectionResetError):
        return in_words(error)
    if not unanswered:
        return "it was closed"
    if uses_tls:
        return (
            "it was closed without an answer; the primary may not trust the certificate of this "
            "server, which tls-client-cert-file or tls-cert-file names"
        )
    return "it was closed without an answer; a port with TLS needs tls-replication yes"


class LinkConnection(LinkTransport):
    """An asyncio protocol."""

    def __init__(self, owner: Owner, protocol: LinkProtocol, uses_tls: bool) -> None:
        super().__init__()
        self.protocol = protocol
        self._owner = owner
        self._uses_tls = uses_tls
        self.received_bytes = self.sent_bytes = 0
        self.client: PrimaryClient | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.flush()

    def data_received(self, data: bytes) -> None:
        if not self.is_over:
            self.received_bytes += len(data)
            self._owner.receive(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over:
            self.is_over = True
            unanswered = self.protocol.is_unanswered
            self._owner.connection_lost(self, why_lost(error, self._uses_tls, unanswered))

    def flush(self) -> None:
        if self.transport is not None and self.protocol.output and not self.is_over:
            data = bytes(self.protocol.output)
            self.protocol.output.clear()
            self.sent_bytes += len(data)
            self.transport.write(data)

    def say_alive(self) -> None:
        """Acknowledge nothing, so that the primary does not end a link that is silent for long."""
        if self.protocol.is_redis:
            self.protocol.say_alive()
        else:
            self.protocol.acknowledge(0, -1, 0)
        self.flush()

    def drop(self, reason: str) -> None:
        """End the connection and connect again."""
        if not self.is_over:
            self.is_over = True
            self._owner.lost(self, reason)
            self.end()

    def finish(self) -> None:
        """End the connection after everything is sent."""
        self.flush()
        self.is_over = True
        if self.transport is not None:
            self.transport.close()


class PrimaryClient(Session):
    """The link to the primary as CLIENT LIST and CLIENT KILL see it: a client with the flag M. `id`
    is one of the server's client IDs. It has no buffers of its own."""

    is_primary = True
    file_number = -1
    closed = False
    query_buffer_bytes = query_buffer_free_bytes = 0
    output_bytes = queued_bytes = 0
    total_commands = 0

    def __init__(self, number: int, address: str, now_ms: int, connection: LinkConnection) -> None:
        super().__init__(number, address=address, now_ms=now_ms)
        self._connection = connection

    @property
    def total_bytes_in(self) -> int:
        return self._connection.received_bytes

    @property
    def total_bytes_out(self) -> int:
        return self._connection.sent_bytes

    def close(self, after_reply: bool) -> None:
        """CLIENT KILL: the server connects again."""
        self._connection.drop("CLIENT KILL")


@dataclass(eq=False, repr=False)
class Connector:
    """Makes connections to other servers. `dial(host, port, connection)` begins to connect, and
    `port()` is the one on which this server listens. `node` is the ID of this server as a member
    of a shard, `start` a number of this process, `primary` the ID of the primary that it follows
    there, and `term` that one's term."""

    config: Config
    keyspace: Keyspace
    persistence: Persistence
    _: KW_ONLY
    dial: Callable[[str, int, LinkConnection], object]
    port: Callable[[], int]
    next_client_id: Callable[[], int]
    node: str = field(default="", init=False)
    start: str = field(default="", init=False)
    primary: str = field(default="", init=False)
    term: int = field(default=0, init=False)

    def opening(self, is_known: bool = True) -> Opening:
        """This server's description of itself. `is_known`: a position identifies the data here, in
        lines of history or in the stream of a Redis."""
        config = self.config
        has_lines = is_known and bool(self.keyspace.histories)
        return Opening(
            user=config.masteruser,
            password=config.masterauth,
            port=config.replica_announce_port
            or (config.tls.replication and config.tls.port)
            or self.port(),
            announced_ip=config.replica_announce_ip,
            version=__version__,
            databases=len(self.keyspace.databases),
            histories=self.keyspace.histories if has_lines else (),
            next_seq=self.persistence.commits.last_seq + 1 if has_lines else 1,
            source=self.keyspace.source if is_known else None,
            node=self.node,
            primary=self.primary,
            term=self.term,
            start=self.start,
        )

    def new(self, owner: Owner, opening: Opening) -> LinkConnection:
        """A connection that `dial` has to make."""
        protocol = LinkProtocol(opening, PAYLOAD_MAX)
        return LinkConnection(owner, protocol, self.config.tls.replication)

    def show(self, connection: LinkConnection, address: str, now_ms: int) -> None:
        """Give the connection to a primary a place in CLIENT LIST."""
        connection.client = PrimaryClient(self.next_client_id(), address, now_ms, connection)

    @property
    def timeout_s(self) -> int:
        """The time for which a primary may be silent."""
        return self.config.repl_timeout


class Dialed(Protocol):
    """An asyncio protocol that learns why it was not connected, too."""

    def connection_lost(self, error: Exception | None) -> None: ...


def dial(
    loop: asyncio.AbstractEventLoop,
    make_context: Callable[[], ssl.SSLContext | None],
    host: str,
    port: int,
    connection: Dialed,
) -> None:
    """Begin to connect. When that fails, `connection.connection_lost` gets the reason.
    `make_context` reads the certificates as they are now; None is a link without TLS."""
    task = loop.create_task(_connect(loop, make_context, host, port, connection))
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


async def _connect(
    loop: asyncio.AbstractEventLoop,
    make_context: Callable[[], ssl.SSLContext | None],
    host: str,
    port: int,
    connection: Dialed,
) -> None:
    factory = lambda: cast(asyncio.BaseProtocol, connection)  # noqa: E731
    try:
        async with asyncio.timeout(_CONNECT_S):
            connect = partial(loop.create_connection, factory)
            await connect_to_host(host, port, connect, make_context())
    except (OSError, TimeoutError, StartError) as error:
        connection.connection_lost(error)
