"""One connection of a replica to its primary, from the connect to its end.

The link on it speaks the protocol without I/O; this passes bytes between it and the transport.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol

from millstream import __version__
from millstream.server.durability.data_files import in_words
from millstream.server.replication.link import Link, Opening

if TYPE_CHECKING:
    from millstream.server.replication.node import Node, Transport
    from millstream.server.replication.primary_client import PrimaryClient


class Owner(Protocol):
    """Who connects: a `Following` or an `Announcement`."""

    @property
    def uses_tls(self) -> bool: ...
    def receive(self, attempt: Attempt, data: bytes) -> None: ...
    def connection_lost(self, attempt: Attempt, reason: str) -> None: ...
    def lost(self, attempt: Attempt, reason: str) -> None: ...


def opening_of(node: Node, knows: bool = True) -> Opening:
    """What this server says about itself; with `knows`, which frames it has."""
    config = node.config
    return Opening(
        user=config.masteruser,
        password=config.masterauth,
        port=config.replica_announce_port
        or (config.tls_replication and config.tls_port)
        or node.port,
        announced_ip=config.replica_announce_ip,
        version=__version__,
        databases=len(node.keyspace.databases),
        histories=node.keyspace.histories if knows else (),
        next_seq=node.persistence.last_seq + 1 if knows else 1,
    )


def why_lost(error: Exception | None, uses_tls: bool, unanswered: bool) -> str:
    """Why a connection has ended, with the directive to look at if TLS is the reason. A server
    closes a connection without an answer when the other side does not speak TLS, or lacks a
    certificate."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted: {error.verify_message}; tls-ca-cert-file names the "
            "authority"
        )
    if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
        return "this port does not speak TLS; tls-replication needs the tls-port of the primary"
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


class Attempt:
    """An asyncio protocol. `is_over`: what still arrives is ignored."""

    def __init__(self, owner: Owner, link: Link) -> None:
        self.link = link
        self.transport: Transport | None = None
        self._owner = owner
        self._is_paused = False
        self.is_over = False
        self.received_bytes = self.sent_bytes = 0
        self.client: PrimaryClient | None = None

    def connection_made(self, transport: Transport) -> None:
        self.transport = transport
        if self.is_over:
            transport.abort()
        else:
            self.flush()

    def data_received(self, data: bytes) -> None:
        if not self.is_over:
            self.received_bytes += len(data)
            self._owner.receive(self, data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over:
            uses_tls, unanswered = self._owner.uses_tls, self.link.is_unanswered
            self._owner.connection_lost(self, why_lost(error, uses_tls, unanswered))

    def flush(self) -> None:
        if self.transport is not None and self.link.output and not self.is_over:
            data = bytes(self.link.output)
            self.link.output.clear()
            self.sent_bytes += len(data)
            self.transport.write(data)

    def say_alive(self) -> None:
        """Acknowledge nothing, so that the primary does not end a link that is silent for long."""
        self.link.acknowledge(0, -1, 0)
        self.flush()

    def drop(self, reason: str) -> None:
        """End the connection and connect again."""
        if not self.is_over:
            self._owner.lost(self, reason)
            self.end()

    def read_more(self, wanted: bool) -> None:
        """Pause or resume reading."""
        if self.transport is None or wanted is not self._is_paused or self.is_over:
            return
        self._is_paused = not wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def finish(self) -> None:
        """End the connection after everything is sent."""
        self.flush()
        self.is_over = True
        if self.transport is not None:
            self.transport.close()

    def end(self) -> None:
        self.is_over = True
        if self.transport is not None:
            self.transport.abort()
