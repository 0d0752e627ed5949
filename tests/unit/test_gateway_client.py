"""A client of the gateway between transports that only record what is written."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Sequence

import pytest
import uvloop
from tests.support.gateway_wires import Gate, Host, Wire
from tests.support.resp import encode_command
from tests.support.virtual_time import run_at_once
from tests.support.waiting import DEADLINE_S

from millstream.server.gateway import closing_connections
from millstream.server.gateway.client import Client
from millstream.server.gateway.closing_connections import ClosingConnections
from millstream.server.gateway.machine_nodes import Place
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.transaction import EXECABORT
from millstream.server.protocol.resp import encode_reply
from millstream.storage.keyspace.cluster_slots import cluster_slot_of


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(NodeConnection, "open", lambda upstream, place: gate.connect(upstream))
    return gate


MESSAGE = encode_reply([b"message", b"x", b"text"])
ENDED = encode_reply([b"unsubscribe", b"x", 0])


def test_a_message_does_not_follow_the_end_of_its_subscription(gate: Gate) -> None:
    gate.ask("SUBSCRIBE x")
    [node] = gate.upstreams
    gate.upstreams[node].data_received(encode_reply([b"subscribe", b"x", 1]))
    gate.ask("UNSUBSCRIBE")
    gate.wire.taken()
    gate.upstreams[node].data_received(MESSAGE + ENDED)
    assert gate.wire.taken() == MESSAGE + ENDED


def test_a_message_in_pieces_is_no_part_of_another_reply(gate: Gate) -> None:
    gate.ask("SUBSCRIBE x")
    [node] = gate.upstreams
    gate.upstreams[node].data_received(encode_reply([b"subscribe", b"x", 1]))
    gate.wire.taken()
    for at in range(len(MESSAGE)):
        gate.upstreams[node].data_received(MESSAGE[at : at + 1])
    assert gate.wire.taken() == MESSAGE


def test_the_end_of_a_client_reaches_later_nodes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    later: list[NodeConnection] = []
    monkeypatch.setattr(NodeConnection, "open", lambda upstream, place: later.append(upstream))
    gate.ask("XREAD BLOCK 0 STREAMS a $")
    assert gate.client.eof_received()
    gate.connect(later[0])
    [wire] = gate.wires.values()
    assert wire.written == encode_command(["XREAD", "BLOCK", "0", "STREAMS", "a", "$"])
    assert wire.has_ended


def test_a_node_without_a_file_for_its_connection_is_explained(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate()
    places: list[tuple[NodeConnection, Place]] = []
    monkeypatch.setattr(NodeConnection, "open", lambda *given: places.append(given))
    gate.ask("GET a")
    [(upstream, place)] = places
    opening = upstream._connect(place)
    made = resource.getrlimit(resource.RLIMIT_NOFILE)

    async def connect() -> None:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1, made[1]))
            await opening
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, made)

    asyncio.run(connect())
    assert gate.wire.taken().startswith(b"-CLUSTERDOWN Hash slot not served")
    assert "because all files are open that the process may open: raise the limit" in caplog.text


class FullHost(Host):
    """Refuses clients. `gone` are those whose connection has ended."""

    def __init__(self) -> None:
        super().__init__(0)
        self.closing = ClosingConnections()
        self.gone = asyncio.Event()

    def opened(self, client: Client) -> bytes:
        return b"-ERR %s\r\n" % bytes(16 << 20)  # more than sockets take

    def closed(self, client: Client) -> None:
        self.gone.set()


def test_a_closed_client_that_does_not_read_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(closing_connections, "LOOK_S", 0.1)

    async def run() -> None:
        host = FullHost()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Client(host), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()):
            async with asyncio.timeout(DEADLINE_S):
                await host.gone.wait()
        server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


class ClosedWire(Wire):
    def __init__(self, unsent_bytes: Sequence[int]) -> None:
        super().__init__()
        self._unsent_bytes = iter(unsent_bytes)

    def get_write_buffer_size(self) -> int:
        return next(self._unsent_bytes)


def test_a_closed_client_may_read_slowly() -> None:
    closing = ClosingConnections()
    slow, silent = ClosedWire([9, 8, 7, 7]), ClosedWire([9, 9])

    async def run() -> list[tuple[bool, bool]]:
        for wire in (slow, silent):
            closing.add(Gate.as_transport(wire))
        found = []
        for _ in range(4):
            await asyncio.sleep(closing_connections.LOOK_S + 0.1)
            found.append((slow.is_closed, silent.is_closed))
        return found

    assert run_at_once(run()) == [(False, False), (False, True), (False, True), (True, True)]


def test_a_client_may_end_before_a_node_has_accepted_it(gate: Gate) -> None:
    gate.ask("HELLO 3")
    [home] = gate.upstreams
    gate.upstreams[home].data_received(encode_reply([]))
    for key in "abc":  # one key of each node
        gate.ask(f"GET {key}")
    assert gate.client.eof_received()
    others = [node for node in range(3) if node != home]
    assert not any(gate.wires[node].has_ended for node in others)
    for node in others:
        assert gate.wires[node].taken() == encode_command(["HELLO", "3"])
        gate.upstreams[node].data_received(encode_reply([]))
        assert b"GET" in gate.wires[node].taken()
        assert gate.wires[node].has_ended
    gate.wire.taken()
    for upstream in list(gate.upstreams.values()):
        upstream.data_received(b"+value\r\n")
    assert gate.wire.taken() == b"+value\r\n" * 3
    assert gate.wire.is_closed


CLOSED = b"sunsubscribe"  # of a shard channel, also without a request: its slot has moved


def push(*words: bytes | int) -> bytes:
    return b">" + encode_reply(list(words))[1:]


def node_of(gate: Gate, key: str) -> int:
    return gate.nodes.routes.node_of(cluster_slot_of(key.encode()))


def in_resp3(gate: Gate) -> NodeConnection:
    """The connection to the node of x, to which the client is subscribed."""
    gate.ask("HELLO 3")
    [home] = gate.upstreams.values()
    home.data_received(encode_reply([]))
    gate.ask("SSUBSCRIBE x")
    upstream = gate.upstreams[node_of(gate, "x")]
    if upstream is not home:
        upstream.data_received(encode_reply([]))
    upstream.data_received(push(b"ssubscribe", b"x", 1))
    gate.wire.taken()
    return upstream


def test_a_reply_between_messages_is_passed_on_in_pieces(gate: Gate) -> None:
    upstream = in_resp3(gate)
    gate.ask("GET x", "GET x")
    upstream.data_received(push(b"smessage", b"x", b"1") + b"$4\r\nte")
    assert gate.wire.taken() == push(b"smessage", b"x", b"1") + b"$4\r\nte"
    upstream.data_received(b"xt\r\n" + push(b"smessage", b"x", b"2") + b"+OK\r\n")
    assert gate.wire.taken() == b"xt\r\n" + push(b"smessage", b"x", b"2") + b"+OK\r\n"
    assert not upstream.expected


def test_the_end_of_a_subscription_is_no_reply(gate: Gate) -> None:
    upstream = in_resp3(gate)
    [key, *_] = [one for one in "abc" if node_of(gate, one) != upstream.node]
    gate.ask(f"GET {key}", "GET x")
    late = gate.upstreams[node_of(gate, key)]
    ended = push(CLOSED, b"x", 0)
    upstream.data_received(ended + b"+second\r\n")
    assert gate.wire.taken() == ended
    if len(late.expected) > 1:  # the node has not accepted the client yet
        late.data_received(encode_reply([]))
    late.data_received(b"+first\r\n")
    assert gate.wire.taken() == b"+first\r\n+second\r\n"


def test_the_end_of_a_subscription_confirms_nothing(gate: Gate) -> None:
    gate.ask("SSUBSCRIBE x")
    [upstream] = gate.upstreams.values()
    upstream.data_received(encode_reply([b"ssubscribe", b"x", 1]))
    gate.ask("SSUBSCRIBE {x}y")
    gate.wire.taken()
    ended, error = encode_reply([CLOSED, b"x", 0]), b"-MOVED 1 h:1\r\n"
    upstream.data_received(ended + error)
    assert gate.wire.taken() == ended + error
    assert not gate.wire.is_closed
    assert not upstream.expected


@pytest.mark.parametrize("is_resp3", [False, True])
def test_shard_channels_of_all_nodes_are_counted(gate: Gate, is_resp3: bool) -> None:
    gate.client.session.is_resp3 = is_resp3
    said = push if is_resp3 else lambda *words: encode_reply(list(words))
    nodes = []
    for number, key in enumerate("abc", 1):  # one key of each node
        gate.ask(f"SSUBSCRIBE {key}")
        nodes.append(gate.upstreams[node_of(gate, key)])
        nodes[-1].data_received(said(b"ssubscribe", key.encode(), 1))
        assert gate.wire.taken() == said(b"ssubscribe", key.encode(), number)
    gate.ask("SUNSUBSCRIBE a")
    nodes[0].data_received(said(CLOSED, b"a", 0))
    assert gate.wire.taken() == said(CLOSED, b"a", 2)
    nodes[1].data_received(said(CLOSED, b"b", 0))  # its slot has moved
    assert gate.wire.taken() == said(CLOSED, b"b", 1)
    gate.ask("SSUBSCRIBE a {a}2")
    nodes[0].data_received(said(b"ssubscribe", b"a", 1) + said(b"ssubscribe", b"{a}2", 2))
    assert gate.wire.taken() == said(b"ssubscribe", b"a", 2) + said(b"ssubscribe", b"{a}2", 3)
    gate.ask("SUNSUBSCRIBE")
    nodes[0].data_received(said(CLOSED, b"a", 1) + said(CLOSED, b"{a}2", 0))
    nodes[2].data_received(said(CLOSED, b"c", 0))
    ended = [said(CLOSED, b"c", 2), said(CLOSED, b"a", 1), said(CLOSED, b"{a}2", 0)]
    assert gate.wire.taken() == b"".join(ended)


# ---------------------------------------------------------------- what the gateway answers itself

NOAUTH = b"-NOAUTH Authentication required.\r\n"


@pytest.mark.parametrize("line", ["MULTI", "CONFIG GET port", "CLIENT LIST"])
def test_a_client_has_to_log_in_for_what_the_gateway_answers(gate: Gate, line: str) -> None:
    gate.ask(line, line)
    for _ in range(2):
        [home] = gate.upstreams.values()
        home.flush()  # a connection is usually made later
        assert gate.wires[home.node].taken() == encode_command(["PING"])
        assert gate.wire.taken() == b""
        gate.upstreams.clear()
        home.data_received(NOAUTH)
        assert gate.wire.taken() == NOAUTH
    gate.ask("MULTI", "CONFIG GET port")
    [home] = gate.upstreams.values()
    home.data_received(b"-NOPERM this user has no permissions to run the 'ping' command\r\n")
    assert gate.wire.taken().startswith(b"+OK\r\n-ERR CONFIG is not served by the gateway")


def test_a_transaction_after_the_question_is_one(gate: Gate) -> None:
    gate.ask("MULTI", "SET a 1")
    [home] = gate.upstreams.values()
    home.data_received(b"+PONG\r\n")
    assert gate.wire.taken() == b"+OK\r\n"
    node = node_of(gate, "a")
    assert gate.wires[node].taken() == encode_command(["MULTI"]) + encode_command(["SET", "a", "1"])
    gate.upstreams[node].data_received(b"+OK\r\n+QUEUED\r\n")
    assert gate.wire.taken() == b"+QUEUED\r\n"
    gate.ask("GET b")
    assert gate.wire.taken().startswith(b"-CROSSSLOT ")


@pytest.mark.parametrize("command", ["SUBSCRIBE", "PSUBSCRIBE", "SSUBSCRIBE"])
def test_a_subscriber_without_resp3_may_send_few_commands(gate: Gate, command: str) -> None:
    gate.ask(f"{command} x", "GET a", "MULTI", "CONFIG GET port", "HELLO 3")
    [upstream] = gate.upstreams.values()
    upstream.data_received(encode_reply([command.lower().encode(), b"x", 1]))
    gate.upstreams.clear()
    said = gate.wire.taken().split(b"\r\n")[-5:-1]
    for name, line in zip(("get", "multi", "config|get", "hello"), said, strict=True):
        assert line == (
            b"-ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / "
            b"RESET are allowed in this context" % name.encode()
        )
    assert not gate.upstreams
    gate.ask("PING")
    upstream.data_received(encode_reply([b"pong", b""]))
    assert gate.wire.taken() == encode_reply([b"pong", b""])
    ended = command.lower().replace("sub", "unsub").encode()
    gate.ask(ended.decode(), "GET a")
    upstream.data_received(encode_reply([ended, b"x", 0]))
    gate.wire.taken()
    found = gate.upstreams.get(node_of(gate, "a"), upstream)
    assert found.node == node_of(gate, "a")
    found.data_received(b"+value\r\n")
    assert gate.wire.taken() == b"+value\r\n"


# ---------------------------------------------------------------- nodes that refuse a client

FULL = b"-ERR max number of clients reached\r\n"


def test_a_node_that_takes_no_more_clients_has_run_nothing(gate: Gate) -> None:
    gate.ask("GET a", "GET a", "MGET a b")
    for upstream in list(gate.upstreams.values()):
        upstream.data_received(FULL)
        upstream.connection_lost(None)
    assert gate.wire.taken() == FULL * 3
    gate.ask("GET a")  # on a connection of its own
    gate.upstreams[node_of(gate, "a")].data_received(b"+value\r\n")
    assert gate.wire.taken() == b"+value\r\n"
    assert not gate.wire.is_closed


def test_the_error_of_a_node_is_read_after_a_failed_write() -> None:
    gate = Gate()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        upstream = gate.client.upstreams[node_of(gate, "a")] = NodeConnection(
            gate.client, node_of(gate, "a"), b"-CLUSTERDOWN\r\n"
        )
        await loop.create_unix_connection(lambda: upstream, sock=ours)
        theirs.sendall(FULL)
        theirs.close()
        gate.ask("GET a", "GET a")
        async with asyncio.timeout(10):
            while not (gate.wire.written or gate.wire.is_closed):
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    assert gate.wire.taken() == FULL * 2
    assert not gate.wire.is_closed


@pytest.mark.parametrize("retry_s", [0, 5])
def test_a_transaction_at_a_node_that_is_full_gets_errors(
    monkeypatch: pytest.MonkeyPatch, retry_s: float
) -> None:
    gate = Gate(retry_s)
    monkeypatch.setattr(NodeConnection, "open", lambda upstream, place: gate.connect(upstream))
    gate.client._reader.is_trusted = True  # it has logged in
    gate.ask("MULTI", "SET a 1")
    assert gate.wire.taken() == b"+OK\r\n"
    gate.upstreams[node_of(gate, "a")].data_received(FULL)
    assert gate.wire.taken() == FULL
    gate.ask("EXEC", "GET a")
    gate.upstreams[node_of(gate, "a")].data_received(b"+value\r\n")
    assert gate.wire.taken() == EXECABORT + b"+value\r\n"
    assert not gate.wire.is_closed
