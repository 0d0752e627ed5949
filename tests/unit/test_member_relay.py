"""The messages of a member for other nodes: which node they are sent to, and what happens to them
while a node does not answer."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.certificates import Authority

from millstream.server.cluster import member_relay
from millstream.server.cluster.member_relay import MemberRelay, MessageLink
from millstream.server.cluster.rare_warnings import RareWarnings
from millstream.server.protocol.outbox import Client
from millstream.server.replication.link_words import encode_request

PEER = encode_request([b"CLUSTER", b"PEER", b"secret"])
FRAME = b"x" * 100
LARGE = b"v" * 400_000


class Node:
    """Another node, which answers PEER with these bytes, and each frame with this line."""

    def __init__(self, peer: bytes = b"+OK\r\n", frame: bytes = b":1") -> None:
        self.peer, self.frame = peer, frame
        self.received = bytearray()
        self.connections: list[asyncio.StreamWriter] = []
        self.server: Any = None
        self.reads = True

    async def start(self, port: int = 0, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=context)
        return "127.0.0.1", self.server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.append(writer)
        own, answered = bytearray(), 0
        while self.reads and (data := await reader.read(1 << 16)):
            own += data
            self.received += data
            if answered == 0 and len(own) >= len(PEER) and self.peer:
                assert own.startswith(PEER)
                writer.write(self.peer)
                answered = len(PEER)
            while self.frame and answered and len(own) - answered >= len(FRAME):
                answered += len(FRAME)
                writer.write(self.frame + b"\r\n")

    def end(self) -> None:
        for writer in self.connections:
            writer.transport.abort()
        self.server.close()


async def until(done: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not done():
            await asyncio.sleep(0.001)


def link_to(
    address: tuple[str, int], make_context: Callable[[], ssl.SSLContext | None] = lambda: None
) -> MessageLink:
    loop = asyncio.get_running_loop()
    return MessageLink(address, lambda: b"secret", make_context, loop, RareWarnings())


def test_messages_are_counted_unless_they_were_answered() -> None:
    async def work() -> None:
        node = Node()
        link = link_to(await node.start())
        for _ in range(3):
            link.send(FRAME)  # while it connects
        await until(lambda: len(node.received) == len(PEER) + 300)
        link.send(FRAME)
        await until(lambda: node.received == PEER + FRAME * 4)
        await until(lambda: not link.unanswered)
        node.frame = b"-ERR unknown subcommand 'RELAY'"
        link.send(FRAME)
        await until(lambda: link.dropped == 1)
        node.frame = b""
        link.send(FRAME)
        await until(lambda: node.received == PEER + FRAME * 6)
        node.end()
        await until(lambda: link.dropped == 2)

        again = Node()
        await again.start(link.address[1])  # no pause after a connection that has ended
        link.send(FRAME)
        await until(lambda: again.received == PEER + FRAME)
        link.close()
        assert (link.unanswered, len(again.connections)) == (0, 1)
        again.end()

    asyncio.run(work())


@pytest.mark.parametrize(
    "refusal", [b"-ERR the secret is not that of this cluster\r\n", b"+OK\r\n" + b"v" * 5000]
)
def test_a_node_that_refuses_is_left_alone_for_a_while(
    refusal: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        node = Node(refusal, b"")
        link = link_to(await node.start())
        link.send(FRAME)
        link.send(FRAME)
        await until(lambda: link.dropped == 2)
        link.send(FRAME)
        assert link.dropped == 3  # at once
        monkeypatch.setattr(member_relay, "PAUSE_S", 0.0)
        node.peer, node.frame = b"+OK\r\n", b":1"
        link.send(FRAME)
        await until(lambda: node.received.endswith(PEER + FRAME))
        node.end()
        await until(lambda: not link.unanswered)
        dropped = link.dropped
        link.send(FRAME)  # the port is free now
        await until(lambda: link.dropped > dropped)

    asyncio.run(work())


def test_a_node_that_hangs_costs_one_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        node = Node()
        node.reads = False
        link = link_to(await node.start())
        sent = 0
        while not link.dropped:  # the buffers of both kernels are full
            link.send(LARGE)
            sent += 1
            await asyncio.sleep(0)
            assert sent < 1000
        assert link.waiting_bytes <= 1 << 20
        monkeypatch.setattr(member_relay, "SILENT_S", -1.0)
        link.send(LARGE)
        assert (link.dropped, link.unanswered) == (sent + 1, 0)
        node.end()

    asyncio.run(work())


def test_links_have_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("server"))
    trusting = ssl.create_default_context(cafile=str(authority.file))

    async def work() -> None:
        node = Node()
        address = await node.start(context=context)
        link, wrong = link_to(address, lambda: trusting), link_to(address)
        link.send(FRAME)
        wrong.send(FRAME)
        await until(lambda: node.received == PEER + FRAME)
        await until(lambda: wrong.dropped == 1)
        assert link.dropped == 0
        link.close()
        node.end()

    asyncio.run(work())


class AtOnce:
    """An outbox that holds nothing."""

    def attach(self, client: Client) -> None: ...

    def push_encoded(self, client: Client, data: bytes) -> None:
        client.transmit(data)


class Recorded(MessageLink):
    """A link that keeps what it has to send."""

    def send(self, frame: bytes) -> None:
        self.address[2].append(frame)  # type: ignore[misc]


def test_which_nodes_get_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_relay, "MessageLink", Recorded)
    loop: Any = None
    relay = MemberRelay(lambda: b"", lambda: None, AtOnce(), loop, RareWarnings())
    found: dict[str, list[bytes]] = {node: [] for node in "abc"}
    address: Any = {node: ("h", 1, sent) for node, sent in found.items()}
    relay.set_nodes({"a": address["a"]}, {"b": address["b"], "c": address["c"]})

    def to(message: bytes, **given: bool) -> str:
        relay.publish(b"news", message, **given)
        nodes = [node for node, sent in found.items() if sent]
        for sent in found.values():
            assert all(one.endswith(message + b"\r\n") for one in sent)
            sent.clear()
        return "".join(nodes)

    assert to(b"m", is_shard=False, is_primary=True) == "bc"  # a has it with the frames
    assert to(b"m", is_shard=False, is_primary=False) == "abc"
    assert to(b"m", is_shard=True, is_primary=True) == ""
    assert to(b"m", is_shard=True, is_primary=False) == "a"
    assert to(LARGE, is_shard=False, is_primary=True) == "abc"
    assert to(LARGE, is_shard=True, is_primary=True) == "a"
    assert relay.dropped == 0
    relay.publish(b"news", b"v" * (1 << 20), is_shard=False, is_primary=True)
    assert relay.dropped == 3
    relay.set_nodes({}, {"b": address["b"]})
    assert to(b"m", is_shard=False, is_primary=False) == "b"
    assert relay.dropped == 3


def test_a_relay_that_checks_connects_before_there_is_a_message(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And again when a connection has ended; a refusal is logged once a minute."""
    monkeypatch.setattr(member_relay, "CHECK_S", 0.01)

    async def work() -> None:
        loop = asyncio.get_running_loop()
        good, wrong = Node(), Node(b"-ERR another secret\r\n")
        early = Node(b"-LOADING no secret\r\n")
        all_nodes = {"g": good, "w": wrong, "e": early}
        nodes = {name: await node.start() for name, node in all_nodes.items()}
        parts = (lambda: b"secret", lambda: None, AtOnce(), loop, RareWarnings())
        lazy = MemberRelay(*parts)
        lazy.set_nodes({}, nodes)
        relay = MemberRelay(*parts, checks=True)
        relay.set_nodes({"g": nodes["g"]}, {"w": nodes["w"], "e": nodes["e"]})
        await until(lambda: len(wrong.connections) > 2 and len(early.connections) > 2)
        assert (bytes(good.received), len(good.connections)) == (PEER, 1)
        relay.log_in_again()
        await until(lambda: good.received == PEER + PEER)
        assert relay.dropped == 0
        relay.close()
        for node in all_nodes.values():
            node.end()

    asyncio.run(work())
    (said,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said.endswith("does not accept this node: ERR another secret")
