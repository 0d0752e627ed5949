"""The process of the gateway, which the supervisor starts on the port before those of the nodes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from millstream.commands.table.loader import load_table
from millstream.errors import StartError
from millstream.server.clients import TOO_MANY_CLIENTS
from millstream.server.cluster.slot_map import SlotMap, read_map
from millstream.server.cluster.states import FAILED, NodeState
from millstream.server.cluster.supervisor_link import StateLink
from millstream.server.config.directives import Config
from millstream.server.config.loading import load
from millstream.server.gateway.client import Client
from millstream.server.gateway.routing import Routes
from millstream.server.monitor import log
from millstream.server.monitor.log import LOGGER
from millstream.server.net.listeners import Listeners
from millstream.server.process import LoopErrors, fit_maxclients
from millstream.server.protocol.resp import Limits

if TYPE_CHECKING:
    from millstream.server.gateway.gateway_metrics import GatewayMetrics

STOP_GRACE_S = 1.0


class Gateway:
    """All clients of the gateway, and what they share."""

    def __init__(self, config: Config, slot_map: SlotMap) -> None:
        self.routes = Routes(slot_map.indices())
        self.limits = Limits(config.proto_max_bulk_len, config.client_query_buffer_limit)
        self.node_count = len(slot_map.shards)
        self.failed: set[int] = set()
        self.keepalive_s = config.tcp_keepalive
        self.stopping = asyncio.Event()
        self.requests = 0
        self.unserved = 0
        self._config = config
        self._clients: set[Client] = set()
        self._accepted = 0
        self._listeners = Listeners(config, lambda: Client(self))

    def port_of(self, node: int) -> int:
        return self._config.port + node + 1

    @property
    def clients(self) -> int:
        return len(self._clients)

    @property
    def accepted(self) -> int:
        return self._accepted

    @property
    def node_connections(self) -> int:
        return sum(len(client.upstreams) for client in self._clients)

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    def _make_metrics(self) -> GatewayMetrics | None:
        if not self._config.metrics.port:
            return None
        from millstream.server.gateway.gateway_metrics import GatewayMetrics

        return GatewayMetrics(self._config, self)

    async def serve(self) -> None:
        """Serve until SIGTERM, or until the supervisor ends."""
        loop = asyncio.get_running_loop()
        LoopErrors(loop)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        link = StateLink.of_environment(loop, lambda: 0, self.note_states, self.stopping.set)
        metrics = self._make_metrics()
        self._listeners.bind()
        if metrics is not None:
            metrics.bind()
            await metrics.listen()
        await self._listeners.listen()
        link.begin_serving()
        await self.stopping.wait()
        self._listeners.close()
        for client in list(self._clients):
            client.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_GRACE_S):
                while self._clients:
                    await asyncio.sleep(0.01)
        for client in list(self._clients):
            client.close()
        if metrics is not None:
            metrics.close()

    def _renew(self) -> None:
        """SIGHUP: the log file and the certificates are opened again."""
        config = self._config
        try:
            log.configure(config.loglevel, config.located(config.logfile), config.log_format)
        except StartError as problem:
            LOGGER.error("gateway  SIGHUP: %s; the log continues where it was", problem)
        try:
            self._listeners.renew()
        except StartError as problem:
            LOGGER.error("gateway  the certificates are not renewed: %s", problem)

    def note_states(self, states: dict[int, NodeState]) -> None:
        """The supervisor tells which nodes run."""
        failed = {number - 1 for number, state in states.items() if state.health == FAILED}
        new, self.failed = failed - self.failed, failed
        for node in new:
            for client in list(self._clients):
                client.note_failed(node)

    def opened(self, client: Client) -> bytes | None:
        if len(self._clients) >= self._config.maxclients or self.stopping.is_set():
            return TOO_MANY_CLIENTS
        self._accepted += 1
        client.number = self._accepted
        self._clients.add(client)
        return None

    def closed(self, client: Client) -> None:
        self._clients.discard(client)


def run(arguments: Sequence[str]) -> int:
    """Serve until a stop is requested; return the exit code."""
    words = list(arguments)
    file = Path(words.pop(0)) if words and not words[0].startswith("--") else None
    try:
        config = load(file, words)
        slot_map = read_map(config.dir)
        if slot_map is None:
            raise StartError(f"{config.dir} is no directory of nodes")
        log.configure(config.loglevel, config.located(config.logfile), config.log_format)
        load_table()
        fit_maxclients(config)
        gc.freeze()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(config, slot_map))
    except StartError as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: Config, slot_map: SlotMap) -> None:
    await Gateway(config, slot_map).serve()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
