"""The process of a gateway. On one machine, the supervisor starts it, on the port before those of
the nodes. With etcd, `millstream gateway` does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from millstream import __version__
from millstream.commands.table.loader import load_table
from millstream.errors import StartError
from millstream.server.clients import TOO_MANY_CLIENTS
from millstream.server.config.directives import Config
from millstream.server.config.loading import load
from millstream.server.gateway.client import Client
from millstream.server.gateway.closing_connections import ClosingConnections
from millstream.server.gateway.machine_nodes import MachineNodes, Nodes, map_of
from millstream.server.monitor import log
from millstream.server.monitor.log import LOGGER
from millstream.server.net.listeners import Listeners
from millstream.server.process import (
    LoopErrors,
    PidFile,
    Supervision,
    fit_maxclients,
    raise_file_limit,
)
from millstream.server.protocol.resp import Limits

if TYPE_CHECKING:
    from millstream.server.gateway.gateway_metrics import GatewayMetrics

STOP_GRACE_S = 1.0


class Gateway:
    """All clients of the gateway, and what they share."""

    def __init__(self, config: Config, nodes: Nodes, retry_s: float, *, is_shared: bool) -> None:
        """`retry_s`: how long refused requests are sent again; 0: never. `is_shared`: other
        gateways may listen on the same ports."""
        self.nodes = nodes
        self.limits = Limits(config.proto_max_bulk_len, config.client_query_buffer_limit)
        self.keepalive_s = config.tcp_keepalive
        self.retry_s = retry_s
        self.stopping = asyncio.Event()
        self.requests = 0
        self.unserved = 0
        self.closing = ClosingConnections()
        self._retries = 0  # of clients that have gone
        self._config = config
        self._clients: set[Client] = set()
        self._accepted = 0
        self._soon: list[Callable[[], None]] = []
        self._listeners = Listeners(config, lambda: Client(self), is_shared=is_shared)
        self._supervision = Supervision(config.supervised)
        self._pid_file = PidFile(config.located(config.pidfile))
        nodes.on_failed, nodes.on_moved = self._note_failed, self._note_moved
        nodes.on_rerouted, nodes.on_change = self._note_rerouted, self._note_change

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
    def retries(self) -> int:
        return self._retries + sum(client.retries for client in self._clients)

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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
            loop.add_signal_handler(number, self.stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._renew)
        loop.add_signal_handler(signal.SIGUSR1, lambda: None)
        self.nodes.start(loop, self.stopping.set)
        metrics = self._make_metrics()
        self._listeners.bind()
        if metrics is not None:
            metrics.bind()
            await metrics.listen()
        await self._listeners.listen()
        self.nodes.begin_serving()
        self._pid_file.write()
        self._supervision.watch(loop)
        where = self._listeners.described()
        if self.nodes.name:
            LOGGER.info(
                "ready    millstream %s: the gateway of %s listens on %s (process %d)",
                __version__, self.nodes.name, where, os.getpid(),
            )  # fmt: skip
        self._supervision.ready(where)
        await self.stopping.wait()
        self._supervision.stopping()
        self._listeners.close()
        self.nodes.close()
        self._pid_file.remove()
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

    def _note_failed(self, node: int) -> None:
        for client in list(self._clients):
            client.note_failed(node)

    def _note_moved(self, node: int) -> None:
        for client in list(self._clients):
            client.note_moved(node)

    def _note_rerouted(self) -> None:
        for client in list(self._clients):
            client.note_rerouted()

    def _note_change(self) -> None:
        for client in list(self._clients):
            client.repeat_now()

    def opened(self, client: Client) -> bytes | None:
        if len(self._clients) >= self._config.maxclients or self.stopping.is_set():
            return TOO_MANY_CLIENTS
        self._accepted += 1
        client.note_number(self._accepted)
        self._clients.add(client)
        return None

    def soon(self, run: Callable[[], None]) -> None:
        if not self._soon:
            asyncio.get_running_loop().call_soon(self._run_soon)
        self._soon.append(run)

    def _run_soon(self) -> None:
        soon, self._soon = self._soon, []
        for run in soon:
            run()

    def closed(self, client: Client) -> None:
        if client in self._clients:
            self._clients.discard(client)
            self._retries += client.retries


def run(arguments: Sequence[str]) -> int:
    """Serve the nodes of this machine until a stop is requested; return the exit code. With
    --shared as the first argument, other gateways of the supervisor have the same ports."""
    words = list(arguments)
    is_shared = words[:1] == ["--shared"]
    if is_shared:
        words.pop(0)
    file = Path(words.pop(0)) if words and not words[0].startswith("--") else None

    def nodes_of(config: Config) -> Nodes:
        return MachineNodes(map_of(config.dir), config.port, config.tls.port, folder=config.dir)

    return serve_nodes(file, words, nodes_of, is_shared=is_shared)


def serve_nodes(
    file: Path | None,
    arguments: Sequence[str],
    nodes_of: Callable[[Config], Nodes],
    *,
    is_shared: bool,
) -> int:
    """Serve until a stop is requested; return the exit code. If `is_shared`, other gateways may
    listen on the same ports."""
    try:
        config = load(file, arguments)
        log.configure(config.loglevel, config.located(config.logfile), config.log_format)
        load_table()
        nodes = nodes_of(config)
        fit_maxclients(config)
        raise_file_limit()  # a client has a connection to each node that it uses
        gc.freeze()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            retry_s = config.gateway.retry if nodes.repeats else 0
            runner.run(_serve(config, nodes, retry_s, is_shared))
    except StartError as problem:
        print(f"millstream: {problem}", file=sys.stderr)
        return 1
    return 0


async def _serve(config: Config, nodes: Nodes, retry_s: float, is_shared: bool) -> None:
    await Gateway(config, nodes, retry_s, is_shared=is_shared).serve()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
