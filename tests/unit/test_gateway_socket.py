"""The Unix socket at which gateways connect to a node, without the rest of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import DEADLINE_S

from millstream.server.cluster.gateway_socket import (
    NAME,
    GatewaySocket,
    introduction,
    socket_to_node,
)

REQUESTS = b"*1\r\n$4\r\nPING\r\n"


class Connection(asyncio.Protocol):
    """A connection of a server, which answers with its addresses and what it receives."""

    address = local_address = ""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.write(f"{self.address} {self.local_address} ".encode())

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


@pytest.mark.parametrize(("step", "depth"), [(1, 0), (7, 2), (1000, 2)])
def test_the_first_line_says_who_the_client_is(tmp_path: Path, step: int, depth: int) -> None:
    folder = tmp_path.joinpath(*["x" * 100] * depth)  # no path of a socket may be as long
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_bytes(b"")  # what a server left that was killed

    async def run() -> None:
        node = GatewaySocket(folder, 7001, 16, Connection)
        await node.listen()
        own = socket_to_node(folder)
        assert own is not None
        reader, writer = await asyncio.open_unix_connection(sock=own)
        sent = introduction("192.0.2.7:4000", "10.0.0.3") + REQUESTS
        for at in range(0, len(sent), step):
            writer.write(sent[at : at + step])
            await asyncio.sleep(0)
        wanted = b"192.0.2.7:4000 10.0.0.3:7001 " + REQUESTS
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.readexactly(len(wanted)) == wanted
        writer.close()
        node.close()
        assert not (folder / NAME).exists()
        assert socket_to_node(folder) is None
        await node.listen()  # after a stop that was cancelled
        again = socket_to_node(folder)
        assert again is not None
        again.close()
        node.close()

    asyncio.run(run())


def test_a_node_without_a_directory_for_it_is_reached_by_tcp(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = GatewaySocket(tmp_path / "absent", 7001, 16, Connection)
    asyncio.run(node.listen())
    assert "gateways use TCP" in caplog.text
    assert socket_to_node(tmp_path / "absent") is None
    node.close()
