"""The nodes of one machine, as a gateway sees them: the supervisor tells which of them run, or is
asked if it has not started the gateway."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from millstream.errors import StartError
from millstream.host_names import is_address
from millstream.server.cluster.slot_map import SlotMap, read_map
from millstream.server.cluster.states import FAILED, NodeState
from millstream.server.cluster.supervisor_link import StateLink
from millstream.server.gateway.routing import Routes
from millstream.server.gateway.supervisor_questions import SupervisorQuestions


class Place(NamedTuple):
    """The address of a node, and the TLS for it or None. `folder` is the data directory of a node
    of this machine, which may have a Unix socket for gateways."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    folder: Path | None = None


class Nodes(Protocol):
    """The nodes by number, from 0. `name` is that of the cluster for the log; "" if the supervisor
    logs that a gateway is ready. `repeats`: whether another node may serve what one has refused,
    so that it is sent again. `failed` are those that cannot be asked now, `all` those with
    slots. `on_failed` and `on_moved` are called with a node that hangs or has ended, and with one
    whose requests go to another address from now on; `on_rerouted` when slots go to other nodes;
    `on_change` after a change of the map."""

    name: str
    repeats: bool
    routes: Routes
    all: list[int]
    failed: set[int]
    on_failed: Callable[[int], None]
    on_moved: Callable[[int], None]
    on_rerouted: Callable[[], None]
    on_change: Callable[[], None]
    etcd_errors: int

    def place_of(self, node: int, local: str) -> Place:
        """The address of a node that has not failed. `local` is that of the gateway to which a
        client has connected."""

    def ports_for(self, *, is_tls: bool) -> Mapping[bytes, int]:
        """The ports for a client with TLS or without, by the IDs of the nodes, if nodes tell the
        gateway others."""

    def unreachable(self, node: int) -> bytes:
        """The reply to a request for a node that cannot be asked."""

    def note_refusal(self, node: int, error: bytes) -> None:
        """A node has refused a request, perhaps with MOVED: look at the map."""

    def start(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None: ...
    def begin_serving(self) -> None: ...
    def close(self) -> None: ...


def map_of(folder: Path) -> SlotMap:
    """The map of a directory of nodes. StartError if it is none."""
    slot_map = read_map(folder)
    if slot_map is None:
        raise StartError(f"{folder} is not a directory of nodes")
    return slot_map


class MachineNodes:
    """The node of each shard listens on a port after that of the gateway, at all addresses. With
    `asking`, the supervisor of a directory is asked for the ports and the health of its nodes."""

    def __init__(
        self,
        slot_map: SlotMap,
        port: int,
        tls_port: int = 0,
        asking: SupervisorQuestions | None = None,
        folder: Path | None = None,
    ) -> None:
        """`folder`: the directory of the nodes, if they may have Unix sockets for gateways."""
        self._ids = [one.node.encode() for one in slot_map.shards]
        self._folders = [None if folder is None else folder / one.folder for one in slot_map.shards]
        self.name, self.repeats = "" if asking is None else asking.folder, False
        self.routes = Routes(slot_map.indices())
        self.all = list(range(len(slot_map.shards)))
        self.failed: set[int] = set()
        self.on_failed: Callable[[int], None] = lambda node: None
        self.on_moved: Callable[[int], None] = lambda node: None
        self.on_rerouted: Callable[[], None] = lambda: None
        self.on_change: Callable[[], None] = lambda: None
        self.etcd_errors = 0
        self._port, self._tls_port = port, tls_port
        self._asking = asking
        self._link: StateLink | None = None

    def place_of(self, node: int, local: str) -> Place:
        if self._asking is not None:
            host, port = self._asking.host, self._asking.ports[node]
            return Place(host, port, None, self._folders[node] if is_address(host) else None)
        return Place(local, self._port + node + 1, None, self._folders[node])

    def ports_for(self, *, is_tls: bool) -> Mapping[bytes, int]:
        if not is_tls:
            return {}
        if self._asking is not None:
            return dict(zip(self._ids, self._asking.tls_ports, strict=False))
        after = enumerate(self._ids, start=self._tls_port + 1) if self._tls_port else ()
        return {node: port for port, node in after}

    def unreachable(self, node: int) -> bytes:
        return b"-CLUSTERDOWN Hash slot not served: node %04d cannot be reached\r\n" % (node + 1)

    def note_refusal(self, node: int, error: bytes) -> None:
        """The map of a machine does not change."""

    def start(self, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> None:
        if self._asking is not None:
            self._asking.start(loop, self.note_states, self._note_moved)
        else:
            self._link = StateLink.of_environment(loop, lambda: 0, self.note_states, stop)

    def begin_serving(self) -> None:
        if self._link is not None:
            self._link.begin_serving()

    def close(self) -> None:
        """The link ends with this process."""
        if self._asking is not None:
            self._asking.close()

    def _note_moved(self) -> None:
        """The nodes have other ports."""
        for node in self.all:
            self.on_moved(node)

    def note_states(self, states: dict[int, NodeState]) -> None:
        """The supervisor tells which nodes run."""
        failed = {number - 1 for number, state in states.items() if state.health == FAILED}
        new, self.failed = failed - self.failed, failed
        for node in new:
            self.on_failed(node)
