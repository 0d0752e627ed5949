"""The Unix socket of a node of one machine for the gateways. It costs the kernel less than TCP.

It is in the data directory of the node, where only the user of the node can connect. A connection
begins with a line: the address of the gateway's client, and the address of this machine that this
client has used. To the rest of the server it is then the connection of a client who has these
addresses, without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.server.cluster.unix_sockets import connected_socket, listening_socket
from millstream.server.monitor.log import LOGGER

NAME = "gateway.sock"
LINE_MAX_BYTES = 256

NewConnection = Callable[[], Any]


def socket_to_node(folder: Path) -> socket.socket | None:
    """A connection to the node with this data directory; None if it has to be reached by TCP."""
    try:
        return connected_socket(folder, NAME)
    except OSError:
        return None


def introduction(client: str, local: str) -> bytes:
    """The first line: the address of a client with its port, and one of this machine without."""
    return f"{client} {local}\n".encode()


class GatewaySocket:
    """Opens and closes with the other listeners of a node. `port` is that of its clients."""

    def __init__(
        self, folder: Path, port: int, backlog: int, new_connection: NewConnection
    ) -> None:
        self._folder = folder
        self._port = port
        self._backlog = backlog
        self._new_connection = new_connection
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Accept connections of gateways. The directory is locked."""
        try:
            bound = listening_socket(self._folder, NAME)
        except OSError as problem:
            reason = problem.strerror or problem
            LOGGER.warning("gateways use TCP: %s: %s", self._folder / NAME, reason)
            return
        bound.setblocking(False)
        self._server = await asyncio.get_running_loop().create_unix_server(
            lambda: Introduction(self._port, self._new_connection),
            sock=bound,
            backlog=self._backlog,
        )

    def close(self) -> None:
        """Accept no more connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
            with contextlib.suppress(OSError):
                (self._folder / NAME).unlink()


class Introduction(asyncio.Protocol):
    """A connection of a gateway until it has sent its first line."""

    def __init__(self, port: int, new_connection: NewConnection) -> None:
        self._port = port
        self._new_connection = new_connection
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        line, end, requests = self._received.partition(b"\n")
        client, space, local = line.decode("latin-1").partition(" ")
        if len(line) > LINE_MAX_BYTES or (end and not space):
            self._transport.abort()
        elif end:
            self._begin(client, local, requests)

    def _begin(self, client: str, local: str, requests: bytes) -> None:
        connection = self._new_connection()
        connection.address = client
        connection.local_address = with_port(local, self._port)
        self._transport.set_protocol(connection)
        connection.connection_made(self._transport)
        if requests:
            connection.data_received(requests)


def with_port(host: str, port: int) -> str:
    """An IP address and a port, as CLIENT LIST shows them."""
    host = host.partition("%")[0]  # the name of an interface
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
