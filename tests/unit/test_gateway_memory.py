"""The gateway keeps nothing of a client that has gone, and little of one that has not logged in."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator

import pytest
from tests.support.gateway_wires import Gate, Wire
from tests.support.resp import encode_command

from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.gateway.routing import ENDED, RequestReader, Routes
from millstream.server.protocol.resp import Limits

LARGE = b"v" * 20_000
SET = encode_command(["SET", "x", LARGE])
CHANGED = b"+OK\r\n"
DENIED = b"-NOAUTH Authentication required.\r\n"
TOO_LARGE = b"-ERR Protocol error: unauthenticated bulk length\r\n"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[NodeConnection]:
    """Connections to nodes, of which none is made yet."""
    found: list[NodeConnection] = []
    monkeypatch.setattr(NodeConnection, "open", lambda upstream, place: found.append(upstream))
    return found


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def connect(opened: list[NodeConnection]) -> list[tuple[NodeConnection, Wire]]:
    """Make the connections to the nodes."""
    made = [(upstream, Wire()) for upstream in opened]
    opened.clear()
    for upstream, wire in made:
        upstream.connection_made(Gate.as_transport(wire))
    return made


BUSY = [
    [],
    ["SET x v"],  # one node
    ["GET a", "GET b", "GET c"],  # a spread
    ["MGET a b c", "KEYS *"],
    ["XREAD BLOCK 0 STREAMS a b $ $"],
    ["XREADGROUP GROUP g c BLOCK 0 STREAMS a b > >"],
    ["WATCH x", "MULTI", "PING"],
    ["MULTI", "SET x v"],
    ["SUBSCRIBE x", "CLIENT SETNAME n"],
    ["GET x", "AUTH secret"],  # waits for the first reply
]


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("retry_s", [0, 10])
@pytest.mark.parametrize("is_connected", [False, True])
@pytest.mark.parametrize("lines", BUSY)
def test_the_memory_of_a_client_is_free_when_it_ends(
    opened: list[NodeConnection], lines: list[str], is_connected: bool, retry_s: float
) -> None:
    gate = Gate(retry_s)
    gate.ask(*lines)
    made = connect(opened) if is_connected else []
    while made:
        made.pop()[0].data_received(b"$5\r\npa")  # a part of the first reply
    gate.client.data_received(SET[:-100])  # a part of the last request
    gate.client.connection_lost(None)
    ended = weakref.ref(gate.client)
    opened.clear()
    del gate
    assert ended() is None


def test_a_request_that_was_sent_is_not_kept() -> None:
    reader = RequestReader(Routes([0] * 16384), Limits())
    reader.feed(SET)
    assert reader.next() == 0
    raw = reader.raw
    assert reader.next() == ENDED
    assert sys.getrefcount(raw) == 2


def test_a_large_request_needs_a_login(opened: list[NodeConnection]) -> None:
    gate = Gate()
    gate.client.data_received(SET[:100])
    [(question, wire)] = connect(opened)
    assert wire.taken() == encode_command(["PING"])
    assert not wire.is_closed
    question.data_received(DENIED)
    assert gate.wire.taken() == TOO_LARGE
    assert gate.wire.is_closed
    assert wire.is_closed


def test_a_large_request_of_a_known_client_runs(opened: list[NodeConnection]) -> None:
    gate = Gate()
    gate.client.data_received(SET[:100])
    [(question, wire)] = connect(opened)
    question.data_received(b"+PONG\r\n")
    assert wire.is_closed
    gate.client.data_received(SET[100:] + SET)
    [(node, wire)] = connect(opened)
    assert wire.taken() == SET + SET
    node.data_received(CHANGED * 2)
    assert gate.wire.taken() == CHANGED * 2


def test_a_client_that_has_logged_in_is_not_asked_about(opened: list[NodeConnection]) -> None:
    gate = Gate()
    gate.ask("AUTH secret")
    [(home, _)] = connect(opened)
    home.data_received(CHANGED)
    gate.client.data_received(SET[:100])
    assert not opened
    gate.client.data_received(SET[100:] + encode_command(["RESET"]) + SET)
    nodes = {home, *(node for node, _ in connect(opened))}
    for _ in range(3):  # AUTH at the node of x, SET, RESET at both
        for node in nodes:
            node.data_received(CHANGED * len(node.expected))
    [(question, _)] = connect(opened)
    question.data_received(DENIED)
    assert gate.wire.taken().endswith(TOO_LARGE)


def test_a_transaction_does_not_get_the_question(opened: list[NodeConnection]) -> None:
    gate = Gate()
    gate.ask("MULTI", "GET x")
    [(question, _)] = connect(opened)
    question.data_received(b"-LOADING the node cannot say it\r\n")
    [(node, wire)] = connect(opened)
    node.data_received(b"+OK\r\n+QUEUED\r\n")
    wire.taken()
    gate.client.data_received(SET)
    [(question, _)] = connect(opened)
    question.data_received(b"+PONG\r\n")
    assert wire.taken() == SET


def test_another_node_is_asked_if_one_hangs_or_ends(opened: list[NodeConnection]) -> None:
    gate = Gate()
    gate.client.data_received(SET[:100])
    [(question, wire)] = connect(opened)
    gate.nodes.failed.add(question.node)
    gate.client.note_failed(question.node)
    assert wire.is_closed
    [(other, wire)] = connect(opened)
    assert other.node != question.node
    other.connection_lost(None)
    [(last, _)] = connect(opened)
    assert not gate.wire.is_closed
    last.data_received(DENIED)
    assert gate.wire.taken() == TOO_LARGE
