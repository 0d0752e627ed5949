"""The clusters of which backups are made: nodes of one machine, and members of shards in etcd."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import click

from millstream.cli_error import CliError
from millstream.errors import StartError, printable
from millstream.server.backup.backup_cli import (
    Failure,
    Outcome,
    SourceLost,
    copy_of_directory,
    copy_of_server,
)
from millstream.server.backup.sources import Copied
from millstream.server.cluster.cluster_backup import ShardState
from millstream.server.cluster.cluster_view import ClusterView, by_number, view_of
from millstream.server.cluster.slot_map import Shard, SlotMap, read_map
from millstream.server.cluster.store.records import BACKUP_LOCK, USERS, Step
from millstream.server.cluster.store.store import Change, Compare, Store
from millstream.server.cluster.store.store_opening import StoreSettings
from millstream.server.cluster.store_cli import run_with_store
from millstream.server.cluster.unix_sockets import ask_supervisor
from millstream.server.config.cluster_directives import MAP_NAME
from millstream.server.repair.destination import USERS_NAME
from millstream.server_url import split_url
from millstream.storage.files.disk import SystemDisk
from millstream.tools.tool_connection import ToolConnection

LOCK_S = 20  # how long the lock lasts after its program was last heard
STEADY_S = 30.0  # until each shard has a primary, and no slots are being handed over
AGAIN_S = 0.3
# With the defaults of cluster-lease and cluster-node-timeout, and time for the election.
ELECTED_S = 20.0

T = TypeVar("T")


def node_url(url: str, host: str, port: int) -> str:
    """A URL with the user, the password and the TLS of this one, for a node. UsageError if it is
    wrong."""
    try:
        parts = split_url(url)
    except ValueError as problem:
        raise click.UsageError(f"--url: {problem}") from None
    if parts.scheme not in ("redis", "rediss"):
        raise click.UsageError("--url has to begin with redis:// or rediss://")
    login, at, _ = parts.netloc.rpartition("@")
    shown = f"[{host}]" if ":" in host else host
    return parts._replace(netloc=f"{login}{at}{shown}:{port}", path="").geturl()


class _Nodes:
    """Copies data from the nodes at the addresses that are found. `url` has what they share."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url = url
        self._timeout_s = timeout_s

    @property
    def uses_tls(self) -> bool:
        return self.url.startswith("rediss:")

    def copy(
        self, node: str, host: str, port: int, disk: SystemDisk
    ) -> tuple[Copied, dict[str, Any]]:
        def check(server: ToolConnection) -> None:
            found = server.call("CLUSTER", "MYID")
            if found != node.encode():
                raise Failure(
                    Outcome.REFUSED, f"{server.name} is not the node {node}: it has another ID"
                )

        return copy_of_server(node_url(self.url, host, port), self._timeout_s, disk, (), check)


class StoredSource:
    """A cluster whose map is in etcd. Its primaries are copied: they have all that was confirmed.

    Meanwhile there is a lock in etcd, bound to a lease that a thread keeps alive."""

    patience_s = ELECTED_S

    def __init__(self, settings: StoreSettings, url: str, timeout_s: float) -> None:
        self.name = settings.name
        self._settings = settings
        self._nodes = _Nodes(url, timeout_s)
        self._lease = 0
        self._first: ClusterView | None = None
        self._users: bytes | None = None

    def _run(self, use: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        return run_with_store(self._settings, use)

    @contextmanager
    def held(self) -> Iterator[None]:
        self._run(self._read_view)
        self._lease = self._run(self._take_lock)
        over = threading.Event()
        keeper = threading.Thread(target=self._keep, args=(over,), daemon=True)
        keeper.start()
        try:
            self._first = self._run(_steady)
            yield
        finally:
            over.set()
            keeper.join()
            with suppress(CliError):
                self._run(lambda store: store.revoke(self._lease))

    async def _read_view(self, store: Store) -> ClusterView:
        return view_of(await store.read())

    async def _take_lock(self, store: Store) -> int:
        lease = await store.grant(LOCK_S)
        text = f"by {socket.gethostname()}, process {os.getpid()}"
        lock = Change(BACKUP_LOCK, text.encode(), lease.id)
        if not (await store.commit([Compare(BACKUP_LOCK, 0)], [lock])).done:
            await store.revoke(lease.id)
            value = (await store.read()).values.get(BACKUP_LOCK)
            data = b"" if value is None else b" " + value.data[:200]
            by = printable(data.decode("utf-8", "replace"))
            raise CliError(
                f"a backup of this cluster is being made{by}: wait for its end. If its program was "
                f"killed, its lock ends {LOCK_S} seconds later"
            )
        return lease.id

    def _keep(self, over: threading.Event) -> None:
        while not over.wait(LOCK_S / 4):
            with suppress(CliError):  # `check` says whether the lock is still there
                self._run(lambda store: store.keep_alive(self._lease))

    @property
    def epoch(self) -> int:
        assert self._first is not None
        return self._first.map.epoch

    def shards(self) -> list[str]:
        """Those with slots: others have no data, and perhaps no nodes that run."""
        assert self._first is not None
        return sorted({shard for _, _, shard in self._first.map.ranges}, key=by_number)

    def state(self, shard: str) -> ShardState:
        return self._run(lambda store: _state(store, shard))

    def copy(self, state: ShardState, disk: SystemDisk) -> tuple[Copied, dict[str, Any]]:
        view = self._run(self._read_view)
        found = view.nodes.get(state.primary)
        if found is None:
            problem = f"the primary of shard {state.name} has stopped: try again"
            raise SourceLost(Outcome.REFUSED, problem)
        node = found.record
        port = node.tls_port if self._nodes.uses_tls else node.port
        if not port:
            scheme = "redis://" if self._nodes.uses_tls else "rediss://"
            raise CliError(f"the node {state.primary} needs a --url that begins with {scheme}")
        return self._nodes.copy(state.primary, node.host, port, disk)

    def check(self) -> None:
        contents = self._run(lambda store: store.read())
        lock = contents.values.get(BACKUP_LOCK)
        if lock is None or lock.lease != self._lease:
            raise CliError(
                "nothing is kept: the lock of this backup has ended, because etcd did not answer "
                f"for {LOCK_S} seconds. Try again"
            )
        if self._first is None or view_of(contents).map != self._first.map:
            raise CliError(
                "nothing is kept: slots have moved to another shard meanwhile. Try again"
            )
        users = contents.values.get(USERS)
        self._users = None if users is None else users.data

    def users(self) -> bytes | None:
        return self._users


async def _steady(store: Store) -> ClusterView:
    """The contents while no move hands over slots."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + STEADY_S
    while True:
        view = view_of(await store.read())
        handing = [id for id, one in view.moves.items() if one.record.step == Step.HANDING]
        if not handing:
            return view
        if loop.time() > end_s:
            raise CliError(
                f"the move {handing[0]} has been handing over slots for {STEADY_S:g} seconds: look "
                "for what hinders it with CLUSTER MIGRATION STATUS, or cancel it"
            )
        await asyncio.sleep(AGAIN_S)


async def _state(store: Store, shard: str) -> ShardState:
    """A shard whose primary runs, perhaps after an election."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + STEADY_S
    while True:
        view = view_of(await store.read())
        found = view.shards.get(shard)
        if found is None:
            raise CliError(f"there is no shard {shard} any more")
        record = found.record
        if record.primary in view.nodes:
            ranges = tuple(row[:2] for row in view.map.ranges if row[2] == shard)
            return ShardState(
                shard, record.term, record.primary, ranges, record.size, record.durable
            )
        if loop.time() > end_s:
            raise CliError(
                f"shard {shard} has no primary that runs: see `millstream cluster status`"
            )
        await asyncio.sleep(AGAIN_S)


def map_in(folder: Path) -> SlotMap:
    """The map of the nodes of a directory. CliError if it has none that can be used."""
    try:
        found = read_map(folder)
    except StartError as problem:
        raise CliError(str(problem)) from None
    if found is None:
        raise CliError(f"{folder} is not a directory of nodes: it has no {MAP_NAME}")
    return found


class MachineSource:
    """The nodes of a directory; those that do not run are copied without a server."""

    name = ""
    patience_s = 0.0  # a node has no successor

    def __init__(self, folder: Path, slot_map: SlotMap, url: str, timeout_s: float) -> None:
        self._folder = folder
        self._map = slot_map
        self._nodes = _Nodes(url, timeout_s)
        self._running: dict[str, Any] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Slots do not move. Without a supervisor, none can start."""
        self._running = ask_supervisor(self._folder)
        if self._running is not None:
            yield
            return
        disk = SystemDisk(self._folder)
        disk.lock_for("or start it completely", alone=False)
        try:
            yield
        finally:
            disk.unlock()

    @property
    def epoch(self) -> int:
        return self._map.epoch

    def shards(self) -> list[str]:
        return [shard.name for shard in self._map.shards]

    def _shard(self, name: str) -> Shard:
        return next(shard for shard in self._map.shards if shard.name == name)

    def state(self, shard: str) -> ShardState:
        found = self._shard(shard)
        return ShardState(shard, self._map.term, found.node, found.ranges, 1, 0)

    def copy(self, state: ShardState, disk: SystemDisk) -> tuple[Copied, dict[str, Any]]:
        shard = self._shard(state.name)
        if self._running is None:
            return copy_of_directory(self._folder / shard.folder, disk)
        parts = split_url(self._nodes.url)
        port = self._running["nodes"][str(shard.number)]["port"]
        if self._nodes.uses_tls and parts.port:
            port = parts.port + shard.number  # of the gateway, as the supervisor's
        return self._nodes.copy(state.primary, parts.hostname or "127.0.0.1", port, disk)

    def users(self) -> bytes | None:
        path = self._folder / USERS_NAME
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise CliError(f"{path} cannot be read: {problem.strerror}") from None

    def check(self) -> None:
        """The map of one machine does not change."""
