"""The gateway and the clients of etcd look up names as all other connections of a server do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.gateway_wires import Gate

from millstream.server.cluster.store.etcd_connection import Endpoint, NoAnswer, send
from millstream.server.cluster.store.etcd_requests import Call
from millstream.server.gateway.machine_nodes import Place
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.replication import name_lookup

NAME = "localhost"


@pytest.fixture(autouse=True)
def no_pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The loop cannot look up anything. The first address of the name accepts no connection."""

    async def refuse(loop: Any, host: str, *words: Any, **options: Any) -> None:
        raise OSError(f"{host} is looked up by the loop")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.BaseEventLoop, "getaddrinfo", refuse)
        patch.setattr(name_lookup, "_addresses", lambda *words: ["127.0.0.2", "127.0.0.1"])
        yield


async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(65536)
    writer.write(b"+value\r\n")
    writer.close()


def test_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> bytes:
        server = await asyncio.start_server(served, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        gate = Gate()
        opened: list[NodeConnection] = []
        monkeypatch.setattr(NodeConnection, "open", lambda one, place: opened.append(one))
        gate.ask("GET a")
        [upstream] = opened
        await upstream._connect(Place(NAME, port))
        while not gate.wire.written:
            await asyncio.sleep(0)
        upstream.close()
        server.close()
        return gate.wire.taken()

    assert asyncio.run(run()) == b"+value\r\n"


def test_etcd() -> None:
    async def run() -> None:
        server = await asyncio.start_server(served, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        endpoint = Endpoint(f"http://{NAME}:{port}", NAME, port, None)
        async with send(endpoint, Call("/v3/kv/range", b""), {}, 5) as reply:
            with pytest.raises(NoAnswer):  # it was sent
                await reply.content()
        server.close()

    asyncio.run(run())
