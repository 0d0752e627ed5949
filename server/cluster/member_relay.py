"""PUBLISH and SPUBLISH for the subscribers of a cluster on many machines.

A node sends its messages to each other node with CLUSTER RELAY, over one connection that is made
for the first of them. The members that follow this primary get them with its frames instead, after
those that the publisher has seen. Messages are not stored: those for a node that does not answer,
or that is slow, are dropped and counted.

With cluster-secret-file, the connections are made before the first message: if nodes have different
secrets, the log says so before an election needs them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from millstream.commands.admin.cluster_peers import MessageKind
from millstream.errors import StartError
from millstream.server.cluster.member_actions import Address
from millstream.server.cluster.promise_request import NOT_ACCEPTED
from millstream.server.cluster.rare_warnings import RareWarnings
from millstream.server.cluster.relay import WAITING_MAX_BYTES, Outgoing, Sender
from millstream.server.replication.link_words import encode_request
from millstream.server.replication.name_lookup import connect_to_host
from millstream.server.replication.records import PIECE_BYTES

log = logging.getLogger("millstream.cluster")

CONNECT_S = 1.0
PAUSE_S = 1.0  # after a connection could not be made
CHECK_S = 60.0  # between two looks whether other nodes accept this one
SILENT_S = 5.0  # until a connection without answers is ended
LINE_MAX_BYTES = 4096  # of a reply
NOT_YET = "LOADING "

MakeContext = Callable[[], ssl.SSLContext | None]


class MessageLink:
    """The connection to another node, an asyncio protocol. `secret()` is that of the cluster. A
    message is dropped unless the other node has replied to it; `unanswered` is the number of those
    whose reply may come."""

    def __init__(
        self,
        address: Address,
        secret: Callable[[], bytes],
        make_context: MakeContext,
        loop: asyncio.AbstractEventLoop,
        warnings: RareWarnings,
    ) -> None:
        self.address = address
        self.dropped = 0
        self._secret = secret
        self._make_context = make_context
        self._loop = loop
        self._warnings = warnings
        self._connecting: asyncio.Task[None] | None = None
        self._connection: _Connection | None = None
        self._waiting = bytearray()  # for the connection
        self.unanswered = 0
        self._heard_s = 0.0  # the last answer, or when there began to be messages without one
        self._failed_s = -PAUSE_S

    def send(self, frame: bytes) -> None:
        """Send a message, or drop it."""
        now_s = self._loop.time()
        if self.unanswered and now_s - self._heard_s > SILENT_S:
            self._lose("it has not answered", now_s)
        if self.waiting_bytes + len(frame) > WAITING_MAX_BYTES or now_s - self._failed_s < PAUSE_S:
            self.dropped += 1
            return
        if not self.unanswered:
            self._heard_s = now_s
        self.unanswered += 1
        if self._connection is not None:
            self._connection.write(frame)
            return
        self._waiting += frame
        self.connect()

    def connect(self) -> None:
        """Begin to connect, unless there is a connection."""
        if self._connection is None and self._connecting is None:
            self._connecting = self._loop.create_task(self._connect())

    @property
    def waiting_bytes(self) -> int:
        """The bytes that this process has not sent yet."""
        return len(self._waiting) if self._connection is None else self._connection.waiting_bytes

    async def _connect(self) -> None:
        host, port = self.address
        connection = _Connection(self)
        try:
            context = self._make_context()
            async with asyncio.timeout(CONNECT_S):
                connect = partial(self._loop.create_connection, lambda: connection)
                await connect_to_host(host, port, connect, context)
        except (OSError, TimeoutError, StartError) as problem:
            self._connecting = None
            self._lose(str(problem) or "it has not answered in time", self._loop.time())
            return
        self._connecting = None
        self._connection = connection
        connection.write(encode_request([b"CLUSTER", b"PEER", self._secret()]) + self._waiting)
        self._waiting.clear()

    def answered(self, is_refused: bool) -> None:
        """The other node has replied to a message."""
        self._heard_s = self._loop.time()
        self.unanswered -= 1
        self.dropped += is_refused

    def not_accepted(self, reason: str) -> None:
        """The other node does not accept this one."""
        if not reason.startswith(NOT_YET):
            self._warnings.warn((self.address, reason), NOT_ACCEPTED, *self.address, reason)
        self.refused(reason)

    def refused(self, reason: str) -> None:
        """The other node has refused the secret, or its reply is not valid."""
        self._lose(reason, self._loop.time())

    def connection_lost(self) -> None:
        """The other node has ended the connection. The next message makes another one."""
        self.close()

    def _lose(self, reason: str, now_s: float) -> None:
        log.debug("messages for %s:%d are dropped: %s", *self.address, reason)
        self._failed_s = now_s
        self.close()

    def close(self) -> None:
        """End the connection. The messages without an answer count as dropped."""
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()
        self.dropped += self.unanswered
        self.unanswered = 0
        self._waiting.clear()


class _Connection(asyncio.Protocol):
    """One connection of a `MessageLink`, which sends PEER first."""

    def __init__(self, link: MessageLink) -> None:
        self._link = link
        self._transport: Any = None
        self._received = bytearray()
        self._is_admitted = self._is_over = False

    @property
    def waiting_bytes(self) -> int:
        return int(self._transport.get_write_buffer_size())

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def end(self) -> None:
        self._is_over = True
        self._transport.abort()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        *lines, rest = self._received.split(b"\r\n")
        self._received = rest
        for line in lines:
            self._take(line)
        if len(rest) > LINE_MAX_BYTES and not self._is_over:
            self._link.refused("its reply is too long")

    def _take(self, line: bytearray) -> None:
        if self._is_over:
            return
        if self._is_admitted:
            self._link.answered(line.startswith(b"-"))
        elif line.startswith(b"-"):
            self._link.not_accepted(line[1:].decode("utf-8", "replace"))
        else:
            self._is_admitted = True

    def connection_lost(self, error: Exception | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._link.connection_lost()


class MemberRelay:
    """The links to all other nodes: the members of the own shard, and those of the others.
    `checks`: whether to connect before there is a message."""

    def __init__(
        self,
        secret: Callable[[], bytes],
        make_context: MakeContext,
        sender: Sender,
        loop: asyncio.AbstractEventLoop,
        warnings: RareWarnings,
        *,
        checks: bool = False,
    ) -> None:
        self._secret = secret
        self._make_context = make_context
        self._loop = loop
        self._checks = checks
        self._timer: asyncio.TimerHandle | None = None
        self._warnings = warnings
        self._shard, self._others = Outgoing(sender), Outgoing(sender)
        self._links: dict[str, MessageLink] = {}
        self._gone = 0  # messages that were dropped for nodes that are not there any more

    @property
    def dropped(self) -> int:
        """The number of messages that were not sent to a node."""
        lost = self._shard.lost + self._others.lost
        return self._gone + lost + sum(link.dropped for link in self._links.values())

    def set_nodes(self, shard: Mapping[str, Address], others: Mapping[str, Address]) -> None:
        """The addresses of the other members of this shard, and of those of other shards."""
        addresses = {**shard, **others}
        for node, link in list(self._links.items()):
            if addresses.get(node) != link.address:
                link.close()
                self._gone += link.dropped
                del self._links[node]
        for node, address in addresses.items():
            if node not in self._links:
                self._links[node] = MessageLink(
                    address, self._secret, self._make_context, self._loop, self._warnings
                )
                if self._checks:
                    self._links[node].connect()
        if self._checks and self._timer is None:
            self._check_later()
        self._shard.ways = [self._links[node] for node in shard]
        self._others.ways = [self._links[node] for node in others]

    def _check_later(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._check)

    def _check(self) -> None:
        """Connect where there is no connection: a node may have been started again, with another
        secret."""
        for link in self._links.values():
            link.connect()
        self._check_later()

    def log_in_again(self) -> None:
        """The secret has changed."""
        for link in self._links.values():
            link.close()
            link.connect()

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool, is_primary: bool) -> None:
        """Send a message to the other nodes as soon as it may be seen; one of a shard channel only
        to those of this shard. The members that follow this primary get it otherwise, unless it is
        too long for that."""
        kind = MessageKind.SHARD if is_shard else MessageKind.CHANNEL
        frame = encode_request([b"CLUSTER", b"RELAY", kind.value.encode(), channel, message])
        if not is_primary or len(channel) + len(message) > PIECE_BYTES:
            self._shard.add(frame)
        if not is_shard:
            self._others.add(frame)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.close()
