"""A connection of the gateway to a node, for one client.

It is opened when the client first needs the node, and begins with what the client has said about
itself (HELLO, AUTH, its name). Requests wait until the node has accepted that.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast

from millstream.server.clients import PROTECTED, TOO_MANY_CLIENTS
from millstream.server.cluster.gateway_socket import introduction, socket_to_node
from millstream.server.gateway.client_session import ClientSession
from millstream.server.gateway.expected_replies import Call, Kept, Run
from millstream.server.gateway.machine_nodes import Place
from millstream.server.gateway.reply_scanner import ReplyError, ReplyScanner
from millstream.server.gateway.spread_requests import SpreadPart
from millstream.server.gateway.subscriptions import ENDED, SHARD_KINDS
from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER
from millstream.server.replication.name_lookup import connect_to_host

# Of a client's replies that wait for earlier ones, and of requests that wait for a connection.
WAITING_MAX_BYTES = 1 << 20
CONNECT_S = 5.0
RETIRE_S = 2.0  # for the replies of a node that has another address now
MESSAGES = (b"message", b"pmessage", b"smessage")
FEW_FILES = LineLimit()
CLIENT_REFUSALS = (TOO_MANY_CLIENTS, PROTECTED)  # before a node has read anything
REFUSAL_MAX_BYTES = 1024
ENDED_STARTS = tuple(kind + b"3\r\n$12\r\n" + ENDED for kind in (b"*", b">"))


class Receiver(Protocol):
    """The client at the other side."""

    session: ClientSession
    is_slow: bool
    kept: Kept

    def waits_for(self, item: Run | SpreadPart | Call) -> bool:
        """True if the next reply to the client is made of this one."""

    def pass_on_part(self, part: SpreadPart) -> None:
        """Send what a part of a spread has taken, unless earlier replies are missing."""

    def divide(self, part: SpreadPart) -> None:
        """Replace all parts of a spread with runs."""

    def pass_on(self, run: Run, piece: bytes) -> None:
        """Send a piece of a run, or keep it in the run."""

    def counted(self, reply: bytes) -> bytes:
        """A confirmation of a shard channel with the number of those at all nodes."""

    def push(self, message: bytes) -> None:
        """Send a message that is no reply."""

    def note_served(self, upstream: NodeConnection, item: Run | Call) -> None:
        """The next request of an item was not refused, after others were."""

    def refused(self, upstream: NodeConnection, item: Run | Call, error: bytes) -> bytes | None:
        """A request has got an error and may not have run. The error for the client, or None if
        the request is taken from the connection, and is sent again."""

    def upstream_ended(self, upstream: NodeConnection, *, lost: bool) -> None:
        """The connection is gone; `lost`: with requests that may have run."""

    def finish_turn(self) -> None:
        """All received bytes have been passed on, or the node takes requests again."""


class NodeConnection(asyncio.Protocol):
    """`unreachable` is the reply to requests that cannot be sent. With `finds_refusals`, the client
    is asked about each refusal of a node."""

    def __init__(
        self, client: Receiver, node: int, unreachable: bytes, *, finds_refusals: bool = False
    ) -> None:
        self.node = node
        self.unreachable = unreachable
        self.kept_bytes = 0  # of requests that may be sent again
        self.is_retiring = False  # the requests of this node go to another address
        self.has_messages = False  # there are subscriptions
        self.has_refused = False  # requests that will be sent again when `expected` is empty
        self._finds_refusals = finds_refusals
        self.expected: deque[Run | SpreadPart | Call] = deque()
        self._client = client
        self._transport: asyncio.Transport | None = None
        self._scanner = ReplyScanner(finds_refusals)
        self._rest = b""
        self._introduction = b""  # at a Unix socket
        self._message = bytearray()  # the beginning of a message, or of a reply between messages
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._is_choked = False
        self._is_new = True  # nothing was received
        self._is_ready = self._has_ended = self._is_paused = False
        self._opening: asyncio.Task[None] | None = None
        self._when_ended: Callable[[], object] | None = None

    @property
    def is_full(self) -> bool:
        """True if no further request may be sent, until the node has read those before it."""
        return (
            self._is_choked
            or self.is_retiring
            or self._out_bytes > WAITING_MAX_BYTES
            or self.kept_bytes > WAITING_MAX_BYTES
        )

    @property
    def is_inside(self) -> bool:
        """True if a part of a reply has been passed on."""
        return not (self._message or self._scanner.is_between)

    # Opening

    def open(self, place: Place) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._connect(place))

    async def _connect(self, place: Place) -> None:
        host, port, tls, folder = place
        try:
            async with asyncio.timeout(CONNECT_S):
                loop = asyncio.get_running_loop()
                found = None if folder is None else socket_to_node(folder)
                if found is not None:
                    self._introduction = introduction(self._client.session.address, host)
                    await loop.create_unix_connection(lambda: self, sock=found)
                    return
                connect = partial(loop.create_connection, lambda: self)
                await connect_to_host(host, port, connect, tls)
        except (OSError, TimeoutError) as problem:
            LOGGER.debug("gateway  %s:%d: %s", host, port, problem)
            if problem.errno == errno.EMFILE:
                self._warn_of_files(host, port)
            self.refuse(self.unreachable)

    @staticmethod
    def _warn_of_files(host: str, port: int) -> None:
        more = FEW_FILES.more()
        if more is not None:
            LOGGER.warning(
                "gateway  no connection to %s:%d, because all files are open that the process may "
                "open: raise the limit (ulimit -n, LimitNOFILE=), or lower maxclients%s",
                host, port, more,
            )  # fmt: skip

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # that of uvloop has its methods
        self._transport = transport
        if self._has_ended:
            transport.abort()
            return
        said = self._client.session.requests()
        if said:
            self.expected.appendleft(Call(self._note_accepted, len(said)))
            transport.write(self._introduction + b"".join(said))
        else:
            self._out.insert(0, self._introduction)
            self._begin()

    def _note_accepted(self, reply: bytes) -> None:
        if reply.startswith(b"-"):
            self.refuse(reply)
        elif self.expected[0].missing == 1:
            self._begin()

    def _begin(self) -> None:
        self._is_ready = True
        self.flush()
        self._client.finish_turn()

    # Requests

    def send(self, request: bytes, item: Run | SpreadPart | Call) -> None:
        """Send requests with the next `flush`; `item` gets the replies."""
        self._out.append(request)
        self._out_bytes += len(request)
        if not self.expected or self.expected[-1] is not item:
            self.expected.append(item)
            if isinstance(item, Call):
                self.kept_bytes += len(item.raw)

    def flush(self) -> None:
        if self._is_ready and self._out and self._transport is not None:
            data, self._out, self._out_bytes = b"".join(self._out), [], 0
            self._transport.write(data)

    def end_of_requests(self) -> None:
        """The client sends no more. The node decides what happens to a read that waits."""
        if self._transport is not None and self._is_ready and self._transport.can_write_eof():
            self._transport.write_eof()  # later, if the node has not accepted the client yet

    def end_when_done(self, ended: Callable[[], object]) -> None:
        """End the requests, and call `ended` when the node has closed the connection. What it has
        sent before arrives first."""
        self._when_ended = ended
        if self._is_ready:
            self.end_of_requests()
        else:  # the node has no request
            self.close()
            ended()

    def pause_writing(self) -> None:
        self._is_choked = True

    def resume_writing(self) -> None:
        self._is_choked = False
        self._client.finish_turn()

    # Replies

    def data_received(self, data: bytes) -> None:
        if self._is_new:
            self._is_new = False
            if data.startswith(CLIENT_REFUSALS):
                self.refuse(data, has_read=False)
                return
        data, self._rest = self._rest + data, b""
        try:
            at = 0
            before = -1
            while before < at < len(data) and not self._has_ended:
                before, at = at, self._take(data, at)
            self._rest = data[at:]
        except ReplyError as problem:
            LOGGER.error("gateway  node %04d: %s", self.node + 1, problem)
            self.close()
            self._client.upstream_ended(self, lost=True)
        if self.is_retiring and not self.expected:
            self.give_up()
        self.update_reading()
        self._client.finish_turn()

    def _take(self, data: bytes, at: int) -> int:
        """Pass on the replies from `at` on that are for one item; where they end."""
        is_usual = self.expected and not (self.has_messages or self._message)
        if not is_usual and self._may_be_message(data[at : at + 1]):
            return self._take_message(data, at)
        item = self.expected[0]
        if isinstance(item, SpreadPart):
            return self._take_part(item, data, at)
        is_many = isinstance(item, Run) and not (self.has_refused or self.has_messages)
        end = self._scanner.scan(data, at, item.missing if is_many else 1)
        if self._scanner.refused:
            self._give_error(item, data[at:end])
        else:
            if self.has_refused and self._scanner.complete:
                self._client.note_served(self, item)
            self._give(item, data[at:end], self._scanner.complete)
        return end

    def _may_be_message(self, first: bytes) -> bool:
        """True unless these bytes, of which this is the first one, are certainly of a reply."""
        if self._message or not self.expected:
            return True
        if not self.has_messages or self.is_inside:
            return False
        return first == b">" or not self._client.session.is_resp3 or self._confirmed() != b""

    def _confirmed(self) -> bytes:
        """The name of the command whose confirmation comes next, b"" if it is another one."""
        item = self.expected[0] if self.expected else None
        return item.confirms if isinstance(item, Run) else b""

    def _take_part(self, part: SpreadPart, data: bytes, at: int) -> int:
        """As `_take`, for requests that were divided among nodes."""
        end = part.take(self._scanner, data, at)
        if part.taken:
            self._client.pass_on_part(part)
            if not part.missing:
                self.kept_bytes -= part.kept_bytes
                self.expected.popleft()
        if self._scanner.refused:
            self._give_error(self._first(), data[at + part.taken : end])
        return end

    def _first(self) -> Run | Call:
        """The item of the next reply. A part of a spread is replaced with runs."""
        item = self.expected[0]
        if isinstance(item, SpreadPart):
            self._client.divide(item)
            item = self.expected[0]
        assert not isinstance(item, SpreadPart)
        return item

    def divide(self, part: SpreadPart, runs: list[Run]) -> None:
        """Replace a part of a spread with runs."""
        at = self.expected.index(part)
        del self.expected[at]
        self.kept_bytes -= part.kept_bytes
        for run in reversed(runs):
            self.expected.insert(at, run)

    def divide_all(self) -> list[Run | Call]:
        """Replace all parts of spreads with runs; all that is expected."""
        for item in list(self.expected):
            if isinstance(item, SpreadPart):
                self._client.divide(item)
        return [item for item in self.expected if not isinstance(item, SpreadPart)]

    def _give_error(self, item: Run | Call, error: bytes) -> None:
        """The reply of the next request of an item, unless the request is sent again."""
        if isinstance(item, Run):
            item.note_error()
        found = self._client.refused(self, item, error) if self._finds_refusals else error
        if found is not None:
            self._give(item, found, 1)

    def take_back(self, item: Run | Call) -> None:
        """The next request will have no reply here."""
        item.missing -= 1
        self._note_done(item)

    def _note_done(self, item: Run | Call) -> None:
        """The next requests of an item have no reply to come."""
        if isinstance(item, Call):
            self.kept_bytes -= len(item.raw)
        elif item.sent:
            item.trim()
        if item.missing == 0 and self.expected and self.expected[0] is item:
            self.expected.popleft()

    def _give(self, item: Run | Call, piece: bytes, complete: int) -> None:
        if isinstance(item, Run):
            item.missing -= complete
            self._client.pass_on(item, piece)
        else:
            self._client.kept.size_bytes += item.add(piece)
            if complete:
                self._client.kept.size_bytes -= len(item.data)
                item.take(item.whole())
                item.missing -= 1
        if complete:
            self._note_done(item)

    def _take_message(self, data: bytes, at: int) -> int:
        """As `_take`, for one reply or message, as a whole."""
        end = self._scanner.scan(data, at, 1)
        self._message += data[at:end]
        if not self._scanner.complete:
            return end
        reply = bytes(self._message)
        self._message.clear()
        if self.expected and not self._is_message(reply):
            item = self._first()
            if reply.startswith(b"-"):
                self._give_error(item, reply)
            else:
                if self.has_refused:
                    self._client.note_served(self, item)
                is_counted = self._confirmed() in SHARD_KINDS
                self._give(item, self._client.counted(reply) if is_counted else reply, 1)
        elif reply[:1] == b"-":
            self.refuse(reply)  # the node takes no more clients
        else:
            is_counted = reply.startswith(ENDED_STARTS)
            self._client.push(self._client.counted(reply) if is_counted else reply)
        return end

    def _is_message(self, reply: bytes) -> bool:
        """True for a message of a channel, and for the end of a subscription that the client has
        not asked for. Confirmations are replies. In RESP3 an array is a reply, whatever its
        elements are."""
        is_resp3 = self._client.session.is_resp3
        if reply[:1] != b">" and (is_resp3 or reply[:1] != b"*"):
            return False
        words = reply.split(b"\r\n", 3)
        kind = words[2] if len(words) > 2 else b""
        return kind in MESSAGES or (kind == ENDED and self._confirmed() != ENDED)

    def update_reading(self) -> None:
        """Stop reading while the client does not read, or while too much waits for the replies of
        other nodes. The node of the next reply is read."""
        client = self._client
        is_usual = not client.is_slow and client.kept.size_bytes <= WAITING_MAX_BYTES
        if self._transport is None or self._has_ended or (is_usual and not self._is_paused):
            return
        is_too_early = (
            client.kept.size_bytes > WAITING_MAX_BYTES
            and bool(self.expected)
            and not client.waits_for(self.expected[0])
        )
        if is_too_early:
            client.kept.has_paused = True
        wanted = client.is_slow or is_too_early
        if wanted != self._is_paused:
            self._is_paused = wanted
            if wanted:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # The end

    def refuse(self, error: bytes, *, has_read: bool = True) -> None:
        """The node does not serve this client: all requests, none of which was sent, get this
        error. Those that were sent may have run, if the node has read any."""
        if self._has_ended:
            return
        was_ready = self._is_ready
        self.close()
        if was_ready and has_read and self.expected:
            self._client.upstream_ended(self, lost=True)
            return
        self._client.upstream_ended(self, lost=False)
        while self.expected:
            item = self._first()
            if isinstance(item, Call) and item.take == self._note_accepted:
                self.expected.popleft()
            else:
                self._give_error(item, error)
        self._client.finish_turn()

    def retire(self) -> None:
        """The node has another address from now on. What was sent may still be answered, for a
        while."""
        if not self.expected and not self.has_messages:
            self.give_up()
        elif not self.is_retiring:
            self.is_retiring = True
            asyncio.get_running_loop().call_later(RETIRE_S, self.give_up)

    def give_up(self) -> None:
        """End the connection as if the node had ended it."""
        self.connection_lost(None)
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._has_ended:
            return
        refusal = self._unread() if self._is_new and exc is not None else b""
        if refusal.startswith(CLIENT_REFUSALS):
            self.refuse(refusal, has_read=False)
            return
        if not self._is_ready:
            self.refuse(self.unreachable)
            return
        self._has_ended = True
        if self._when_ended is not None:
            self._when_ended()
            self._client.finish_turn()
            return
        self._client.upstream_ended(self, lost=bool(self.expected) or self.has_messages)

    def _unread(self) -> bytes:
        """The bytes that had arrived when a write failed: the transport ends without them."""
        ended = None if self._transport is None else self._transport.get_extra_info("socket")
        if ended is None or ended.fileno() < 0:
            return b""
        with contextlib.suppress(OSError):
            return os.read(ended.fileno(), REFUSAL_MAX_BYTES)
        return b""

    def close(self) -> None:
        self._has_ended = True
        if self._transport is not None:
            self._transport.abort()

    def drop(self) -> None:
        """Close, and free what is on its way: no reply is wanted."""
        self.close()
        self._when_ended = None
        self.expected.clear()
        self._message.clear()
        self._out, self._out_bytes = [], 0
