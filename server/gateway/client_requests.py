"""The requests of one client on their way: connections to nodes, the order of the replies, and
requests that are sent again because a node has refused them.

A refusal says that the request did not run. It is sent again until `gateway-retry` is over: to the
node that has the slot by then. If a connection ends, requests that only read are sent again, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from millstream.commands.table.registry import Command
from millstream.server.execution.slot_check import positions_of
from millstream.server.gateway import request_policies as policies
from millstream.server.gateway.expected_replies import Answer, Call, Run
from millstream.server.gateway.machine_nodes import Nodes
from millstream.server.gateway.merging import (
    Merge,
    as_standalone,
    joined_cursor,
    split,
    split_cursor,
)
from millstream.server.gateway.node_connection import NodeConnection, Receiver
from millstream.server.gateway.order import Gathering, ReplyOrder
from millstream.server.gateway.refused_requests import (
    ALL_SLOTS,
    Again,
    Refused,
    Repeats,
    slots_in,
)
from millstream.server.gateway.reply_scanner import REFUSALS
from millstream.server.gateway.routing import RequestReader, requests_in
from millstream.server.gateway.spread_requests import Spread
from millstream.server.gateway.told_ports import with_ports
from millstream.server.protocol.resp import Limits, encode_reply
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of

ORDER_MAX = 4096  # runs and answers that wait
MOVED_AGAIN = b"-TRYAGAIN slot %s is at another node now: send the request again\r\n"


class Shared(Protocol):
    """The parts that all clients share."""

    nodes: Nodes
    limits: Limits
    retry_s: float
    unserved: int


class Sending:
    """`order_max`: no further request is looked at while this number waits; 0 until the replies to
    all earlier ones are there."""

    def __init__(self, host: Shared, client: Receiver, resume: Callable[[], None]) -> None:
        """`resume` is called after requests were sent again."""
        self.upstreams: dict[int, NodeConnection] = {}
        self.order = ReplyOrder()
        self.order_max = ORDER_MAX
        self.address = ""  # of the gateway to which the client has connected
        self.number = 0  # of the client
        self._host = host
        self._client: Receiver | None = client
        self._aside: NodeConnection | None = None
        self._question: tuple[bytes, Callable[[bytes], None]] | None = None  # sent there
        self._repeats = Repeats(resume)
        self._home: int | None = None
        self._is_keeping = host.retry_s > 0  # requests, until they are answered

    @property
    def attempts(self) -> int:
        return self._repeats.count

    # Connections

    def home_node(self) -> int:
        """The node for requests without keys: one that runs."""
        nodes = self._host.nodes
        if self._home is None or self._home in nodes.failed:
            running = [node for node in nodes.all if node not in nodes.failed]
            self._home = running[self.number % len(running)] if running else None
        return (nodes.all or [0])[0] if self._home is None else self._home

    def node_of(self, slot: int | None) -> int:
        """The node for requests of a slot, or without keys."""
        return self.home_node() if slot is None else self._host.nodes.routes.node_of(slot)

    def upstream(self, node: int) -> NodeConnection:
        """The connection to a node."""
        found = self.upstreams.get(node)
        if found is None:
            found = self.upstreams[node] = self.new_upstream(node)
        return found

    def new_upstream(self, node: int) -> NodeConnection:
        """Another connection to a node."""
        assert self._client is not None
        unreachable = self._host.nodes.unreachable(node)
        made = NodeConnection(self._client, node, unreachable, finds_refusals=self._is_keeping)
        made.open(self._host.nodes.place_of(node, self.address))
        return made

    # Requests

    def answer(self, data: bytes) -> None:
        """A reply of the gateway itself."""
        answer = Answer()
        self.order.append(answer)
        self.order.complete(answer, data)

    def send(self, node: int, raw: bytes, count: int = 1, *, is_open: bool = True) -> None:
        """Requests for one node, whose replies the client gets as they are. Unless `is_open`, they
        are not sent again, nor to another node: those of a transaction."""
        if node in self._host.nodes.failed:
            self._refuse(node, raw, count, is_open)
            return
        upstream = self.upstream(node)
        run = self.order.continued(upstream) if is_open else None
        if run is None:
            run = Run(upstream, 0, is_open=is_open)
            self.order.append(run)
        run.missing += count
        if self._is_keeping and is_open:
            run.keep(raw, count)
        upstream.send(raw, run)

    def send_spread(self, spread: Spread) -> None:
        """Requests for several nodes, whose replies the client gets as they are."""
        failed, upstreams = self._host.nodes.failed, self.upstreams
        for part in spread.parts:
            upstream = upstreams.get(part.node)
            if part.node in failed or (upstream is not None and upstream.has_messages):
                for node, count, raw, _ in spread.runs():
                    self.send(node, raw, count)
                return
        self.order.append(spread)
        for part in spread.parts:
            raw = part.raw
            upstream = part.upstream = self.upstream(part.node)
            if self._is_keeping:
                part.kept_bytes = len(raw)
                upstream.kept_bytes += len(raw)
            upstream.send(raw, part)
        if not self._is_keeping:
            spread.forget_requests()

    def divide(self, spread: Spread) -> None:
        """Replace it with runs of one node each, which can be sent again."""
        upstreams = {part.node: part.upstream for part in spread.parts}
        missing: dict[int, list[Run]] = {node: [] for node in upstreams}
        runs = []
        for node, count, raw, data in spread.runs():
            run = Run(upstreams[node], count)
            run.data += data
            runs.append(run)
            if count:
                missing[node].append(run)
                if self._is_keeping:
                    run.keep(raw, count)
        self.order.divide(spread, runs)
        for part in spread.parts:
            if part.missing:
                part.upstream.divide(part, missing[part.node])

    def _refuse(self, node: int, raw: bytes, count: int, is_open: bool) -> None:
        """The node cannot be asked at present."""
        error = self._host.nodes.unreachable(node)
        self._host.nodes.note_refusal(node, error)
        if not (self._is_keeping and is_open):
            self._host.unserved += count
            self.answer(error * count)
            return
        for request in requests_in(raw, self._host.limits):
            answer = Answer()
            self.order.append(answer)
            self._repeat(Refused(partial(self._send_again, answer, request), 0.0))

    def send_by_slot(self, slot: int | None, raw: bytes) -> None:
        self.send(self.node_of(slot), raw)

    def gather(
        self,
        requests: Sequence[tuple[int, bytes]],
        merge: Merge,
        when_mixed: Callable[[], None] | None = None,
    ) -> None:
        """Requests to several nodes, whose replies become one."""
        answer = Answer()
        self.order.append(answer)
        finish = partial(self.order.complete, answer)
        gathering = Gathering(self.order.kept, len(requests), merge, finish, when_mixed)
        for part, (node, raw) in enumerate(requests):
            self._ask(node, raw, partial(gathering.take, part), answer)

    def ask_aside(self, request: bytes, take: Callable[[bytes], object]) -> None:
        """Ask a node on a connection of its own: not in the transaction of the client, nor between
        its messages. The client waits."""
        answer = Answer()
        self.order.append(answer)

        def done(reply: bytes) -> None:
            self._drop_aside()
            take(reply)
            self.order.complete(answer, b"")

        self._question = request, done
        self._begin_aside()

    def _begin_aside(self) -> None:
        assert self._question is not None
        request, done = self._question
        aside = self._aside = self.new_upstream(self.home_node())
        aside.send(request, Call(done))

    def note_failed(self, node: int) -> None:
        """Ask another node what this one has not answered."""
        aside = self._aside
        if aside is not None and aside.node == node:
            aside.drop()
            self._begin_aside()

    def _drop_aside(self) -> None:
        aside, self._aside, self._question = self._aside, None, None
        if aside is not None:
            aside.drop()

    def scan(self, words: list[bytes], raw: bytes) -> None:
        """SCAN, of the node that its cursor carries."""
        nodes = self._host.nodes.all
        found = split_cursor(words[1], len(nodes)) if len(words) > 1 and nodes else None
        if found is None:
            self.send(self.home_node(), raw)
            return
        at, cursor = found
        request = encode_reply([words[0], cursor, *words[2:]])
        merge = partial(_with_node, at=at, count=len(nodes))
        self.gather([(nodes[at], request)], merge)

    def tell(self, name: str, raw: bytes, transport: asyncio.BaseTransport) -> None:
        """INFO, or what nodes tell about their addresses, in the way that the client sees them."""
        is_tls = transport.get_extra_info("ssl_object") is not None
        ports = {} if name == "info" else self._host.nodes.ports_for(is_tls=is_tls)

        def merge(replies: Sequence[bytes]) -> bytes:
            return as_standalone(replies[0]) if name == "info" else with_ports(replies[0], ports)

        self.gather([(self.home_node(), raw)], merge)

    def split(
        self,
        row: Command,
        words: list[bytes],
        take: Callable[[bytes], object],
        answer: Answer,
        until_s: float = 0.0,
    ) -> None:
        """A request for several nodes, as parts of which each may be sent again."""
        node_of = self._host.nodes.routes.node_of
        parts, merge = split(row, words, node_of)
        gathering = Gathering(self.order.kept, len(parts), merge, take)
        for at, part in enumerate(parts):
            node = node_of(part.slot)
            self._ask_part(part.request, partial(gathering.take, at), answer, node, until_s)

    def _ask(
        self,
        node: int,
        raw: bytes,
        take: Callable[[bytes], object],
        answer: Answer,
        again: Again | None = None,
        until_s: float = 0.0,
    ) -> None:
        """A request whose whole reply `take` gets. `again` sends it once more; None: to the same
        node."""
        again = again or partial(self._ask, node, raw, take, answer, None)
        if node not in self._host.nodes.failed:
            call = Call(take, 1, answer)
            if self._is_keeping:
                call.raw, call.again, call.until_s = raw, again, until_s
            self.upstream(node).send(raw, call)
            return
        self.repeat_or_fail(node, again, take, until_s)

    def repeat_or_fail(
        self, node: int, again: Again, fail: Callable[[bytes], object], until_s: float
    ) -> None:
        """The node cannot be asked at present: `again` is called later, or `fail` with the
        error."""
        error = self._host.nodes.unreachable(node)
        self._host.nodes.note_refusal(node, error)
        if not self.repeat_later(again, until_s):
            self._host.unserved += 1
            fail(error)

    def _ask_part(
        self,
        raw: bytes,
        take: Callable[[bytes], object],
        answer: Answer,
        node: int,
        until_s: float = 0.0,
    ) -> None:
        again = partial(self._ask_part_again, raw, take, answer)
        self._ask(node, raw, take, answer, again, until_s)

    def _ask_part_again(
        self, raw: bytes, take: Callable[[bytes], object], answer: Answer, until_s: float
    ) -> None:
        """The keys may be at another node, or at several ones, since the map has changed."""
        node, reader = self._place_of(raw)
        if node is not None:
            self._ask_part(raw, take, answer, node, until_s)
        else:
            assert reader.command is not None
            self.split(reader.command, reader.words, take, answer, until_s)

    def nodes_of(self, row: Command, words: list[bytes]) -> list[int]:
        """The node of each key."""
        node_of = self._host.nodes.routes.node_of
        return [node_of(cluster_slot_of(words[at])) for at in positions_of(row.key_specs, words)]

    # Requests that are sent again

    def _may_repeat(self, until_s: float) -> bool:
        """True before the end of `gateway-retry`; 0: the request was not refused before."""
        return self._is_keeping and (not until_s or asyncio.get_running_loop().time() < until_s)

    def _repeat(self, refused: Refused) -> None:
        is_first = not refused.until_s
        if is_first:
            refused.until_s = asyncio.get_running_loop().time() + self._host.retry_s
        self._repeats.add(refused, is_first=is_first)
        self.hold()

    def repeat_later(self, again: Again, until_s: float) -> bool:
        """Call a function after a pause, and no later request before; False after the end of
        `gateway-retry`."""
        if not self._may_repeat(until_s):
            return False
        self._repeat(Refused(again, until_s))
        return True

    def repeat_now(self) -> None:
        """The map has changed."""
        self._repeats.send()

    def hold(self) -> None:
        """Look at no further request until the replies to all earlier ones are there: another node
        may get requests for the same slot, or the same one."""
        self.order_max = 0

    def end_hold(self) -> None:
        """There are no earlier requests, except refused subscriptions."""
        if not self._repeats:
            self.order_max = ORDER_MAX

    def _read(self, raw: bytes) -> tuple[int, RequestReader]:
        """The node of a request, or WORDS."""
        reader = RequestReader(self._host.nodes.routes, self._host.limits)
        reader.feed(raw)
        return reader.next(), reader

    def _place_of(self, raw: bytes) -> tuple[int | None, RequestReader]:
        """The node of a request; None if it has to be divided among several."""
        node, reader = self._read(raw)
        row = reader.command
        if node >= 0:
            return node, reader
        if row is None:
            return self.home_node(), reader
        if reader.kind == policies.SPLIT and len({*self.nodes_of(row, reader.words)}) > 1:
            return None, reader
        return self.node_of(slot_of(row, reader.words)), reader

    def _send_again(self, answer: Answer, raw: bytes, until_s: float) -> None:
        """A request whose reply the client gets as it is."""
        node, reader = self._place_of(raw)
        complete = partial(self.order.complete, answer)
        if node is None:
            assert reader.command is not None
            self.split(reader.command, reader.words, complete, answer, until_s)
            return
        if node in self._host.nodes.failed:
            again = partial(self._send_again, answer, raw)
            self.repeat_or_fail(node, again, complete, until_s)
            return
        upstream = self.upstream(node)
        run = Run(upstream, 1, until_s=until_s)
        run.keep(raw, 1)
        self.order.replace(answer, run)
        upstream.send(raw, run)

    def refused(self, upstream: NodeConnection, item: Run | Call, error: bytes) -> bytes | None:
        """A request did not run, or was not sent at all. The error for the client, or None if the
        request is taken from the connection and sent again."""
        nodes = self._host.nodes
        is_unreachable = error == upstream.unreachable
        if not (is_unreachable or error.startswith(REFUSALS)):
            if upstream.has_refused:
                self.note_served(upstream, item)
            return error
        nodes.note_refusal(upstream.node, error)
        if item.may_repeat and self._may_repeat(item.until_s):
            self._take_back(upstream, item, error)
            return None
        if is_unreachable:
            self._host.unserved += 1
        return self._for_client(error)

    def _for_client(self, error: bytes) -> bytes:
        """The error for a request that is not sent again."""
        if error.startswith(b"-MOVED ") and self._is_keeping:
            return MOVED_AGAIN % error.split()[1]
        return error

    def _take_back(self, upstream: NodeConnection, item: Run | Call, error: bytes) -> None:
        """Send the next request of a connection again, later."""
        if not upstream.has_refused:
            upstream.divide_all()
        slots = self._slots_of(item)
        again, fail = item.again, None
        if isinstance(item, Call):
            fail = item.take
        elif again is not None:
            self.order.drop(item)
        else:
            answer = Answer()
            raw = item.next_request(self._host.limits)
            self.order.put_before(item, answer)
            again = partial(self._send_again, answer, raw)
            fail = partial(self.order.complete, answer)
        assert again is not None
        error = self._for_client(error)
        self._repeat(Refused(again, item.until_s, upstream, slots, error, fail))
        upstream.take_back(item)

    def _slots_of(self, item: Run | Call) -> frozenset[int] | None:
        """The slots of the next request of an item."""
        if isinstance(item, Call):
            raw = item.raw
        else:
            raw = item.next_request(self._host.limits) if item.sent else b""
        if not raw:
            return ALL_SLOTS
        reader = RequestReader(self._host.nodes.routes, self._host.limits)
        reader.keeps_together = False  # so that it returns words
        reader.feed(raw)
        reader.next()
        return slots_in(reader.command, reader.words)

    def note_served(self, upstream: NodeConnection, item: Run | Call) -> None:
        """The next request of an item has run. Of those that the same node has refused before,
        those for the same slots may not be sent again."""
        self._repeats.note_served(upstream, self._slots_of(item))

    def recover(self, upstream: NodeConnection) -> bool:
        """A connection has ended. If all its requests only read, send them again; false if one may
        have changed something."""
        if upstream is self._aside:
            self._begin_aside()
            return True
        if not self._is_keeping or upstream.has_messages or upstream.is_inside:
            return False
        items = upstream.divide_all()
        for item in items:
            if not item.may_repeat or not self._may_repeat(item.until_s):
                return False
            for raw in item.requests(self._host.limits):
                reader = self._read(raw)[1]
                row = reader.row
                if row is None or "readonly" not in row.flags:
                    return False
        for item in items:
            while upstream.expected and upstream.expected[0] is item:
                self._take_back(upstream, item, upstream.unreachable)
        return True

    def close(self) -> None:
        """The client has gone. The memory of its requests is free now, without the garbage
        collector, so nothing that refers to the client is kept."""
        for upstream in self.upstreams.values():
            upstream.drop()
        self.upstreams.clear()
        self._drop_aside()
        self.order.clear()
        self._repeats.close()
        self._client = None


def _with_node(replies: Sequence[bytes], at: int, count: int) -> bytes:
    return joined_cursor(replies[0], at, count)


def slot_of(row: Command, words: list[bytes]) -> int | None:
    """The slot of the first key; None without keys. Of CLUSTER's questions about a slot, this."""
    if row.name in ("cluster|countkeysinslot", "cluster|getkeysinslot") and len(words) > 2:
        return int(words[2]) % CLUSTER_SLOTS if words[2].isdigit() else None
    places = positions_of(row.key_specs, words)
    return cluster_slot_of(words[places[0]]) if places else None
