"""The connections to the nodes of a cluster, in place of the one to a single server.

The URL may be that of any node, or of the gateway. Each request goes to the node of its key. While
a node does not answer, its requests fail at once with the reason, and those of others do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from redis.exceptions import MovedError, ResponseError

from millstream.dashboard.server_link import (
    RequestRefused,
    Requests,
    ServerFacts,
    ServerLink,
    Unavailable,
    Word,
)
from millstream.node_figures import (
    FoundNode,
    NodeFigures,
    NodeTotals,
    is_of_cluster,
    is_of_gateway,
    read_shards,
    slot_nodes,
    totals_of,
)
from millstream.remote import NOT_SERVED, info_fields
from millstream.server_url import url_of_node
from millstream.slot_routing import (
    MOVES_MAX,
    Address,
    SlotNodes,
    keys_of,
    moved_to,
    slot_of,
)

PROBE_S = 2.0

Answer = TypeVar("Answer")


class NodeGone(ResponseError):
    """The reply to a request whose node does not answer, or may not serve it now."""


class NodeLink:
    """The connections to a node: one for pages, and one to look whether it answers. `problem` is
    the reason why it does not."""

    def __init__(self, url: str, found: FoundNode) -> None:
        address = url_of_node(url, *found.address)
        self.found = found
        self.link = ServerLink(address)
        self.problem: str | None = None
        self.figures = NodeFigures(found, {}, {})  # of the last look
        self.has_tinfo = False
        self._probe = ServerLink(address, PROBE_S)

    async def look(self) -> None:
        """Read the figures of the node. When it answers again, pages get a new connection."""
        facts = await self._answer(self._probe.describe())
        cluster = None if facts is None else await self._answer(self._probe.call("CLUSTER", "INFO"))
        if facts is None or cluster is None:
            return
        if self.problem is not None:
            await self.link.close()
        self.problem, self.has_tinfo = None, facts.has_tinfo
        self.figures = NodeFigures(self.found, facts.info, info_fields(cluster))

    async def shards(self) -> Any:
        """The reply to CLUSTER SHARDS; None if the node does not answer."""
        return await self._answer(self._probe.call("CLUSTER", "SHARDS"))

    async def _answer(self, asked: Awaitable[Answer]) -> Answer | None:
        try:
            async with asyncio.timeout(PROBE_S):
                return await asked
        except (Unavailable, RequestRefused) as problem:
            self.fail(str(problem))
        except TimeoutError:
            self.fail(f"{self.link.name}: it has not answered within {PROBE_S:.0f} s")
        return None

    def fail(self, problem: str) -> None:
        self.problem = problem
        self.figures = NodeFigures(self.found, {}, {}, problem)

    async def close(self) -> None:
        await self.link.close()
        await self._probe.close()


class ClusterLink(Requests):
    """Requests to the server of a URL, or to the nodes if it belongs to a cluster. `nodes` are all
    of them, by their shards; a single server has none."""

    def __init__(self, url: str) -> None:
        """ValueError for an invalid URL."""
        self.nodes: list[NodeLink] = []
        self._url = url
        self._given = ServerLink(url)
        self.name = self._given.name
        self._slots: SlotNodes | None = None
        self._is_known = False  # whether it is a cluster
        self._is_gateway = False
        self._finding = asyncio.Lock()

    async def close(self) -> None:
        await self._given.close()
        for node in self.nodes:
            await node.close()

    # The nodes

    async def find_nodes(self) -> None:
        """Look whether the server belongs to a cluster, if that is not known."""
        async with self._finding:
            if self._is_known:
                return
            info = info_fields(await self._given.call("INFO", "cluster"))
            if is_of_cluster(info):
                self._is_gateway = is_of_gateway(info)
                self._note_nodes(await self._given.call("CLUSTER", "SHARDS"))
            self._is_known = True

    async def describe(self) -> ServerFacts:
        """Those of a node that answers. `run_id` names all nodes that do."""
        await self.find_nodes()
        if not self.nodes:
            facts = await self._given.describe()
            self._is_known = not is_of_cluster(facts.info)  # it may have been started again
            return facts
        await self._look()
        if self.has_one:
            return await self._given.describe()
        answers = [node for node in self.nodes if node.problem is None]
        run_ids = " ".join(node.figures.info.get("run_id", "") for node in answers)
        return ServerFacts({**answers[0].figures.info, "run_id": run_ids}, answers[0].has_tinfo)

    async def _look(self) -> None:
        """Read the map of the cluster, and the figures of all nodes. Unavailable if no node
        answers."""
        had_failed = {node.found.address for node in self.nodes if node.problem is not None}
        reply = await self._read_shards()
        for node in self._note_nodes(reply) if reply is not None else ():
            await node.close()
        await asyncio.gather(
            *(
                node.look()
                for node in self.nodes
                if node.problem is None or node.found.address in had_failed
            )
        )
        figures = self.figures
        for one in figures:
            one.set_lag(figures)
        if not self._is_gateway and all(node.problem is not None for node in self.nodes):
            raise Unavailable(self.nodes[0].problem or "")

    async def _read_shards(self) -> Any:
        """The reply of the first node that answers; None if there is none."""
        for node in [node for node in self.nodes if node.problem is None]:
            reply = await node.shards()
            if reply is not None:
                return reply
        with suppress(Unavailable, RequestRefused):
            return await self._given.call("CLUSTER", "SHARDS")
        return None

    def _note_nodes(self, reply: Any) -> list[NodeLink]:
        """Take the nodes of a reply to CLUSTER SHARDS. The result are those that have left."""
        found = read_shards(reply, self._asked, uses_tls=self._given.uses_tls)
        before = {node.found.address: node for node in self.nodes}
        self.nodes = []
        for one in found:
            node = before.pop(one.address, None) or NodeLink(self._url, one)
            node.found = one
            self.nodes.append(node)
        self._slots = slot_nodes(found)
        return list(before.values())

    @property
    def _asked(self) -> Address:
        return Address(self._given.host, 0)

    @property
    def missing(self) -> list[NodeLink]:
        """The primaries that do not answer: their streams are not listed."""
        if self._goes_through_gateway:
            return []
        return [node for node in self.nodes if node.found.ranges and node.problem is not None]

    @property
    def figures(self) -> list[NodeFigures]:
        return [node.figures for node in self.nodes]

    @property
    def totals(self) -> NodeTotals:
        return totals_of(self.figures)

    @property
    def _goes_through_gateway(self) -> bool:
        """True if only the gateway can be reached: it passes requests on to the nodes."""
        return self._is_gateway and all(node.problem is not None for node in self.nodes)

    @property
    def has_one(self) -> bool:
        """True if all requests go to the server of the URL."""
        return not self.nodes or self._goes_through_gateway

    async def primaries(self) -> Sequence[Requests]:
        await self.find_nodes()
        if self.has_one:
            return [self._given]
        return [node.link for node in self.nodes if node.found.ranges and node.problem is None]

    async def servers(self) -> Sequence[ServerLink]:
        """All servers that answer."""
        await self.find_nodes()
        if self.has_one:
            return [self._given]
        return [node.link for node in self.nodes if node.problem is None]

    async def server_named(self, name: str) -> ServerLink | None:
        """The node with this address, or the first one that answers if the name is empty. None if
        there is no such node."""
        servers = await self.servers()
        if self.has_one or (not name and servers):
            return servers[0]
        named = (node for node in self.nodes if name in ("", node.link.name))
        return next((node.link for node in named), None)

    def may_serve(self, key: bytes) -> bool:
        if self.has_one:
            return True
        node = self._node_at(self._address_of(key))
        return node is not None and node.problem is None

    def url_for(self, key: bytes) -> str:
        """The URL of the server that serves a key."""
        address = self._address_of(key)
        if self.has_one or address is None:
            return self._url
        return url_of_node(self._url, *address)

    def _address_of(self, key: bytes) -> Address | None:
        return None if self._slots is None else self._slots.node_of(slot_of(key))

    def _node_at(self, address: Address | None) -> NodeLink | None:
        return next((node for node in self.nodes if node.found.address == address), None)

    # Requests

    async def batch(
        self, requests: Sequence[Sequence[Word]], db: int = 0, begin: Sequence[Word] = ()
    ) -> list[Any]:
        if not self._is_known:
            await self.find_nodes()
        if self.has_one or not requests:
            return await self._given.batch(requests, db, begin)
        if begin:
            return await self._together(requests, db, begin)
        replies: list[Any] = [None] * len(requests)
        left: Sequence[int] = range(len(requests))
        for _ in range(MOVES_MAX):
            by_node: dict[Address | None, list[int]] = {}
            for number in left:
                by_node.setdefault(self._address_for(requests[number]), []).append(number)
            parts = await asyncio.gather(
                *(
                    self._ask(address, [requests[number] for number in numbers], db)
                    for address, numbers in by_node.items()
                )
            )
            for numbers, part in zip(by_node.values(), parts, strict=True):
                for number, reply in zip(numbers, part, strict=True):
                    replies[number] = reply
            left = [number for number in left if isinstance(replies[number], MovedError)]
            if not left:
                break
            for number in left:
                self._note_moved(replies[number])
        if all(isinstance(reply, NodeGone) for reply in replies):
            raise Unavailable(str(replies[0]))
        return replies

    async def _together(
        self, requests: Sequence[Sequence[Word]], db: int, begin: Sequence[Word]
    ) -> list[Any]:
        """A transaction. After MOVED nothing of it has run."""
        for _ in range(MOVES_MAX):
            replies = await self._ask(self._address_for(requests[0]), requests, db, begin)
            moved = [reply for reply in replies if isinstance(reply, MovedError)]
            if not moved:
                break
            self._note_moved(moved[0])
        if isinstance(replies[0], NodeGone):
            raise Unavailable(str(replies[0]))
        return replies

    def _address_for(self, request: Sequence[Word]) -> Address | None:
        """The node of a request; None if it has no key."""
        keys = keys_of(request)
        if not keys:
            return next(
                (node.found.address for node in self.nodes if node.problem is None),
                self.nodes[0].found.address,
            )
        key = keys[0]
        return self._address_of(key if isinstance(key, bytes) else str(key).encode())

    async def _ask(
        self,
        address: Address | None,
        requests: Sequence[Sequence[Word]],
        db: int,
        begin: Sequence[Word] = (),
    ) -> list[Any]:
        """The replies of a node. Those that it does not give are NodeGone."""
        node = self._node_at(address)
        if node is None:
            return [NodeGone(f"{self.name}: no node serves the slot")] * len(requests)
        if node.problem is not None:
            return [NodeGone(node.problem)] * len(requests)
        try:
            replies = await node.link.batch(requests, db, begin)
        except Unavailable as problem:
            node.fail(str(problem))  # until the next look
            return [NodeGone(str(problem))] * len(requests)
        return [
            NodeGone(f"{node.link.name}: {reply}") if _is_not_served(reply) else reply
            for reply in replies
        ]

    def _note_moved(self, moved: MovedError) -> None:
        """A slot has another node than the map says, as after a failover."""
        address = moved_to(moved, self._asked)
        if self._slots is not None:
            self._slots = self._slots.with_node(moved.slot_id, address)
        if self._node_at(address) is None:
            found = FoundNode("", address, 0, True, (), "online")
            self.nodes.append(NodeLink(self._url, found))


def _is_not_served(reply: object) -> bool:
    """True for an error of a node that owns the slot, but may not serve it now."""
    return isinstance(reply, NOT_SERVED) and not isinstance(reply, MovedError)
