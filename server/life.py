"""The life of a server: building its parts, starting, each second, and stopping.

While data is loaded, the server listens and replies LOADING, as Redis does, so no client sees
incomplete data. Before a stop, writes are postponed until all replicas have applied everything, or
shutdown-timeout is over. Then the data is saved if there is no other copy, and the server stops.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from millstream import __version__
from millstream.commands.admin.saving import SHUTDOWN_FAILED
from millstream.commands.runtime.effects import apply_effects
from millstream.commands.table.loader import load_table
from millstream.errors import LOADING, CommandError, DataError
from millstream.memory_reserve import RESERVE, share_heap
from millstream.server.backup.sending import Backups
from millstream.server.clients import Clients, is_local
from millstream.server.config.apply import switch_journal
from millstream.server.config.cluster_directives import MAP_NAME, SUPERVISOR_VARIABLE
from millstream.server.config.directives import NAMES, Config
from millstream.server.config_check import warnings
from millstream.server.crash_report import CrashReport
from millstream.server.durability.data_files import prepare_directory
from millstream.server.durability.data_loading import without_collections
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.durability.frame_waits import FrameWaits
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.persistence_info import persistence_section
from millstream.server.durability.workers import Machine
from millstream.server.execution.access import Access
from millstream.server.execution.clocks import SteadyClock, wall_clock_ms, wall_clock_us
from millstream.server.execution.eviction import Eviction
from millstream.server.execution.executor import Executor
from millstream.server.execution.pubsub import PubSub
from millstream.server.execution.user_store import UserStore
from millstream.server.lame_duck import LameDuck
from millstream.server.late_parts import LateParts
from millstream.server.monitor import info, log
from millstream.server.monitor.clock_watch import ClockWatch
from millstream.server.monitor.failed_handshakes import FAILED_HANDSHAKES
from millstream.server.monitor.latency import LatencyMonitor
from millstream.server.monitor.log import LOGGER
from millstream.server.monitor.memory import Gauge
from millstream.server.monitor.memory_info import MemoryInfo
from millstream.server.monitor.slowlog import Slowlog
from millstream.server.net.connection import Connection, note_readers
from millstream.server.net.listeners import Listeners
from millstream.server.net.poller import Poller, make_poller
from millstream.server.oom_score import OomScore
from millstream.server.process import LoopErrors, PidFile, Supervision, fit_maxclients
from millstream.server.replication.role import Role
from millstream.server.settings import Settings
from millstream.server.settings_file import SettingsFile
from millstream.server.signals import Signals
from millstream.storage.blocks.block import Block
from millstream.storage.blocks.lazyfree import defer
from millstream.storage.capture.restored_times import continue_times, restart_leases
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.disk import Disk, SystemDisk
from millstream.storage.files.manifest import NODES_BACKUP_NAME
from millstream.storage.keyspace.keyspace import Keyspace

if TYPE_CHECKING:
    from millstream.commands.admin.acl import AclHost
    from millstream.commands.admin.client_line import Client
    from millstream.commands.admin.clients import ClientsHost
    from millstream.commands.admin.cluster import ClusterHost
    from millstream.commands.admin.connection import ConnectionHost
    from millstream.commands.admin.debug import DebugHost
    from millstream.commands.admin.information import InformationHost
    from millstream.commands.admin.memory import MemoryHost
    from millstream.commands.admin.monitoring import MonitoringHost
    from millstream.commands.admin.pubsub import PubSubHost
    from millstream.commands.admin.replication import ReplicationHost
    from millstream.commands.admin.saving import SavingHost
    from millstream.commands.admin.scripts import ScriptHost
    from millstream.commands.generic.databases import DatabasesHost
    from millstream.commands.generic.strings import StringHost
    from millstream.commands.runtime.context import Session
    from millstream.server.cluster.member_node import MemberNode
    from millstream.server.cluster.node import ClusterNode
    from millstream.server.metrics.service import Metrics

GC_THRESHOLDS = (200_000, 50, 100)
LOADING_TURN_S = 0.005
SHUTDOWN_PAUSE = "shutdown"
AGAIN_S = 10  # a signal within this time after a failed save stops without one

PROMISES = {
    "always": "replies are sent when the journal is on disk; a crash loses no acknowledged write",
    "everysec": "the journal is synced once a second; a crash of the machine loses about a second",
    "no": "the operating system decides when the journal is synced",
}
GROUPS_PROMISE = "after a power failure, entries of the last second may be delivered again"


def serve_until_stopped(config: Config, file: Path | None, arguments: Sequence[str] = ()) -> bool:
    """Run a server; return whether all data is on the disk at the end. `file` is the configuration
    file, which CONFIG REWRITE changes, and SIGHUP reads again with the directives in
    `arguments`."""
    if config.logfile:
        prepare_directory(config.dir)  # a relative name is in it
    log.configure(config.loglevel, config.located(config.logfile), config.log_format)
    share_heap()
    # With io_uring, libuv makes a costlier system call for each new connection. uvloop 0.23 uses it
    # in any case.
    os.environ.setdefault("UV_USE_IO_URING", "0")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, file, arguments))


async def _serve(config: Config, file: Path | None, arguments: Sequence[str]) -> bool:
    server = Server(config, config_file=file, arguments=arguments)
    LoopErrors(server.loop)
    server.crash_report.begin()
    signals = Signals(server, server.loop)
    signals.start()
    link = None
    if SUPERVISOR_VARIABLE in os.environ:
        from millstream.server.cluster.supervisor_link import SupervisorLink

        link = SupervisorLink.of_server(server)
    RESERVE.take(server.executor.eviction_work.refuse_all)
    server.poller = poller = make_poller(server.loop, server.executor)
    try:
        await server.start()
        if link is not None:
            link.begin_serving()
        await server.stopping.wait()
        signals.begin_stop()
        saved = await server.stop()
        if server.member is not None:
            await server.member.give_back()
        signals.end()
        return saved
    finally:
        if poller is not None:
            poller.close()
        server.pid_file.remove()


class Server:
    """One running server: its parts, which commands reach as `ctx.server`. `disk` and `now_ms` are
    the machine's unless a test passes others."""

    def __init__(
        self,
        config: Config,
        *,
        config_file: Path | None = None,
        arguments: Sequence[str] = (),
        disk: Disk | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        load_table()
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.now_ms = now_ms
        # A test's clock moves in milliseconds.
        self.now_us = wall_clock_us if now_ms is wall_clock_ms else lambda: now_ms() * 1000
        self.steady_clock = SteadyClock() if now_ms is wall_clock_ms else None
        self.steady_ms = now_ms if self.steady_clock is None else self.steady_clock.now_ms
        self.has_stopped = False  # nothing is left that another signal could give up
        self.process = info.Process(new_history(), config_file, now_ms(), ClockWatch(now_ms))
        self.supervision = Supervision(config.supervised)
        self.pid_file = PidFile(config.located(config.pidfile))
        self.rates = info.Rates()
        self.slowlog = Slowlog()
        self._gauge = Gauge()  # before the data, so that it knows the memory used at start
        self._system_disk_is_used = disk is None
        self._build_data(disk or SystemDisk(config.dir))
        self.member = make_member(self.config, self.executor, self.persistence)
        self.cluster = self.member or make_node(self.config, self.executor, self.persistence)
        self._build_users()
        self._build_roles()
        self._build_figures()
        self.crash_report = CrashReport(self.executor)
        self.poller: Poller | None = None
        self.listeners = make_listeners(self)
        self.lame_duck = LameDuck(
            config,
            self.clients,
            self.listeners,
            self.executor,
            self.process,
            self.supervision,
            stop=self.shutdown.stop_by_signal,
        )
        self.shutdown.on_cancel = self.lame_duck.undo
        self.settings = Settings(
            config,
            config_file,
            self.listeners,
            self.user_store.lines,
            lambda apply, value: apply(self, value),
        )
        self.settings_file = SettingsFile(
            config,
            arguments,
            self.settings,
            self.listeners,
            self.process,
            lambda: self.persistence.loading,
            now_ms,
        )
        self.settings_file.users_differ = self.user_store.differ_from
        self.settings_file.log_reopened = self.crash_report.follow_log
        self.info = self._make_info()
        self.metrics = self._make_metrics()
        self._second: asyncio.TimerHandle | None = None
        self._second_due_s = 0.0
        self._loop_delay_s = 0.0
        self.settings.apply_all()

    # The parts. Each one is given those that were built before it.

    def _build_data(self, disk: Disk) -> None:
        """The data, its files, and the execution of requests. The executor is built after the
        persistence, whose journal it fills, and listens to it from then on."""
        self.keyspace = Keyspace(self.config.databases, clustered=self.config.cluster.enabled)
        self._machine = Machine(disk, self.now_ms, self.steady_ms, self.loop)
        if self.steady_clock is None:  # a simulated clock: every run must take the same rests
            self._machine.thread_s = lambda: 0.0
        self.persistence = Persistence(
            self.config,
            self._machine,
            StoredKeyspace(self.keyspace),
            partial(apply_effects, self.keyspace),
            Block,
        )
        self.executor = Executor(self)
        self.executor.audit.directives = NAMES
        self.snapshots = self.persistence.snapshots
        self.push = self.executor.push
        self._gauge.transient = lambda: self.persistence.commits.queued_bytes
        self.eviction = Eviction(self.executor.context, self._gauge, lambda: self.executor.bytes_in)

    def _build_users(self) -> None:
        """The users, and the clients that are logged in as these. A user whose rules change has its
        clients disconnected, so `Access` shares the table of `Clients`."""
        by_id: dict[int, Client] = {}
        self.access = Access(self.executor, by_id, lambda client: self.clients.kill(client))
        self.user_store = UserStore(self.config, self.access)
        self.pubsub = PubSub(self.executor.push_encoded, self.executor.push_at_once)
        self.clients = Clients(
            self.config,
            by_id,
            self.executor,
            self.access,
            self.pubsub,
            self.steady_ms,
            self.loop.call_later,
        )
        self.executor.outbox.check_output = self.clients.check_output
        self.waits = FrameWaits(self.executor, self.persistence, by_id)

    def _build_roles(self) -> None:
        """Replication, which needs the clients that are its replicas; and the stop, which waits for
        replicas."""
        config, keyspace, persistence = self.config, self.keyspace, self.persistence
        late_parts = LateParts(
            config,
            keyspace,
            persistence,
            self.loop,
            port=lambda: self.listeners.port,
            next_client_id=self.clients.next_id,
        )
        self.replication = Role(
            config,
            self._machine,
            keyspace,
            persistence,
            self.executor,
            late_parts,
            clients=self.clients.by_id,
            new_id=new_history,
            continue_clock=self._continue_clock_as_primary,
            deliver=self.pubsub.deliver,
            check_waits=self.check_waits,
        )
        self.persistence.commits.follow(self.replication)
        self.backups = Backups(
            config,
            self._machine,
            keyspace,
            persistence,
            is_replica=lambda: self.replication.is_replica,
            note_readers=note_readers,
            commands=lambda: self.executor.statistics.commands,
        )
        self.clients.when_gone(self.backups.remove)
        self.oom_score = OomScore(config, lambda: self.replication.is_replica)
        self.clients.when_gone(self.replication.client_gone)
        self.shutdown = Shutdown(
            self.config, self.persistence, self.executor, self.clients, self.replication, self.loop
        )
        self.stopping = self.shutdown.requested
        self.snapshots.busy = self.supervision.busy
        if self.member is not None:
            self.member.join(self)

    def _build_figures(self) -> None:
        self.latency = LatencyMonitor(
            counts=lambda: self.executor.table.latencies() if self.config.latency_tracking else {}
        )
        self.persistence.commits.note_slow_sync = lambda milliseconds: self.latency.note(
            "aof-fsync-always", self.now_ms(), milliseconds
        )
        self.memory = MemoryInfo(
            self._gauge,
            self.config,
            self.clients,
            self.executor,
            self.persistence,
            self.replication,
            self.steady_ms,
        )

    def _make_info(self) -> info.Info:
        config, clients, executor = self.config, self.clients, self.executor
        keyspace, replication, latency = self.keyspace, self.replication, self.latency
        traffic = partial(info.traffic_stats, clients, executor, replication, self.rates)
        data = partial(info.data_stats, keyspace, executor, self.eviction, self.pubsub, clients)
        requests = partial(info.request_stats, executor, clients, self.access)
        supervisor = lambda: self.supervision.name  # noqa: E731
        sections: dict[str, info.Collect] = {
            "server": partial(
                info.server_section, self.process, supervisor, self.listeners, config, self.now_us
            ),
            "persistence": lambda: persistence_section(
                self.persistence,
                keyspace.dirty,
                executor.backpressure.count,
                self.backups.last_s,
                self.steady_ms(),
            ),
            "stats": lambda: traffic() + data() + requests(),
            "replication": replication.info,
            "cpu": partial(info.cpu_section, self.steady_ms),
            "modules": info.no_section,
            "commandstats": partial(info.commands_section, executor),
            "errorstats": partial(info.errors_section, executor),
            "latencystats": partial(info.latency_section, latency, config),
            "cluster": partial(info.cluster_section, config),
            "keyspace": partial(info.keyspace_section, keyspace),
        }
        found = info.Info(sections, clients.totals)
        sections["clients"] = partial(
            info.clients_section, clients, executor, config, self.steady_ms, found.client_totals
        )
        sections["memory"] = partial(self.memory.section, found.client_totals)
        return found

    def _make_metrics(self) -> Metrics | None:
        """The metrics' port. Without one, its modules are not loaded: a start is mostly imports."""
        if not self.config.metrics.port:
            return None
        from millstream.server.metrics.server_series import Sources
        from millstream.server.metrics.service import Metrics

        sources = Sources(
            config=self.config,
            process=self.process,
            info=self.info,
            clients=self.clients,
            access=self.access,
            executor=self.executor,
            persistence=self.persistence,
            listeners=self.listeners,
            slowlog=self.slowlog,
            latency=self.latency,
            cluster=self.cluster,
            stopping=self.stopping,
            loop_delay_s=lambda: self._loop_delay_s,
            now_ms=self.now_ms,
            steady_ms=self.steady_ms,
        )
        return Metrics(sources, self.loop)

    # Start

    async def start(self) -> None:
        """Load the data, then serve clients. Raises StartError or DataError with one sentence."""
        self.supervision.watch(self.loop)
        self.user_store.load_first()
        if self.config.tls.replication:
            from millstream.server.net.tls_contexts import make_link_context

            make_link_context(self.config)  # StartError now, and not when the link is made
        self.listeners.bind()
        if self.metrics is not None:
            self.metrics.bind()
        fit_maxclients(self.config)
        if self._system_disk_is_used:
            prepare_directory(self.config.dir)
            if any((self.config.dir / name).exists() for name in (MAP_NAME, NODES_BACKUP_NAME)):
                from millstream.server.cluster.slot_map import refuse_nodes

                refuse_nodes(self.config.dir)
        self.oom_score.start()
        self.persistence.start_workers()
        if not await self._load():
            return
        defer(True)
        if any(map(len, self.keyspace.databases)):
            gc.collect()  # otherwise there is hardly any garbage
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()  # server/main disables it
        self._await_second()
        self.replication.start()
        self._report_ready()

    async def _load(self) -> bool:
        """Load the data while clients get LOADING; False when the server was stopped meanwhile."""
        report = LoadReport()
        slices = self.persistence.load_slices(
            report, self.supervision.progress(log.progress_line())
        )
        self.keyspace.set_time(self.now_ms(), self.steady_ms())
        self.keyspace.expiring = False  # the journal contains the expiries
        self.executor.begin_loading()
        with without_collections(), contextlib.closing(slices):
            next(slices)  # locks the directory
            await self.listeners.listen()
            if self.metrics is not None:
                await self.metrics.listen()
            self.pid_file.write()
            if not await self._in_turns(slices):
                LOGGER.info("stopped while loading: nothing was changed")
                return False
        self.keyspace.expiring = True
        self._continue_clock()
        if self.cluster is not None:
            self.cluster.check_keys(self.keyspace)
            self.persistence.files.adopt()
            self.cluster.start(self.pubsub.publish, self.executor, self.loop, self.clients.by_id)
        switch_journal(self)
        self.executor.end_loading()  # timers of loaded groups run without any client
        self._report_loaded(report)
        return True

    async def _in_turns(self, slices: Iterator[None]) -> bool:
        """Run all slices, and yield to the event loop every few milliseconds."""
        end_s = time.perf_counter() + LOADING_TURN_S
        for _ in slices:
            if time.perf_counter() >= end_s:
                self.supervision.loading()
                await asyncio.sleep(0)
                if self.stopping.is_set():
                    return False
                end_s = time.perf_counter() + LOADING_TURN_S
        return True

    def _continue_clock(self) -> None:
        """Continue the steady clock after the latest recorded time. Retries and idle times then
        continue even if the wall clock went back between two starts. Leases restart."""
        if self._advance_clock():
            continue_times(self.keyspace, self.steady_ms())
        restart_leases(self.keyspace, self.steady_ms())

    def _continue_clock_as_primary(self) -> None:
        """The same, but all times to live and leases restart."""
        self._advance_clock()
        continue_times(self.keyspace, self.steady_ms())

    def _advance_clock(self) -> bool:
        """Continue the steady clock after the latest recorded time; False if it is later anyway."""
        newest_ms = self.keyspace.newest_steady_ms
        if self.steady_clock is None or newest_ms <= self.steady_clock.now_ms():
            return False
        self.steady_clock.continue_from(newest_ms)
        return True

    def check_waits(self) -> None:
        """More is on the disk, or on replicas, than before: end the waits for it."""
        self.waits.check()
        self.shutdown.check_replicas()

    def _report_loaded(self, report: LoadReport) -> None:
        keys = sum(map(len, self.keyspace.databases))
        folder = self.config.dir.resolve()
        LOGGER.info(
            "data     %s: %s, loaded in %.2f seconds",
            folder,
            "1 key" if keys == 1 else f"{keys} keys",
            report.seconds,
            extra={"facts": {"dir": str(folder), "keys": keys, "load_seconds": report.seconds}},
        )

    def _report_ready(self) -> None:
        """Log that the server is ready, and how durable its data is."""
        config, where = self.config, self.listeners.described()
        facts = {"version": __version__, "port": self.listeners.port, "pid": os.getpid()}
        if config.appendonly:
            mode = config.appendfsync
            LOGGER.info("journal  appendfsync %s: %s", mode, PROMISES[mode])
            if mode == "always" and config.appendfsync_groups == "everysec":
                LOGGER.info("journal  appendfsync-groups everysec: %s", GROUPS_PROMISE)
        else:
            LOGGER.warning("journal  off: a crash loses everything after the last snapshot")
        for warning in warnings(config, self.process.config_file):
            LOGGER.warning("config   %s", warning)
        LOGGER.info(
            "ready    millstream %s listens on %s (process %d)",
            __version__, where, os.getpid(),
            extra={"facts": facts},
        )  # fmt: skip
        self.supervision.ready(where)
        self.loop.call_later(1, load_for_snapshots)

    # Each second

    def _await_second(self) -> None:
        self._second_due_s = self.loop.time() + 1
        self._second = self.loop.call_at(self._second_due_s, self._tick_second)

    def _tick_second(self) -> None:
        self._loop_delay_s = max(0.0, self.loop.time() - self._second_due_s)
        self._await_second()
        executor = self.executor
        self.rates.sample(
            self.steady_ms(),
            executor.statistics.commands,
            executor.bytes_in,
            executor.outbox.bytes_out,
            self.replication.totals.received_bytes,
            self.replication.feeds.source.sent_bytes,
        )
        self.memory.tick_second()
        executor.eviction_work.tick_second()
        executor.audit.tick_second()
        FAILED_HANDSHAKES.tick_second()
        self.clients.tick_second()
        self.oom_score.tick_second()
        self.persistence.tick_second(self.keyspace.dirty)
        self.replication.tick_second()
        self.backups.tick_second()
        self.process.clock.tick_second()

    # Stop

    async def stop(self) -> bool:
        """Finish the tick, sync the journal, send held replies, close everything. False when not
        all data is on the disk."""
        RESERVE.give_back_all()
        self.stopping.set()
        self.clients.refuse_new()
        attempt(self.supervision.stopping)
        if self._second is not None:
            self._second.cancel()
        attempt(self.lame_duck.close)
        attempt(self.listeners.close)
        if self.metrics is not None:
            attempt(self.metrics.close)
        # No await from here to the end of the loop, so that nothing can run after the last fsync.
        if self.cluster is not None:
            attempt(self.cluster.stop)
        attempt(self.executor.end_tick)
        attempt(self.backups.stop)
        attempt(self.replication.stop)
        saved = self.persistence.close(tries_base=self.shutdown.tries_base)
        attempt(self.executor.outbox.flush)
        for client in list(self.clients.values()):
            attempt(partial(client.close, after_reply=True))
        await self.clients.wait_until_gone()
        defer(False)
        self.has_stopped = True
        LOGGER.info("stopped")
        self.supervision.close()
        return saved

    def give_up(self, by: str) -> None:
        """A signal ends the process at once: log which data is not on the disk."""
        self.persistence.unsynced.tell_given_up(by)
        self.pid_file.remove()

    def reload_files(self) -> None:
        """SIGHUP."""
        self.settings_file.reload()

    # What commands ask of the server as a whole

    def random_number(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    def log(self, message: str) -> None:
        LOGGER.info("%s", message)

    def warn(self, message: str) -> None:
        LOGGER.warning("%s", message)

    def reset_stats(self) -> None:
        self.executor.reset_stats()
        self.access.log.counts.clear()
        FAILED_HANDSHAKES.count = 0
        self.keyspace.hits = self.keyspace.misses = self.keyspace.expired_count = 0
        self.keyspace.missed_entries = self.keyspace.scheduled_fired = 0
        self.keyspace.dead_letters.copied = 0
        self.keyspace.lost_entries = 0
        self.clients.reset_stats()
        self.eviction.reset_stats()
        self.rates.clear()

    def may_debug(self, session: Session) -> bool:
        allowed = self.config.enable_debug_command
        return allowed == "yes" or (allowed == "local" and is_local(session))

    def sleep(self, seconds: float) -> None:
        """DEBUG SLEEP: block the event loop."""
        time.sleep(seconds)
        self.executor.recheck_limits()

    def reload(self, *, save: bool, flush: bool) -> None:
        """DEBUG RELOAD and LOADAOF."""
        if self.persistence.loading:
            raise CommandError(LOADING)
        if save:
            save_anyway(self.persistence)
        self.keyspace.expiring = False  # the journal contains the expiries, as at start
        try:
            self.persistence.read_again(self._empty_databases if flush else lambda: None)
        except DataError as problem:
            # A partly loaded keyspace must not be served or saved; the disk has all data.
            LOGGER.critical("stopping: the data cannot be loaded again: %s", problem)
            os._exit(1)
        finally:
            self.keyspace.expiring = True
        for db in self.keyspace.databases:
            for key in list(db.waiting):
                self.keyspace.mark_ready(db.index, key)

    def _empty_databases(self) -> None:
        defer(False)  # the next steps need the memory
        self.keyspace.slot_states.clear()
        for db in self.keyspace.databases:
            db.clear()
        defer(True)


def make_member(config: Config, executor: Executor, persistence: Persistence) -> MemberNode | None:
    """This server as a node of a cluster in etcd; None if it is none."""
    if not config.cluster.name:
        if config.cluster.secret_file:  # a mistake in it shows also where it has no effect
            from millstream.server.config.secret_file import read_secret

            read_secret(config)
        return None
    from millstream.server.cluster.member_node import open_member

    commits = persistence.commits
    node = open_member(config, lambda: executor.loading, lambda: commits.last_seq)
    executor.admission.set_slots(node.slots)
    persistence.files.node = node.id
    return node


def make_node(config: Config, executor: Executor, persistence: Persistence) -> ClusterNode | None:
    """This server as a node of a cluster on one machine; None if it is none."""
    if not config.cluster.enabled:
        return None
    from millstream.server.cluster.node import open_node

    commits = persistence.commits
    node = open_node(config, lambda: executor.loading, lambda: commits.last_seq)
    executor.admission.set_slots(node.slots)
    persistence.files.node = node.id
    return node


def make_listeners(server: Server) -> Listeners:
    """The ports of a server. A node of a cluster on one machine has a socket for gateways, too."""
    config = server.config

    def new_connection() -> Connection:
        return Connection(server.clients, server.executor, server.poller)

    if not config.cluster.enabled or config.cluster.name or not config.port:
        return Listeners(config, new_connection)
    from millstream.server.cluster.gateway_socket import GatewaySocket

    folder, backlog = config.dir.resolve(), config.tcp_backlog
    further = GatewaySocket(folder, config.port, backlog, new_connection)
    return Listeners(config, new_connection, for_gateways=further)


class Shutdown:
    """Requests to stop: SHUTDOWN, signals, and the wait for replicas before the stop. `tries_base`:
    whether to try to write a last base if the journal has failed."""

    def __init__(
        self,
        config: Config,
        persistence: Persistence,
        executor: Executor,
        clients: Clients,
        replication: Role,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.requested = asyncio.Event()
        self.tries_base = True
        self.on_cancel: Callable[[], object] = lambda: None
        self._config = config
        self._persistence = persistence
        self._executor = executor
        self._clients = clients
        self._replication = replication
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None  # while replicas are waited for
        self._save_choice: bool | None = None
        self._is_forced = False
        self._signal = ""
        self._words: list[str] = []  # shutdown-on-sigterm or -sigint, for this signal
        self._waiting: set[int] = set()  # clients of SHUTDOWN
        self._failed_s = -math.inf  # when the last save after a signal failed

    def request(self, reason: str) -> None:
        """Stop after the current tick; may be called more than once."""
        if not self.requested.is_set():
            LOGGER.info("stopping: %s", reason)
            self.requested.set()
            self._clients.refuse_new()

    # SHUTDOWN

    def wait_for_replicas(self, save: bool | None, is_forced: bool, client_id: int) -> bool:
        """Wait for replicas; False if there is nothing to wait for."""
        if not self._begin_waiting():
            return False
        self._save_choice, self._is_forced = save, is_forced
        self._waiting.add(client_id)
        return True

    def save_and_stop(self, save: bool | None, is_forced: bool) -> None:
        """Save, and stop the server. `save`: SAVE or NOSAVE; None saves only if there is no other
        copy of the data. CommandError when that fails, unless `is_forced`."""
        RESERVE.give_back_all()
        try:
            self._save(save)
        except CommandError:
            if not is_forced:
                raise CommandError(SHUTDOWN_FAILED) from None
        self.tries_base = False  # a new base was tried, or is not wanted
        self.request("a client sent SHUTDOWN")

    def abort(self) -> None:
        """SHUTDOWN ABORT. CommandError if no shutdown is in progress."""
        if self._timer is None:
            raise CommandError("ERR No shutdown in progress.")
        LOGGER.warning("the shutdown was aborted")
        self._cancel()

    # Signals

    def stop_by_signal(self, name: str) -> None:
        """Stop as SHUTDOWN does, with the words of shutdown-on-sigterm or shutdown-on-sigint. If
        the last snapshot would be the only copy and cannot be written, the server continues, as
        Redis does; a second signal soon after that ends it anyway, and a later one tries to save
        again. A second signal also ends the wait for replicas."""
        self._signal = name
        config = self._config
        wanted = config.shutdown_on_sigint if name == "SIGINT" else config.shutdown_on_sigterm
        self._words = wanted.split()
        if self._timer is not None:
            self._finish()
        elif "now" in self._words or not self._begin_waiting():
            self._end_by_signal(name)

    def _end_by_signal(self, name: str) -> None:
        RESERVE.give_back_all()
        words = self._words
        saves = "save" in words or (self._saves_at_end() and "nosave" not in words)
        is_again = self._loop.time() - self._failed_s < AGAIN_S
        if saves and not self._persistence.loading and not is_again:
            try:
                save_anyway(self._persistence)
            except CommandError as problem:
                LOGGER.error("received %s, but the data cannot be saved: %s", name, problem)
                if "force" not in words:
                    self._failed_s = self._loop.time()
                    LOGGER.warning(
                        "the server continues. A signal within %d seconds stops it without this"
                        " data; a later one saves again",
                        AGAIN_S,
                    )
                    self._cancel()
                    return
        if {"save", "nosave"} & set(words):
            self.tries_base = False  # a new base was tried, or is not wanted
        self.request(f"received {name}")

    # Waiting for replicas

    def check_replicas(self) -> None:
        """Check the replicas again: one has acknowledged something, or has disconnected."""
        if self._timer is not None and not self._replication.lagging():
            self._finish()

    def _begin_waiting(self) -> bool:
        if self._timer is not None:
            return True
        timeout_s = self._config.shutdown_timeout
        if self._persistence.loading or self.requested.is_set() or not timeout_s:
            return False
        self._persistence.commits.flush_tick()
        count = self._replication.lagging()
        if not count:
            return False
        LOGGER.warning(
            "stopping: waiting up to %d seconds for replicas that lack the last changes: %d",
            timeout_s, count,
        )  # fmt: skip
        self._executor.pauses.pause_writes(SHUTDOWN_PAUSE)
        self._timer = self._loop.call_later(timeout_s, self._time_out)
        return True

    def _time_out(self) -> None:
        LOGGER.warning(
            "stopping although replicas lack the last changes: %d", self._replication.lagging()
        )
        self._finish()

    def _finish(self) -> None:
        """End the wait and stop."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if not self._waiting:
            self._end_by_signal(self._signal)
            return
        try:
            self.save_and_stop(self._save_choice, self._is_forced)
        except CommandError:
            self._cancel()

    def _cancel(self) -> None:
        """Cancel the stop: resume writes and release the waiting clients."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        for number in self._waiting:
            client: Any = self._clients.get(number)
            if client is not None:
                self._executor.end_wait(client, SHUTDOWN_FAILED)
        self._waiting.clear()
        self._executor.pauses.resume_writes(SHUTDOWN_PAUSE)
        self.on_cancel()

    # Saving

    def _save(self, save: bool | None) -> None:
        wanted = self._saves_at_end() if save is None else save
        if wanted and not self._persistence.loading:  # loaded data is on the disk
            save_anyway(self._persistence)
        elif save is None and self._persistence.lacks_base:
            self._persistence.write_base()

    def _saves_at_end(self) -> bool:
        config = self._config
        return not config.appendonly and bool(config.shown("save"))


def attempt(step: Callable[[], object]) -> None:
    """Run a step of a stop. Its failure, for example without memory, must not prevent the steps
    after it: one of them is the last sync."""
    try:
        step()
    except Exception as error:
        LOGGER.error("the stop continues, although a step of it has failed", exc_info=error)


def save_anyway(persistence: Persistence) -> None:
    """Save; finish a running snapshot first."""
    persistence.snapshots.finish()
    persistence.snapshots.save()


def load_for_snapshots() -> None:
    """Load what a start does not need, and the first snapshot should not wait for."""
    from millstream.storage.capture import capture  # noqa: F401
    from millstream.storage.files import snapshot_format, snapshot_writer  # noqa: F401

    snapshot_format.zstd()


def new_history() -> str:
    return os.urandom(20).hex()


if TYPE_CHECKING:
    # What the modules of commands/ need of their server: mypy checks that it has all of it.
    # fmt: off
    def _as_hosts(server: Server) -> tuple[
        AclHost, ClientsHost, ClusterHost, ConnectionHost, DatabasesHost, DebugHost,
        InformationHost, MemoryHost, MonitoringHost, PubSubHost, ReplicationHost, SavingHost,
        ScriptHost, StringHost,
    ]:
        one = server
        return one, one, one, one, one, one, one, one, one, one, one, one, one, one
    # fmt: on
