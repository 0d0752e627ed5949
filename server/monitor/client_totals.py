"""What INFO shows of all clients together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.commands.admin.client_line import memory_of

if TYPE_CHECKING:
    from millstream.commands.runtime.host import Client
    from millstream.server.app import Server


@dataclass(slots=True)
class ClientTotals:
    """What INFO shows of all clients together, from one walk over them."""

    input_max_bytes: int = 0
    output_max_bytes: int = 0
    memory_bytes: int = 0  # without replicas
    replica_bytes: int = 0
    subscribed: int = 0
    watching: int = 0
    watched: set[tuple[int, bytes]] = field(default_factory=set)

    def add(self, client: Client) -> None:
        input_bytes, output_bytes = client.query_buffer_bytes, client.output_bytes
        if input_bytes > self.input_max_bytes:
            self.input_max_bytes = input_bytes
        if output_bytes > self.output_max_bytes:
            self.output_max_bytes = output_bytes
        if client.feed is None:
            self.memory_bytes += memory_of(client, input_bytes, output_bytes)
        else:
            self.replica_bytes += memory_of(client, input_bytes, output_bytes)
        if client.channels or client.patterns:
            self.subscribed += 1
        if client.watches:
            self.watching += 1
            self.watched.update(client.watches)


def client_totals(server: Server) -> ClientTotals:
    totals = ClientTotals()
    add = totals.add
    for client in server.clients.values():
        add(client)
    return totals
