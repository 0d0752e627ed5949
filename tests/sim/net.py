"""A network between simulated servers: pairs of byte pipes.

Bytes keep their order, and only the end of what was sent can be lost. What is delivered, in which
pieces and when, is for the fleet to choose: pipes are split and delayed at will, silent while their
servers are partitioned, and cut at any byte; each end notices that at another moment. A bit may
flip.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.fleet_node import FleetClient, FleetNode

    from millstream.server.replication.link_connection import LinkConnection

PIPE_BYTES = 65_536  # above that the sender has to pause


class Pipe:
    """One direction: bytes that were sent and not delivered. `ends` learn that it is cut."""

    def __init__(self, deliver: Callable[[bytes], None], on_room: Callable[[], None]) -> None:
        self.data = bytearray()
        self.is_read = True  # False: the receiver has paused reading
        self.is_cut = False
        self.sent_bytes = 0
        self._deliver = deliver
        self._on_room = on_room

    def send(self, data: bytes) -> None:
        if not self.is_cut:
            self.data += data
            self.sent_bytes += len(data)

    @property
    def is_full(self) -> bool:
        return len(self.data) > PIPE_BYTES

    def deliver(self, size: int) -> None:
        was_full = self.is_full
        piece = bytes(self.data[:size])
        del self.data[:size]
        self._deliver(piece)
        if was_full and not self.is_full:
            self._on_room()


class Connection:
    """A link from a replica to a primary. It is the replica's asyncio transport."""

    def __init__(self, replica: FleetNode, primary: FleetNode, protocol: LinkConnection) -> None:
        self.replica = replica
        self.primary = primary
        self.protocol = protocol
        self.client: FleetClient = primary.accept(self)
        self.up = Pipe(self._to_primary, lambda: None)
        self.down = Pipe(protocol.data_received, self._room)
        self.ends = {"replica", "primary"}  # those that do not know yet that it is cut
        self.is_cut = False
        self.closes = False  # it is cut when everything was delivered

    def begin(self) -> None:
        self.protocol.connection_made(self)

    def _to_primary(self, data: bytes) -> None:
        if not self.client.closed:
            self.primary.executor.feed(self.client, data)

    def _room(self) -> None:
        self.client.paused = False
        if not self.client.closed:
            self.primary.executor.outbox.on_writable(self.client)

    def cut(self) -> None:
        """Nothing that was not delivered arrives any more."""
        self.is_cut = self.up.is_cut = self.down.is_cut = True

    def notify(self, end: str) -> None:
        """Report to an end that the connection is cut."""
        self.ends.discard(end)
        if end == "replica" and self.replica.is_alive:
            self.protocol.connection_lost(None)
        elif end == "primary" and self.primary.is_alive:
            self.primary.lost(self.client)

    # The replica's transport

    def write(self, data: bytes) -> None:
        self.up.send(data)

    def close(self) -> None:
        self.ends.discard("replica")
        self.closes = True

    def abort(self) -> None:
        self.ends.discard("replica")
        self.cut()

    def pause_reading(self) -> None:
        self.down.is_read = False

    def resume_reading(self) -> None:
        self.down.is_read = True
