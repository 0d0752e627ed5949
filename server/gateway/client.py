"""A client of the gateway: its requests go to the nodes, and the replies come back in order.

A request that changes the connection runs alone: when all earlier replies are there, and before
later requests are looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Protocol, cast

from millstream.commands.table.registry import Command
from millstream.errors import refused_to_subscriber
from millstream.server.cluster.gateway_socket import with_port
from millstream.server.execution.slot_check import positions_of
from millstream.server.gateway import request_policies as policies
from millstream.server.gateway.client_requests import Sending, slot_of
from millstream.server.gateway.client_session import ClientSession
from millstream.server.gateway.client_transaction import ClientTransaction
from millstream.server.gateway.closing_connections import ClosingConnections
from millstream.server.gateway.expected_replies import Answer, Run
from millstream.server.gateway.machine_nodes import Nodes
from millstream.server.gateway.merging import (
    Merge,
    as_standalone,
    merge_of,
)
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.refused_requests import Again
from millstream.server.gateway.reply_scanner import REFUSALS
from millstream.server.gateway.routing import ENDED, INVALID, LARGE, SPREAD, WORDS, RequestReader
from millstream.server.gateway.spread_requests import SpreadPart
from millstream.server.gateway.subscriptions import Subscriptions
from millstream.server.gateway.told_ports import TELL_PORTS
from millstream.server.gateway.transaction import CROSSSLOT, OK, encode_error
from millstream.server.gateway.waiting_reads import WAITS_MAX, WaitingRead, may_wait
from millstream.server.net.keepalive import keep_alive
from millstream.server.protocol.resp import Limits
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

LOCAL = "127.0.0.1"
PING = b"*1\r\n$4\r\nPING\r\n"
PING_REFUSED = b"-NOPERM "  # to a client that is logged in
UNKNOWN = (b"-NOAUTH ", b"-WRONGPASS ")  # a client that is not logged in
IS_FULL = attrgetter("is_full")  # of a connection to a node
REFUSED = "-ERR %s is not served by the gateway: connect to a node\r\n"


class Host(Protocol):
    """The parts that all clients share."""

    nodes: Nodes
    limits: Limits
    keepalive_s: int
    retry_s: float
    requests: int
    unserved: int
    closing: ClosingConnections

    def opened(self, client: Client) -> bytes | None:
        """Registers a client; an error if it is refused."""

    def closed(self, client: Client) -> None: ...
    def soon(self, run: Callable[[], None]) -> None:
        """Call a function after what has arrived by then."""


class Client(asyncio.Protocol):
    def __init__(self, host: Host) -> None:
        self.session = ClientSession()
        self.is_slow = False
        self._host = host
        self._reader = RequestReader(host.nodes.routes, host.limits)
        self._reader.is_trusted = False
        self._sending = Sending(host, self, self._work)
        self._order = self._sending.order
        self.upstreams = self._sending.upstreams
        self.kept = self._order.kept
        self.pass_on, self.pass_on_part = self._order.pass_on, self._order.pass_on_part
        self.push, self.waits_for = self._order.push, self._order.waits_for
        self.refused, self.note_served = self._sending.refused, self._sending.note_served
        # Slots are at other nodes from now on. Those before may still have requests for them.
        self.note_rerouted = self._sending.hold
        self.repeat_now = self._sending.repeat_now
        self._waits: list[WaitingRead] = []
        self._more: list[bytes] = []  # received while requests wait
        self._deferred: Callable[[], None] | None = None  # a request that runs alone
        self._is_alone = False  # it runs
        self._is_ending = False  # no further request is looked at
        self._has_eof = False  # no further request arrives
        self._is_reading = True
        self._is_closed = False
        self._is_working = False
        self._sends_soon = False
        self._transaction = ClientTransaction(self._sending, host.nodes, self._reader)
        self._subscriptions = Subscriptions()
        self.counted = self._subscriptions.counted

    def note_number(self, number: int) -> None:
        """The number of this client of all since the start."""
        self._sending.number = number

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # that of uvloop has its methods
        self._transport = transport
        keep_alive(transport, self._host.keepalive_s)
        name = transport.get_extra_info("sockname")
        self._sending.address = name[0] if isinstance(name, tuple) else LOCAL
        peer = transport.get_extra_info("peername")
        host, port = peer[:2] if isinstance(peer, tuple) else (LOCAL, 0)
        self.session.address = with_port(host, port)
        refusal = self._host.opened(self)
        if refusal is not None:
            transport.write(refusal)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        self._host.closing.discard(self._transport)
        self._sending.close()
        for read in self._waits:
            read.close()
        self._waits.clear()
        self._more.clear()
        self._deferred = None
        self._transaction.leave()
        self._host.closed(self)

    def close(self) -> None:
        """Close the connection after what is already on its way."""
        if not self._is_closed:
            self._is_closed = True
            self._transport.write(self._order.take_out())
            self._transport.close()
            self._host.closing.add(self._transport)

    def eof_received(self) -> bool:
        self._has_eof = True
        self.finish_turn()
        if self._transport.get_extra_info("ssl_object") is None:
            return True  # replies are still sent
        self._host.closing.add(self._transport)
        return False

    def end(self) -> None:
        """Take no further request, and close the connection when all replies are sent."""
        self._is_ending = True
        self.finish_turn()

    def pause_writing(self) -> None:
        self.is_slow = True
        self._update_upstreams()

    def resume_writing(self) -> None:
        self.is_slow = False
        self._update_upstreams()

    def _update_upstreams(self) -> None:
        self.kept.has_paused = False
        for upstream in list(self.upstreams.values()):
            upstream.update_reading()

    # Requests

    def data_received(self, data: bytes) -> None:
        self._more.append(data)
        self.finish_turn()

    def _work(self) -> None:
        """Send requests, as long as none has to wait."""
        if self._is_working:
            return
        self._is_working = True
        host, reader, sending = self._host, self._reader, self._sending
        waiting = self._order.items
        while not self._is_held():
            node = reader.next()
            if node == ENDED and self._more:
                data = self._more[0] if len(self._more) == 1 else b"".join(self._more)
                self._more.clear()
                reader.feed(data)
                node = reader.next()
            while node >= 0 or node == SPREAD:
                host.requests += reader.count
                if node == SPREAD:
                    sending.send_spread(reader.spread)
                else:
                    sending.send(node, reader.raw, reader.count)
                if len(waiting) >= sending.order_max:
                    break
                node = reader.next()
            if node == WORDS:
                self._host.requests += 1
                self._decide()
            elif node == ENDED and not self._more:
                break
            elif node == LARGE:  # only a node knows whether the client has to log in
                self._alone(partial(sending.ask_aside, PING, self._note_trust))
            elif node == INVALID:
                self._answer(encode_error(f"ERR {reader.error}"))
                self._is_ending = True
        self._is_working = False
        for upstream in list(self.upstreams.values()):
            upstream.flush()
        if self.kept.has_paused:
            self._update_upstreams()
        self._send_out()
        self._set_reading(not self._is_held())

    def _is_held(self) -> bool:
        """True if no further request may be looked at now."""
        if not self._order.items:
            if not self._sending.order_max:
                self._sending.end_hold()
            if self._is_alone:
                self._end_alone()
            if self._deferred is not None:
                self._is_alone = True
                run, self._deferred = self._deferred, None
                run()
        return (
            self._is_closed
            or self._is_ending
            or self._is_alone
            or self._deferred is not None
            or len(self._order.items) >= self._sending.order_max
            or any(map(IS_FULL, self.upstreams.values()))
        )

    def _end_alone(self) -> None:
        self._is_alone = False
        used = self._subscriptions.nodes()
        for node, upstream in self.upstreams.items():
            upstream.has_messages = node in used
        self._reader.keeps_together = not (self._transaction.is_open or self._is_limited)

    @property
    def _is_limited(self) -> bool:
        """True for a client with subscriptions that gets them as replies: few commands are allowed,
        as at a node."""
        return not self.session.is_resp3 and bool(self._subscriptions)

    def _set_reading(self, wanted: bool) -> None:
        if wanted != self._is_reading and not self._is_closed:
            self._is_reading = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _alone(self, run: Callable[[], None]) -> None:
        """Run a request when all replies to earlier ones are there, and before later ones."""
        self._deferred = run

    def _decide(self) -> None:
        reader = self._reader
        row, kind, words, raw = reader.command, reader.kind, reader.words, reader.raw
        if row is None or (kind != policies.TRANSACTION and not _takes(row, len(words))):
            self._transaction.send_keyless(raw)
        elif self._is_limited and "subscribed" not in row.traits:
            self._answer(encode_error(refused_to_subscriber(row.name)))
        elif self._is_limited and row.name == "ping":  # a node without subscriptions says PONG
            self._sending.send(min(self._subscriptions.nodes()), raw)
        elif not reader.is_trusted and (kind == policies.REFUSED or row.name == "multi"):
            run = partial(self._treat, row, kind, words, raw)
            self._alone(partial(self._sending.ask_aside, PING, partial(self._note_login, run)))
        else:
            self._treat(row, kind, words, raw)

    def _treat(self, row: Command, kind: int, words: list[bytes], raw: bytes) -> None:
        """A known command."""
        if kind == policies.REFUSED:
            self._transaction.refuse(REFUSED, words)
        elif row.name == "quit":
            self._answer(OK)
            self._is_ending = True
        elif row.name == "reset":
            self._alone(partial(self._reset, raw))
        elif kind == policies.TRANSACTION:
            self._transaction.control(row, words, raw)
        elif self._transaction.is_open:
            self._transaction.queue(row, kind, words, raw)
        else:
            self._run(row, kind, words, raw)

    def _run(self, row: Command, kind: int, words: list[bytes], raw: bytes) -> None:
        """A request outside a transaction."""
        if kind == policies.SESSION:
            self._alone(partial(self._say, row.name, words, raw))
        elif kind == policies.SUBSCRIPTION:
            self._alone(partial(self._subscribe, row, words))
        elif kind == policies.ALL:
            self._ask_all(row, raw)
        elif kind == policies.SPLIT:
            self._split(row, words, raw)
        elif row.name == "scan":
            self._sending.scan(words, raw)
        elif row.name == "info" or row.name in TELL_PORTS:
            self._sending.tell(row.name, raw, self._transport)
        else:
            self._sending.send_by_slot(slot_of(row, words), raw)

    # Sending

    def _answer(self, data: bytes) -> None:
        self._sending.answer(data)

    def _ask_all(self, row: Command, raw: bytes) -> None:
        nodes: Sequence[int] = self._host.nodes.all
        if row.name in ("wait", "waitaof"):  # of the nodes that the client has used
            nodes = list(self.upstreams)
        nodes = nodes or [self._sending.home_node()]
        self._sending.gather([(node, raw) for node in nodes], merge_of(row))

    def _split(self, row: Command, words: list[bytes], raw: bytes) -> None:
        slots = {cluster_slot_of(words[at]) for at in positions_of(row.key_specs, words)}
        is_for_one = len(slots) < 2
        if "any_slots" in row.traits:  # TMREAD
            is_for_one = len(set(self._sending.nodes_of(row, words))) < 2
        if is_for_one:
            self._sending.send_by_slot(min(slots, default=None), raw)
            return
        answer = Answer()
        self._order.append(answer)
        if row.name in policies.SPLIT_READS and may_wait(words):
            self._wait(row, words, answer, 0.0)
        else:
            self._sending.split(row, words, partial(self._order.complete, answer), answer)

    def _wait(self, row: Command, words: list[bytes], answer: Answer, until_s: float) -> None:
        """A read of several slots with BLOCK."""
        nodes = self._host.nodes
        again = partial(self._wait, row, words, answer)
        finish = partial(self._end_wait, answer, again, until_s)
        read = WaitingRead(self._sending, row, words, nodes.routes.node_of, finish)
        failed = [node for node in read.nodes if node in nodes.failed]
        if len(read.nodes) > WAITS_MAX:
            self._order.complete(answer, CROSSSLOT)
        elif failed:
            self._end_wait(answer, again, until_s, read, nodes.unreachable(failed[0]))
        else:
            self._waits.append(read)
            read.begin()

    def _end_wait(
        self, answer: Answer, again: Again, until_s: float, read: WaitingRead, reply: bytes
    ) -> None:
        """A read has its reply. If that is a refusal, none of the nodes has delivered anything."""
        if read in self._waits:
            self._waits.remove(read)
        if not (reply.startswith(REFUSALS) and self._sending.repeat_later(again, until_s)):
            self._order.complete(answer, reply)

    # Requests that run alone

    def _say(self, name: str, words: Sequence[bytes], raw: bytes) -> None:
        """AUTH, HELLO, the name of the client: for all its connections, also later ones."""
        self._tell_all(raw, partial(self._note_said, name, words))

    def _note_said(self, name: str, words: Sequence[bytes], replies: Sequence[bytes]) -> bytes:
        self._reader.is_trusted = True
        self.session.note(name, words)
        return as_standalone(replies[0])

    def _note_trust(self, reply: bytes) -> None:
        """The client has not logged in if it gets these errors."""
        if reply.startswith(UNKNOWN):
            self._answer(encode_error(f"ERR {self._reader.error}"))
            self._is_ending = True
        self._reader.is_trusted = True

    def _note_login(self, run: Callable[[], None], reply: bytes) -> None:
        """Run a request that the gateway answers itself, if the client may send requests."""
        if reply.startswith(UNKNOWN):
            self._answer(reply)
            return
        if reply.startswith(PING_REFUSED) or not reply.startswith(b"-"):
            self._reader.is_trusted = True
        run()

    def _tell_all(self, raw: bytes, merge: Merge) -> None:
        home = self._sending.home_node()
        others = [node for node in self.upstreams if node != home]
        self._sending.gather([(node, raw) for node in (home, *others)], merge, self.close)

    def _reset(self, raw: bytes) -> None:
        self._transaction.leave()
        self._subscriptions.clear()
        self.session.clear()
        self._reader.is_trusted = False
        self._tell_all(raw, lambda replies: replies[0])

    def _subscribe(self, row: Command, words: list[bytes], until_s: float = 0.0) -> None:
        self._is_alone = True
        node = self._sending.home_node()
        if row.key_specs and len(words) > 1:
            node = self._host.nodes.routes.node_of(cluster_slot_of(words[1]))
        again, kind = partial(self._subscribe, row, words), row.name.encode()
        for change in list(self._subscriptions.change(row.name, words, node)):
            if change.node in self._host.nodes.failed:
                change.undo()
                self._sending.repeat_or_fail(change.node, again, self._answer, until_s)
                continue
            upstream = self._sending.upstream(change.node)
            upstream.has_messages = True
            run = Run(upstream, change.confirmations, change.undo, kind, is_open=False)
            run.until_s = until_s
            if words[1:]:  # for one node
                run.again = again
            self._order.append(run)
            upstream.send(change.request, run)
            upstream.flush()

    # Replies

    def divide(self, part: SpreadPart) -> None:
        self._sending.divide(part.spread)

    def finish_turn(self) -> None:
        is_held = not self._is_reading or self._is_ending
        if not (is_held or self._more or self._has_eof or self.kept.has_paused):
            if not self._order.items:
                self._send_out()
            elif not self._sends_soon:  # more replies may come at once, and need no further packet
                self._sends_soon = True
                self._host.soon(self._send_out)
            return
        self._work()
        if self._is_closed or not (self._is_ending or self._has_eof):
            return
        if self._is_ending or not (self._more or self._is_held()):
            if not self._order.items:
                self.close()
            elif self._has_eof:
                waiting = [upstream for read in self._waits for upstream in read.waiting]
                for upstream in [*self.upstreams.values(), *waiting]:
                    upstream.end_of_requests()

    def _send_out(self) -> None:
        self._sends_soon = False
        data = self._order.take_out()
        if data and not self._is_closed:
            self._transport.write(data)

    def upstream_ended(self, upstream: NodeConnection, *, lost: bool) -> None:
        if self.upstreams.get(upstream.node) is upstream:
            del self.upstreams[upstream.node]
        if self._transaction.is_at(upstream):
            if lost:
                self.close()
            else:
                self._transaction.note_lost_node()
        elif lost and not self._wait_again(upstream) and not self._sending.recover(upstream):
            self.close()

    def _wait_again(self, upstream: NodeConnection) -> bool:
        """Begin a read again of which a node has ended, if it delivers nothing."""
        for read in list(self._waits):
            if upstream in read.waiting and not read.delivers and self._host.retry_s:
                read.fail(upstream.unreachable)
                return True
        return False

    def note_failed(self, node: int) -> None:
        """The node hangs or has ended. Requests that it has may have run: as in a crash, the
        connection ends without their replies."""
        self._sending.note_failed(node)
        upstream = self.upstreams.get(node)
        if any(node in read.nodes for read in self._waits):
            self.close()
        elif upstream is not None:
            upstream.give_up()

    def note_moved(self, node: int) -> None:
        """Requests of this node go to another address from now on."""
        waiting = [one for read in self._waits for one in read.waiting if one.node == node]
        for upstream in [*waiting, self.upstreams.get(node)]:
            if upstream is not None:
                upstream.retire()

    @property
    def retries(self) -> int:
        """The number of requests that were sent again."""
        return self._sending.attempts


def _takes(row: Command, count: int) -> bool:
    """True if the command may have this number of words."""
    return count == row.arity or (row.arity < 0 and count >= -row.arity)
