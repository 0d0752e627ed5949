"""What INFO shows of all clients together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.commands.runtime.host import Client
    from millstream.server.app import Server


@dataclass(slots=True, eq=False, repr=False)
class ClientTotals:
    """What INFO shows of all clients together, from one walk over them."""

    input_max_bytes: int = 0
    output_max_bytes: int = 0
    memory_bytes: int = 0  # without replicas
    replica_bytes: int = 0
    subscribed: int = 0
    watching: int = 0
    watched: set[tuple[int, bytes]] = field(default_factory=set)

    def add(self, server: Server, clients: list[Client]) -> None:
        """Add some of the server's clients."""
        sums = server.registry.sums_of(clients)
        input_max, output_max, of_replicas, of_others, subscribed, watching = sums
        self.input_max_bytes = max(self.input_max_bytes, input_max)
        self.output_max_bytes = max(self.output_max_bytes, output_max)
        self.replica_bytes += of_replicas
        self.memory_bytes += of_others
        self.subscribed += subscribed
        self.watching += len(watching)
        for client in watching:
            self.watched.update(client.watches)


def client_totals(server: Server) -> ClientTotals:
    totals = ClientTotals()
    totals.add(server, list(server.clients.values()))
    return totals
