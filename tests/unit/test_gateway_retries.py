"""Requests that nodes have refused, or whose node has ended, at the gateway of a changing map."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from tests.support.gateway_wires import Gate
from tests.support.resp import encode_command
from tests.support.virtual_time import run_at_once

from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.protocol.resp import encode_reply
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

RETRY_S = 5.0
DOWN = b"-CLUSTERDOWN The cluster is down\r\n"
OVERTAKEN = (
    b"-TRYAGAIN the node has refused this request and then run a later one for the same slot: "
    b"send it again\r\n"
)
Check = Callable[[Gate], Coroutine[None, None, None]]


def request(line: str) -> bytes:
    return encode_command(line.split())


@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch) -> Callable[[Check], None]:
    """Runs a check of a gateway that repeats."""

    def run(one: Check) -> None:
        async def within() -> None:
            gate = Gate(RETRY_S)
            gate.client._reader.is_trusted = True  # it has logged in
            monkeypatch.setattr(NodeConnection, "open", lambda made, place: gate.connect(made))
            await one(gate)

        run_at_once(within())

    return run


def node_of(gate: Gate, key: str) -> int:
    return gate.nodes.routes.node_of(cluster_slot_of(key.encode()))


def test_a_refused_part_of_a_pipeline_is_sent_again(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        node = node_of(gate, "a")
        keys = [key for key in map("k{}".format, range(99)) if node_of(gate, key) == node][:5]
        gate.ask(*(f"INCR {key}" for key in keys))
        gate.wires[node].taken()
        gate.upstreams[node].data_received(b":1\r\n" + DOWN + b"-TRYAGAIN wait\r\n:4\r\n" + DOWN)
        assert gate.wire.taken() == b":1\r\n"
        gate.ask("GET a")
        assert not gate.wires[node].taken()
        await asyncio.sleep(0.1)
        assert gate.wires[node].taken() == b"".join(request(f"INCR {keys[at]}") for at in (1, 2, 4))
        assert not gate.wire.taken()
        gate.upstreams[node].data_received(b":2\r\n:3\r\n")
        assert gate.wire.taken() == b":2\r\n:3\r\n:4\r\n"
        assert not gate.wires[node].taken()  # until all of them have run
        gate.upstreams[node].data_received(b":5\r\n")
        assert gate.wires[node].taken() == request("GET a")
        gate.upstreams[node].data_received(b"+value\r\n")
        assert gate.wire.taken() == b":5\r\n+value\r\n"

    check(one)


@pytest.mark.parametrize("later", ["SET a 2", "GET a", "MGET b{a} a", "FLUSHALL", "MULTI"])
def test_a_refused_request_does_not_run_after_a_later_one(
    check: Callable[[Check], None], later: str
) -> None:
    async def one(gate: Gate) -> None:
        node = node_of(gate, "a")
        gate.ask("SET a 1", "GET missing", *(["WATCH a"] if later == "MULTI" else []), later)
        gate.wires[node].taken()
        for upstream in gate.upstreams.values():
            replies = b"+0\r\n" * (len(upstream.expected) + 8)
            count = sum(item.missing for item in upstream.expected)
            if upstream.node == node:
                upstream.data_received(DOWN)
                count -= 1
            upstream.data_received(replies[: 4 * count])
        await asyncio.sleep(1)
        assert gate.wire.taken().startswith(OVERTAKEN)
        assert not gate.wires[node].taken()
        gate.ask("SET a 3")
        assert gate.wires[node].taken() == request("SET a 3")

    check(one)


def test_refused_requests_wait_for_the_replies_to_later_ones(
    check: Callable[[Check], None],
) -> None:
    """Those at the end of a pipeline are repeated in their order, also if a slot has two."""

    async def one(gate: Gate) -> None:
        node, other = node_of(gate, "a"), node_of(gate, "b")
        gate.ask("SET a 1", "SET a 2", "SET b 1", "SET a 3", "SET a 4", "SET b 2")
        gate.wires[node].taken()
        gate.wires[other].taken()
        gate.upstreams[other].data_received(DOWN + DOWN)
        gate.upstreams[node].data_received(DOWN)
        await asyncio.sleep(1)
        assert gate.wires[other].taken() == request("SET b 1") + request("SET b 2")
        assert not gate.wires[node].taken()
        gate.upstreams[node].data_received(b"+OK\r\n" + DOWN)
        assert gate.wire.taken() == OVERTAKEN + b"+OK\r\n"
        await asyncio.sleep(1)
        assert not gate.wires[node].taken()
        gate.upstreams[node].data_received(DOWN)
        await asyncio.sleep(1)
        assert gate.wires[node].taken() == request("SET a 3") + request("SET a 4")
        gate.upstreams[other].data_received(b"+OK\r\n+OK\r\n")
        gate.upstreams[node].data_received(b"+OK\r\n" * 2)
        assert gate.wire.taken() == b"+OK\r\n" * 4

    check(one)


def test_a_refused_request_waits_for_a_blocked_one_for_a_while(
    check: Callable[[Check], None],
) -> None:
    async def one(gate: Gate) -> None:
        node = node_of(gate, "a")
        gate.ask("SET a 1", "XREAD BLOCK 0 STREAMS s{a} $")
        gate.upstreams[node].data_received(DOWN)
        await asyncio.sleep(RETRY_S + 1)
        assert gate.wire.taken() == DOWN
        gate.upstreams[node].data_received(b"*-1\r\n")
        assert gate.wire.taken() == b"*-1\r\n"

    check(one)


def test_a_slot_that_moves_is_not_used_at_two_nodes(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        node, slot = node_of(gate, "a"), cluster_slot_of(b"a")
        other = (node + 1) % 3
        gate.ask("SET a 1")
        gate.wires[node].taken()
        gate.nodes.routes.set_node(slot, other)
        gate.client.note_rerouted()
        gate.ask("SET a 2")
        assert other not in gate.wires
        gate.upstreams[node].data_received(b"-MOVED %d 10.0.0.9:6455\r\n" % slot)
        await asyncio.sleep(1)
        assert gate.wires[other].taken() == request("SET a 1")
        gate.upstreams[other].data_received(b"+1\r\n")
        assert gate.wires[other].taken() == request("SET a 2")
        gate.upstreams[other].data_received(b"+2\r\n")
        assert gate.wire.taken() == b"+1\r\n+2\r\n"

    check(one)


def test_a_refusal_lasts_until_the_time_is_over(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        loop = asyncio.get_running_loop()
        node, slot = node_of(gate, "a"), cluster_slot_of(b"a")
        moved = b"-MOVED %d 10.0.0.9:6455\r\n" % slot
        begin_s = loop.time()
        gate.ask("SET a 1")
        attempts = 0
        while not gate.wire.written:
            if gate.wires[node].taken():
                attempts += 1
                gate.upstreams[node].data_received(moved)
            await asyncio.sleep(0.01)
        assert RETRY_S <= loop.time() - begin_s < RETRY_S + 1
        assert attempts > 10
        assert gate.wire.taken().startswith(b"-TRYAGAIN slot %d is at another node now: " % slot)

    check(one)


def test_a_request_follows_the_map(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        node, slot = node_of(gate, "a"), cluster_slot_of(b"a")
        other = (node + 1) % 3
        gate.ask("SET a 1", "MGET a a{a} b{a}")
        gate.wires[node].taken()
        gate.upstreams[node].data_received(b"-MOVED %d 10.0.0.9:6455\r\n" % slot)
        gate.upstreams[node].data_received(b"-MOVED %d 10.0.0.9:6455\r\n" % slot)
        gate.nodes.routes.set_node(slot, other)
        gate.client.repeat_now()
        assert not gate.wires[node].taken()
        assert gate.wires[other].taken() == request("SET a 1") + request("MGET a a{a} b{a}")
        values = encode_reply([b"1", None, None])
        gate.upstreams[other].data_received(b"+OK\r\n" + values)
        assert gate.wire.taken() == b"+OK\r\n" + values

    check(one)


def test_a_part_that_is_refused_is_divided_again(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        node = node_of(gate, "a")
        same = [f"k{number}" for number in range(200) if node_of(gate, f"k{number}") == node][:2]
        gate.ask(f"DEL a {same[0]} {same[1]}")
        parts = gate.wires[node].taken()
        assert parts == request("DEL a") + request(f"DEL {same[0]}") + request(f"DEL {same[1]}")
        other = (node + 1) % 3
        gate.nodes.routes.set_node(cluster_slot_of(same[0].encode()), other)
        gate.upstreams[node].data_received(b":1\r\n-MOVED 1 10.0.0.9:6455\r\n:1\r\n")
        await asyncio.sleep(0.1)
        assert gate.wires[other].taken() == request(f"DEL {same[0]}")
        gate.upstreams[other].data_received(b":1\r\n")
        assert gate.wire.taken() == b":3\r\n"

    check(one)


def test_reads_survive_the_end_of_a_node(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        node = node_of(gate, "a")
        gate.ask("GET a", "GET b{a}", "XRANGE c{a} - +")
        gate.upstreams[node].data_received(b"+1\r\n+unfin")
        gate.upstreams[node].connection_lost(None)
        assert gate.wire.taken() == b"+1\r\n"
        await asyncio.sleep(0.1)
        assert gate.wires[node].taken() == request("GET b{a}") + request("XRANGE c{a} - +")
        gate.upstreams[node].data_received(b"+2\r\n*0\r\n")
        assert gate.wire.taken() == b"+2\r\n*0\r\n"
        assert not gate.wire.is_closed

    check(one)


@pytest.mark.parametrize("lost", ["SET a 1", "XREADGROUP GROUP g c STREAMS a >", "UNKNOWN a"])
def test_what_may_have_run_ends_the_client(check: Callable[[Check], None], lost: str) -> None:
    async def one(gate: Gate) -> None:
        gate.ask("GET a", lost)
        for upstream in [*gate.upstreams.values()]:
            upstream.connection_lost(None)
        await asyncio.sleep(1)
        assert gate.wire.is_closed
        assert not gate.wire.written

    check(one)


def test_a_reply_of_which_a_part_was_sent_ends_the_client(check: Callable[[Check], None]) -> None:
    async def one(gate: Gate) -> None:
        gate.ask("MGET a{a} b{a}")
        [upstream] = gate.upstreams.values()
        upstream.data_received(b"*2\r\n+1\r\n")
        assert gate.wire.taken() == b"*2\r\n+1\r\n"
        upstream.connection_lost(None)
        assert gate.wire.is_closed

    check(one)


@pytest.mark.parametrize("refusal", [b"MOVED %d 10.0.0.9:6455", b"NOPERM no access to slot %d"])
def test_a_refused_watch_leaves_the_client_free(
    check: Callable[[Check], None], refusal: bytes
) -> None:
    async def one(gate: Gate) -> None:
        node, slot = node_of(gate, "a"), cluster_slot_of(b"a")
        other = (node + 1) % 3
        gate.ask("WATCH a")
        gate.upstreams[node].data_received(b"-" + refusal % slot + b"\r\n")
        assert gate.wire.taken().startswith(b"-")
        gate.wires[node].taken()
        gate.nodes.routes.set_node(slot, other)
        gate.ask("WATCH a", "WATCH b{a}")  # at the other node
        assert gate.wires[other].taken() == request("WATCH a") + request("WATCH b{a}")
        gate.upstreams[other].data_received(b"+OK\r\n-TRYAGAIN wait\r\n")
        assert gate.wire.taken() == b"+OK\r\n-TRYAGAIN wait\r\n"
        gate.ask("WATCH b")  # one of them is watched
        assert gate.wire.taken().startswith(b"-CROSSSLOT ")
        gate.ask("UNWATCH", "WATCH b")
        assert not gate.wires[node].taken()
        gate.upstreams[other].data_received(b"+OK\r\n")
        assert gate.wire.taken() == b"+OK\r\n"

    check(one)


def refused_subscription(gate: Gate) -> tuple[int, list[tuple[int, bytes]]]:
    """Ask a gate for a channel of a node that cannot be reached; the node, and what the map was
    told."""
    told: list[tuple[int, bytes]] = []
    gate.nodes.note_refusal = lambda node, error: told.append((node, error))  # type: ignore[method-assign]
    node = node_of(gate, "a")
    gate.nodes.failed.add(node)
    gate.ask("SSUBSCRIBE a")
    return node, told


def test_a_subscription_at_a_failed_node_looks_at_the_map(
    check: Callable[[Check], None],
) -> None:
    """Without etcd, only that finds the new primary."""

    async def one(gate: Gate) -> None:
        node, told = refused_subscription(gate)
        assert told == [(node, gate.nodes.unreachable(node))]
        gate.nodes.failed.clear()
        gate.client.repeat_now()
        assert gate.wires[node].taken() == request("SSUBSCRIBE a")
        assert gate.host.unserved == 0

    check(one)


def test_a_subscription_that_is_not_sent_again_is_counted() -> None:
    gate = Gate()
    node, told = refused_subscription(gate)
    error = gate.nodes.unreachable(node)
    assert told == [(node, error)]
    assert gate.wire.taken() == error
    assert gate.host.unserved == 1
