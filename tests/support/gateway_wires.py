"""A client of the gateway between transports that only record what is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.resp import encode_command

from millstream.commands.table.loader import load_table
from millstream.server.cluster.slot_map import new_map
from millstream.server.gateway.client import Client
from millstream.server.gateway.machine_nodes import MachineNodes, Nodes
from millstream.server.gateway.node_connection import NodeConnection
from millstream.server.protocol.resp import Limits

load_table()


class Wire:
    """A transport."""

    def __init__(self) -> None:
        self.written = b""
        self.is_closed = False
        self.has_ended = False  # in the direction of the peer

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 6455) if name == "sockname" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def taken(self) -> bytes:
        data, self.written = self.written, b""
        return data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_ended = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Host:
    limits = Limits()
    keepalive_s = 0
    requests = unserved = 0

    def __init__(self, retry_s: float) -> None:
        self.nodes: Nodes = MachineNodes(new_map(3), 6455)
        self.retry_s = retry_s
        self.closing: Any = set()

    def opened(self, client: Client) -> bytes | None:
        return None

    def closed(self, client: Client) -> None: ...
    def soon(self, run: Callable[[], None]) -> None:
        run()


class Gate:
    """A client, and its connections to the nodes by number."""

    def __init__(self, retry_s: float = 0) -> None:
        self.upstreams: dict[int, NodeConnection] = {}
        self.wires: dict[int, Wire] = {}
        self.host = Host(retry_s)
        self.nodes = self.host.nodes
        self.client = Client(self.host)
        self.wire = Wire()
        self.client.connection_made(self.as_transport(self.wire))

    @staticmethod
    def as_transport(wire: Wire) -> asyncio.Transport:
        found: Any = wire
        return found

    def connect(self, upstream: NodeConnection) -> None:
        self.upstreams[upstream.node] = upstream
        wire = self.wires[upstream.node] = Wire()
        upstream.connection_made(self.as_transport(wire))

    def ask(self, *lines: str) -> None:
        """Requests that arrive together."""
        self.client.data_received(b"".join(encode_command(line.split()) for line in lines))
