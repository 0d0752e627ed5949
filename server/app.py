"""The assembled server: data, journal, executor and listening sockets, from start to stop.

`Server` connects these parts and implements the server's interface for commands (`Host`).
commands/ defines the commands, and the executor runs them. While data is loaded, the server listens
and replies LOADING, as Redis does, so no client sees incomplete data.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.commands.runtime.context import Session
from millstream.commands.runtime.effects import apply_effects
from millstream.commands.runtime.host import Client, PositionWait
from millstream.commands.table.loader import load_table
from millstream.errors import LOADING, CommandError, DataError, StartError
from millstream.memory_reserve import RESERVE
from millstream.server.client_registry import ClientRegistry, is_loopback
from millstream.server.clock import SteadyClock, wall_clock_ms, wall_clock_us
from millstream.server.config.directives import Config
from millstream.server.durability.data_files import prepare_directory
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, ThreadWorker
from millstream.server.execution.access import Access
from millstream.server.execution.executor import Executor
from millstream.server.execution.pubsub import PubSub
from millstream.server.execution.user_store import UserStore
from millstream.server.monitor import allocator, log
from millstream.server.monitor.eviction import Eviction
from millstream.server.monitor.info import Rates, info_text
from millstream.server.monitor.latency import LatencyMonitor
from millstream.server.monitor.log import LOGGER
from millstream.server.monitor.memory import Gauge
from millstream.server.monitor.memory_info import memory_facts
from millstream.server.monitor.slowlog import Slowlog
from millstream.server.net.connection import Connection
from millstream.server.net.listeners import Listeners
from millstream.server.net.tls import make_link_context
from millstream.server.open_files import fit_maxclients
from millstream.server.pid_file import PidFile
from millstream.server.protocol.output_limits import OutputLimits
from millstream.server.replication.connecting import connect_link
from millstream.server.replication.node import LinkProtocol
from millstream.server.replication.role import Replication
from millstream.server.settings import Settings
from millstream.server.shutdown import Shutdown, attempt
from millstream.server.starting import Starting
from millstream.server.supervision import Supervision
from millstream.server.wiring import commit_tick, connect
from millstream.storage.blocks.block import Block
from millstream.storage.blocks.lazyfree import defer
from millstream.storage.capture.restored_times import continue_times
from millstream.storage.capture.stored_keyspace import StoredKeyspace
from millstream.storage.files.disk import Disk, SystemDisk
from millstream.storage.keyspace.keyspace import Keyspace

if TYPE_CHECKING:
    from millstream.server.metrics.service import Metrics

GC_THRESHOLDS = (200_000, 50, 100)


class Server:
    """One running server. `disk` and `now_ms` are the machine's unless a test passes others."""

    def __init__(
        self,
        config: Config,
        *,
        config_file: Path | None = None,
        disk: Disk | None = None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        load_table()
        self.config = config
        self._disk = disk
        self.config_file = config_file
        self.now_ms = now_ms
        self.steady_clock = SteadyClock() if now_ms is wall_clock_ms else None
        self.steady_ms = now_ms if self.steady_clock is None else self.steady_clock.now_ms
        self.loop = asyncio.get_running_loop()
        self.started_at_ms = now_ms()
        self.loop_delay_s = 0.0
        self._second_due_s = 0.0
        self.run_id = self.new_history()
        self.process_id = os.getpid()
        self.started_s = time.monotonic()
        self.registry = ClientRegistry(self)
        # Attributes, because each connection calls them.
        self.next_client_id = self.registry.next_id
        self.client_opened = self.registry.opened
        self.client_closed = self.registry.closed
        self.memory = Gauge()
        self.startup_bytes = self.memory.measure()
        self.peak_rss_bytes = allocator.peak_rss_bytes()
        self.rates = Rates()
        self.slowlog = Slowlog()
        self.latency = LatencyMonitor()
        self.waits: dict[int, PositionWait] = {}
        self.stopping = asyncio.Event()
        self.has_stopped = False  # nothing is left that another signal could give up
        self.supervision = Supervision(config.supervised)
        self.pid_file = PidFile(config.located(config.pidfile))
        self.listeners = Listeners(config, functools.partial(Connection, self))
        self.metrics = self._make_metrics()
        self._timer: asyncio.TimerHandle | None = None
        self.keyspace = Keyspace(databases=config.databases)
        self.persistence = Persistence(
            config,
            Machine(disk or SystemDisk(config.dir), now_ms, self.steady_ms, self.loop),
            StoredKeyspace(self.keyspace),
            functools.partial(apply_effects, self.keyspace),
            Block,
        )
        self.executor = Executor(self)
        self.memory.transient = lambda: self.persistence.queued_bytes
        self.eviction = Eviction(self.executor.context, self.memory, lambda: self.executor.bytes_in)
        self.access = Access(self.executor, self.clients, self.kill_client)
        self.user_store = UserStore(config, self.access)
        self.pubsub = PubSub(self.executor.push_encoded, self.executor.push_at_once)
        self.output_limits = OutputLimits(config, time.monotonic)
        self.executor.outbox.check_output = self.check_output
        self.replication = Replication(self)
        self._starting = Starting(self)
        self.shutdown = Shutdown(self)
        self.settings = Settings(self, config_file)
        connect(self.executor, self.persistence, self.keyspace, self.replication)
        self.access.set_default_password(config.requirepass)
        self.settings.put_in_force()

    def _make_metrics(self) -> Metrics | None:
        """The metrics' port. Without one, its modules are not loaded: a start is mostly imports."""
        if not self.config.metrics_port:
            return None
        from millstream.server.metrics.service import Metrics

        return Metrics(self)

    # Life

    async def start(self) -> None:
        """Load the data, then serve clients. Raises StartError or DataError with one sentence."""
        self.user_store.load_first()
        make_link_context(self.config)  # StartError now, and not when the link is made
        self.listeners.bind()
        if self.metrics is not None:
            self.metrics.bind()
        fit_maxclients(self.config)
        if self._disk is None:
            prepare_directory(self.config.dir)
        self.persistence.start_workers()
        if not await self._starting.load():
            return
        defer(True)
        if any(map(len, self.keyspace.databases)):
            gc.collect()  # otherwise there is hardly any garbage
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()  # server/main disables it
        self._await_second()
        self.replication.start()
        self._starting.tell_ready()

    def continue_clock(self) -> None:
        """For a server that becomes a primary: continue the steady clock after the latest recorded
        time, and restart all times to live and leases."""
        newest_ms = self.keyspace.newest_steady_ms
        if self.steady_clock is not None and newest_ms > self.steady_clock.now_ms():
            self.steady_clock.continue_from(newest_ms)
        continue_times(self.keyspace, self.steady_ms())

    @property
    def port(self) -> int:
        """The TCP port; 0 if there is none."""
        return self.listeners.port

    def request_stop(self, reason: str) -> None:
        """Stop after the current tick; may be called more than once."""
        if not self.stopping.is_set():
            LOGGER.info("stopping: %s", reason)
            self.stopping.set()

    async def stop(self) -> bool:
        """Finish the tick, sync the journal, send held replies, close everything. False when not
        all data is on the disk."""
        RESERVE.give_back_all()
        self.stopping.set()
        attempt(self.supervision.stopping)
        if self._timer is not None:
            self._timer.cancel()
        attempt(self.listeners.close)
        if self.metrics is not None:
            attempt(self.metrics.close)
        # No await from here to the end of the loop, so that nothing can run after the last fsync.
        attempt(self.executor.end_tick)
        attempt(self.replication.stop)
        saved = self.persistence.close(tries_base=self.shutdown.tries_base)
        attempt(self.executor.outbox.flush)
        for client in list(self.clients.values()):
            attempt(functools.partial(client.close, after_reply=True))
        await self.registry.wait_until_gone()
        defer(False)
        self.has_stopped = True
        LOGGER.info("stopped")
        self.supervision.close()
        return saved

    def _await_second(self) -> None:
        self._second_due_s = self.loop.time() + 1
        self._timer = self.loop.call_at(self._second_due_s, self._tick_second)

    def _tick_second(self) -> None:
        self.loop_delay_s = max(0.0, self.loop.time() - self._second_due_s)
        self._await_second()
        executor = self.executor
        self.rates.sample(
            self.steady_ms(),
            executor.statistics.commands,
            executor.bytes_in,
            executor.outbox.bytes_out,
            self.replication.received_bytes,
            self.replication.feeds.sent_bytes,
        )
        self.memory.measure()  # often enough to notice the peak of the blocks' memory
        self.peak_rss_bytes = allocator.peak_rss_bytes()
        self.executor.eviction_work.tick_second()
        self.registry.tick_second()
        self.persistence.tick_second(self.keyspace.dirty)
        self.replication.tick_second()

    def why_writes_are_refused(self) -> str | None:
        """The error of write commands, for all clients: the disk, the memory, or too few replicas.
        A replica refuses writes by design and gives no reason here."""
        error = self.persistence.writable_error()
        if error is not None:
            return error.decode()
        return self.executor.admission.out_of_memory or self.executor.lacks_replicas

    def now_us(self) -> int:
        """Microseconds since the epoch; a test's clock moves in milliseconds."""
        return wall_clock_us() if self.now_ms is wall_clock_ms else self.now_ms() * 1000

    # Clients

    @property
    def clients(self) -> dict[int, Client]:
        return self.registry.clients

    def check_output(self, client: Client) -> None:
        self.registry.check_output(client)

    def kill_client(self, client: Client) -> None:
        self.registry.kill(client)

    def add_monitor(self, client: Any) -> None:
        client.monitoring = True
        self.executor.monitors[client.id] = client

    def remove_monitor(self, client: Client) -> None:
        client.monitoring = False
        self.executor.monitors.pop(client.id, None)

    def push(self, client: Any, message: object) -> None:
        self.executor.push(client, message)

    def pause_clients(self, until_ms: int, writes_only: bool) -> None:
        self.executor.pauses.start(until_ms, writes_only)

    def unpause_clients(self) -> None:
        self.executor.pauses.end()

    def unblock_client(self, client: Any, error: bool) -> bool:
        return self.executor.unblock_client(client, error)

    # CONFIG and INFO

    def config_get(self, patterns: Sequence[bytes]) -> dict[str, str]:
        return self.config.matching(patterns)

    @property
    def longest_string_bytes(self) -> int:
        return self.config.proto_max_bulk_len

    def config_set(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.settings.set(pairs)

    def config_rewrite(self) -> None:
        self.settings.rewrite()

    def reset_stats(self) -> None:
        self.executor.reset_stats()
        self.access.log.counts.clear()
        self.keyspace.hits = self.keyspace.misses = self.keyspace.expired_count = 0
        self.registry.reset_stats()
        self.eviction.reset_stats()
        self.rates.clear()

    def info(self, sections: Sequence[str]) -> str:
        return info_text(self, sections)

    def latency_counts(self) -> dict[str, list[int]]:
        return self.executor.latency_counts() if self.config.latency_tracking else {}

    def memory_facts(self) -> dict[str, object]:
        return memory_facts(self)

    def give_back_memory(self) -> None:
        import ctypes

        with contextlib.suppress(AttributeError, OSError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)

    # DEBUG

    def may_debug(self, session: Session) -> bool:
        allowed = self.config.enable_debug_command
        is_local = is_loopback(session.address) or bool(getattr(session, "is_unix", False))
        return allowed == "yes" or (allowed == "local" and is_local)

    def stand_still(self, seconds: float) -> None:
        time.sleep(seconds)
        self.executor.recheck_limits()

    def log(self, message: str) -> None:
        LOGGER.info("%s", message)

    @property
    def is_loading(self) -> bool:
        return self.persistence.loading

    def reload(self, *, save: bool, flush: bool) -> None:
        if self.persistence.loading:
            raise CommandError(LOADING)
        if save:
            self.save_anyway()
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
        for db in self.keyspace.databases:
            db.clear()
        defer(True)

    def uptime_s(self) -> int:
        return int(time.monotonic() - self.started_s)

    # Saving

    @property
    def last_save_s(self) -> int:
        return self.persistence.snapshots.last_save_s

    def random_number(self) -> int:
        return int.from_bytes(os.urandom(8), "little")

    @property
    def keeps_journal(self) -> bool:
        return self.config.appendonly

    def write_position(self) -> int:
        session = self.executor.context.session
        if not self.executor.has_written:
            return session.wrote_seq
        if not self.executor.context.may_block:  # within EXEC, whose frame is not committed yet
            return self.persistence.last_seq + bool(len(self.executor.effects))
        commit_tick(self.executor, self.persistence)
        return self.persistence.last_seq

    @property
    def journal_synced(self) -> int:
        if self.executor.context.may_block:
            return self.persistence.on_disk_seq  # the mode may change while the reply is held
        return self.persistence.synced_before_reply_seq

    def sync_soon(self) -> None:
        self.persistence.sync_soon()

    def check_waits(self) -> None:
        """End the waits for frames that are on the disk, or on replicas, by now."""
        for wait in list(self.waits.values()):
            client = self.clients.get(wait.client_id)
            if client is not None and wait.is_over(self):
                self.unblock_client(client, False)
        self.shutdown.check_replicas()

    # Replicas

    def new_worker(self, name: str, niceness: int) -> ThreadWorker:
        return ThreadWorker(name, niceness)

    def new_history(self) -> str:
        return os.urandom(20).hex()

    def connect_link(self, host: str, port: int, protocol: LinkProtocol) -> None:
        make_context = functools.partial(make_link_context, self.config)
        connect_link(self.loop, host, port, protocol, make_context)

    def deliver(self, channel: bytes, message: bytes, *, is_shard: bool) -> None:
        if is_shard:
            self.pubsub.publish_shard(channel, message)
        else:
            self.pubsub.publish(channel, message)

    def save(self) -> None:
        self.persistence.snapshots.save()

    def save_anyway(self) -> None:
        """Save; finish a running snapshot first."""
        self.persistence.snapshots.finish()
        self.persistence.snapshots.save()

    def bgsave(self, schedule: bool) -> str:
        return self.persistence.snapshots.bgsave(schedule)

    def rewrite(self) -> str:
        return self.persistence.snapshots.rewrite()

    def reload_files(self) -> None:
        """SIGHUP: open the log file again, and read the certificates again."""
        try:
            logfile = self.config.located(self.config.logfile)
            log.configure(self.config.loglevel, logfile, self.config.log_format)
        except StartError as problem:
            LOGGER.error("SIGHUP: %s; the log continues where it was", problem)
        else:
            LOGGER.info("SIGHUP: the log file was reopened")
        try:
            if self.listeners.renew():
                LOGGER.info("SIGHUP: the certificates were reread")
        except StartError as problem:
            LOGGER.error("SIGHUP: %s; the earlier certificates stay in use", problem)
