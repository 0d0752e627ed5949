"""Requests for several nodes that arrive together, against a naive model, and on their way through
a gateway whose nodes refuse some of them or end."""

from __future__ import annotations

import asyncio
import random
from itertools import accumulate, groupby

import pytest
from tests.support.effort import examples
from tests.support.gateway_wires import Gate
from tests.support.resp import encode_command
from tests.support.virtual_time import run_at_once

from millstream.commands.table.loader import load_table
from millstream.server.cluster.slot_map import new_map
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.refused_requests import OVERTAKEN
from millstream.server.gateway.reply_scanner import ReplyScanner
from millstream.server.gateway.routing import ENDED, SPREAD, RequestReader, Routes, requests_in
from millstream.server.gateway.spread_requests import Spread, SpreadPart
from millstream.server.protocol.resp import Limits, encode_reply
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

load_table()
NODES = 3
SLOTS = new_map(NODES).indices()
DOWN = b"-CLUSTERDOWN The cluster is down\r\n"


def node_of(key: str) -> int:
    return SLOTS[cluster_slot_of(key.encode())]


def any_reply(chance: random.Random) -> bytes:
    """Also one that is larger than what is kept of a buffer, and one with an error inside."""
    value = encode_reply([b"a" * chance.choice([0, 3, 200]), None, [1, [b"b\r\n"]]])
    texts = [b"+OK\r\n", b":12\r\n", b"$-1\r\n", b"-ERR no\r\n", b"*2\r\n-MOVED 1 a:1\r\n:1\r\n"]
    large = [encode_reply(b"x" * 70_000)] if chance.random() < 0.02 else []
    return chance.choice([*texts, value, value, *large])


class Model:
    """The same with lists: the node, the request and the reply of each request, and the number of
    bytes that have arrived from each node."""

    def __init__(self, chance: random.Random) -> None:
        keys = [f"k{chance.randrange(40)}" for _ in range(chance.choice([2, 16, 200]))]
        self.requests = [encode_command(["SET", key, "v" * chance.randrange(3)]) for key in keys]
        self.nodes = [node_of(key) for key in keys]
        self.replies = [any_reply(chance) for _ in keys]
        self.streams = [b"".join(self.of_node(self.replies, node)) for node in range(NODES)]
        self.arrived = [0] * NODES

    def of_node(self, items: list[bytes], node: int) -> list[bytes]:
        return [item for item, one in zip(items, self.nodes, strict=True) if one == node]

    def ends(self) -> set[int]:
        """The places in all replies at which one ends."""
        return {0, *accumulate(map(len, self.replies))}

    def state(self) -> tuple[bytes, list[tuple[int, int, bytes, bytes]]]:
        """The bytes that were passed on, and the runs that are left."""
        out = b""
        offsets = [0] * NODES
        rows = []  # of what is left: node, whether it is missing, request, what has arrived
        for node, request, reply in zip(self.nodes, self.requests, self.replies, strict=True):
            begin = offsets[node]
            offsets[node] += len(reply)
            piece = self.streams[node][begin : min(offsets[node], self.arrived[node])]
            is_missing = len(piece) < len(reply)
            if not rows:
                out += piece
                piece = b""
            if is_missing or rows:
                rows.append((node, is_missing, request, piece))
        runs = []
        for node, group in groupby(rows, key=lambda row: row[0]):
            found = list(group)
            left = b"".join(request for _, is_missing, request, _ in found if is_missing)
            missing = sum(is_missing for _, is_missing, _, _ in found)
            runs.append((node, missing, left, b"".join(piece for *_, piece in found)))
        return out, runs


def spread_of(model: Model) -> Spread | None:
    reader = RequestReader(Routes(SLOTS), Limits())
    reader.feed(b"".join(model.requests))
    if reader.next() != SPREAD:
        return None
    assert reader.next() == ENDED
    return reader.spread


def deliver(part: SpreadPart, model: Model, scanner: ReplyScanner, chance: random.Random) -> None:
    """Some more bytes of a node, and perhaps some of the replies to later requests."""
    at, stream = model.arrived[part.node], model.streams[part.node]
    size = chance.choice([1, 30, 500, 100_000])
    piece = stream[at : at + size]
    rest = b":77\r\n:78\r\n" if at + size >= len(stream) else b""
    before = chance.choice([b"", b"abc"])
    end = part.take(scanner, before + piece + rest, len(before))
    assert not scanner.refused
    assert part.taken == end - len(before) <= len(piece)
    model.arrived[part.node] += part.taken
    assert part.missing or model.arrived[part.node] == len(stream)


@pytest.mark.parametrize("seed", range(examples(60)))
def test_replies_are_passed_on_in_the_order_of_the_requests(seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance)
    spread = spread_of(model)
    if spread is None:
        return
    parts = list(spread.parts)
    assert [part.node for part in parts] == list(dict.fromkeys(model.nodes))
    for part in parts:
        assert part.raw == b"".join(model.of_node(model.requests, part.node))
    scanners = [ReplyScanner() for _ in range(NODES)]
    out = b""
    is_first = chance.random() < 0.7  # or: the client waits for earlier replies at the beginning
    while not spread.is_done:
        left = [part for part in parts if part.missing]
        if left:
            part = chance.choice(left)
            deliver(part, model, scanners[part.node], chance)
        is_first = is_first or not left or chance.random() < 0.05
        if not is_first:
            continue
        out += spread.drain()
        expected, runs = model.state()
        assert out == expected
        assert spread.runs() == runs
        assert spread.held_bytes == sum(len(held) for *_, held in runs)
        assert [part.node for part in parts if part.is_next] == [run[0] for run in runs[:1]]
        assert spread.is_inside == (len(out) not in model.ends())
    assert out == b"".join(model.replies)


# ---------------------------------------------------------------- a gateway


class Cluster:
    """Three nodes, of which each owns slots. `done` has the keys of the requests that have run, in
    their order. Slots change their owner, and the gateway hears of it later."""

    def __init__(self, gate: Gate, chance: random.Random, *, may_end: bool) -> None:
        self.owners = list(SLOTS)
        self.done: list[str] = []
        self.gate = gate
        self.chance = chance
        self.may_end = may_end
        self.refused = chance.choice([0.0, 0.02, 0.1])  # of the requests, for no reason
        self._nodes = [Node(self, node) for node in range(NODES)]

    def work(self) -> None:
        gate, chance = self.gate, self.chance
        chance.choice(self._nodes).work()
        if chance.random() < 0.1:
            slot = cluster_slot_of(b"k%d" % chance.randrange(TAGS))
            self.owners[slot] = chance.randrange(NODES)
        if chance.random() < 0.1:
            gate.nodes.routes.set_nodes(self.owners)
            gate.client.note_rerouted()
            if chance.random() < 0.5:
                gate.client.repeat_now()


class Node:
    """Answers each request, and refuses or ends by chance."""

    def __init__(self, cluster: Cluster, node: int) -> None:
        self._cluster = cluster
        self._node = node
        self._upstream: NodeConnection | None = None
        self._replies = b""

    def work(self) -> None:
        """Answer what has arrived, and send a piece of the replies."""
        gate, chance, node = self._cluster.gate, self._cluster.chance, self._node
        if node not in gate.upstreams:
            return
        if gate.upstreams[node] is not self._upstream:
            self._upstream, self._replies = gate.upstreams[node], b""
        for request in requests_in(gate.wires[node].taken(), Limits()):
            self._replies += self._reply(request)
        size = chance.choice([0, 1, 40, 10_000])
        piece, self._replies = self._replies[:size], self._replies[size:]
        if piece:
            self._upstream.data_received(piece)
        if self._cluster.may_end and chance.random() < 0.05 and not self._upstream.is_inside:
            self._upstream.connection_lost(None)
            del gate.upstreams[node]

    def _reply(self, request: bytes) -> bytes:
        cluster = self._cluster
        name, *keys = (word.decode() for word in request.split(b"\r\n")[2::2])
        keys = keys if name == "DEL" else keys[:1]
        slot = cluster_slot_of(keys[0].encode())
        if cluster.owners[slot] != self._node:
            return b"-MOVED %d 10.0.0.9:6455\r\n" % slot
        if cluster.chance.random() < cluster.refused:
            return DOWN
        cluster.done += keys
        return b":%d\r\n" % len(keys) if name == "DEL" else encode_reply(keys[0].encode())


TAGS = 12


class Plan:
    """The requests of a client, and their replies: a request that a later one of the same slot has
    overtaken has not run, and all others have, in their order."""

    def __init__(self, chance: random.Random, name: str) -> None:
        self._chance = chance
        self._name = name
        self._keys: list[list[str]] = []  # of each request
        self._out = b""
        self.ran: list[bool] = []

    def __len__(self) -> int:
        return len(self._keys)

    def requests(self, count: int) -> bytes:
        return b"".join(self._request() for _ in range(count))

    def _request(self) -> bytes:
        number = len(self._keys)
        tags = self._chance.sample(range(TAGS), 2)
        keys = [f"{{k{tag}}}{number}" for tag in tags]
        words = ["DEL", *keys]
        if self._name == "GET" or self._chance.random() < 0.8:
            keys = keys[:1]
            words = [self._name, *keys, *["v"] * (self._name == "SET")]
        self._keys.append(keys)
        return encode_command(words)

    def take(self, out: bytes) -> None:
        """Bytes for the client."""
        self._out += out
        while self._out:
            keys = self._keys[len(self.ran)]
            reply = b":2\r\n" if len(keys) == 2 else encode_reply(keys[0].encode())
            found = OVERTAKEN if self._out.startswith(b"-") else reply
            if not self._out.startswith(found):
                assert found.startswith(self._out)
                break
            self._out = self._out[len(found) :]
            self.ran.append(found == reply)

    def check(self, done: list[str]) -> None:
        places = {key: at for at, key in enumerate(done)}
        assert len(places) == len(done)
        last = [""] * TAGS  # the last key of each slot that has run
        wanted: list[list[str]] = [[] for _ in range(TAGS)]
        for keys, ran in zip(reversed(self._keys), reversed(self.ran), strict=True):
            assert ran == all(key in places for key in keys)
            for key in keys:
                tag = int(key[2 : key.index("}")])
                if key in places:
                    last[tag] = last[tag] or key
                    wanted[tag].insert(0, key)
                else:
                    assert last[tag]  # it has overtaken this one
        for tag, keys in enumerate(wanted):
            assert [key for key in done if key.startswith(f"{{k{tag}}}")] == keys


@pytest.mark.parametrize("may_end", [False, True])
@pytest.mark.parametrize("seed", range(examples(20)))
def test_refused_requests_run_once_and_in_order(
    monkeypatch: pytest.MonkeyPatch, seed: int, *, may_end: bool
) -> None:
    """With reads only, also connections end."""
    chance = random.Random(seed)

    async def body() -> None:
        gate = Gate(10.0)
        monkeypatch.setattr(NodeConnection, "open", lambda made, place: gate.connect(made))
        cluster = Cluster(gate, chance, may_end=may_end)
        plan = Plan(chance, "GET" if may_end else "SET")
        while len(plan) < 400 or len(plan.ran) < len(plan):
            assert not gate.wire.is_closed
            if len(plan) < 400 and chance.random() < 0.3:
                gate.client.data_received(plan.requests(chance.choice([1, 2, 4, 8, 64])))
            cluster.work()
            if chance.random() < 0.3:
                await asyncio.sleep(0.02)
            plan.take(gate.wire.taken())
        assert gate.client.kept.size_bytes == 0
        for upstream in gate.upstreams.values():
            assert upstream.kept_bytes == 0
            assert not upstream.expected
            assert not upstream.has_refused
        if not may_end:
            plan.check(cluster.done)

    run_at_once(body())
