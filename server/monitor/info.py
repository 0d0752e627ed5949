"""INFO, section by section, with Redis' names.

Dashboards, exporters and clients read these names, so they are used even where this server works
differently. Absent features (forks, Lua) have the values that Redis shows when they
are not used; figures that are not measured are left out.
"""

from __future__ import annotations

import math
import os
import re
import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

from millstream import __version__
from millstream.commands.admin.connection import REDIS_VERSION, SERVER_NAME
from millstream.server.config.kinds import show_decimal
from millstream.server.monitor.clock_watch import ClockWatch
from millstream.server.monitor.failed_handshakes import FAILED_HANDSHAKES
from millstream.server.monitor.info_lines import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from millstream.server.clients import Clients, ClientTotals
    from millstream.server.config.directives import Config
    from millstream.server.execution.access import Access
    from millstream.server.execution.client_pause import Pause
    from millstream.server.execution.eviction import Eviction
    from millstream.server.execution.executor import Executor
    from millstream.server.execution.pubsub import PubSub
    from millstream.server.monitor.latency import LatencyMonitor
    from millstream.server.net.listeners import Listeners
    from millstream.server.replication.role import Role
    from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_keys import visible_count, visible_expiring

TOTALS = 5  # commands, bytes in and out, bytes in and out of the links of replicas
NO_RATES = [0.0] * TOTALS
# What `platform` says. To import it takes a fiftieth of the time of a start.
_SYSTEM = os.uname()
_COMPILER = sys.version.partition("[")[2].removesuffix("]")
Section = dict[str, object]
WHOLE = "-?(0|[1-9][0-9]*)"
SAMPLES = 16  # the seconds that the instantaneous rates cover, as in Redis


class Rates:
    """Figures per second over the last seconds, from totals sampled once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=SAMPLES + 1)
        self._set(NO_RATES)  # of the totals; zeros until there are two samples

    def _set(self, per_second: list[float]) -> None:
        commands, *sizes = per_second
        self.commands = round(commands)
        self.kilobytes = [f"{size / 1024:.2f}" for size in sizes]  # once a second, not in each INFO

    def sample(self, now_ms: int, *totals: int) -> None:
        """Note the TOTALS."""
        self._samples.append((now_ms, totals))
        if len(self._samples) > 1:
            (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
            seconds = max(last_ms - first_ms, 1) / 1000
            self._set([(b - a) / seconds for a, b in zip(first, last, strict=True)])

    def clear(self) -> None:
        self._samples.clear()
        self._set(NO_RATES)


class Process:
    """The process of a server, for INFO and the metrics."""

    def __init__(
        self, run_id: str, config_file: Path | None, started_at_ms: int, clock: ClockWatch
    ) -> None:
        self.run_id = run_id
        self.clock = clock
        self.config_file = config_file
        self.number = os.getpid()
        self.started_at_ms = started_at_ms
        self.is_lame_duck = False
        self._reload_is_good, self._reload_s = True, 0  # the last SIGHUP
        self._started_s = time.monotonic()

    def note_reload(self, is_good: bool, now_ms: int) -> None:
        """SIGHUP: whether everything in the files could be used."""
        self._reload_is_good, self._reload_s = is_good, now_ms // 1000

    def state_lines(self) -> str:
        """The fields of INFO about signals that the process has got, and about its clock."""
        return _STATE.text(
            "ok" if self._reload_is_good else "err",
            self._reload_s,
            self.is_lame_duck,
            self.clock.jumps,
            self.clock.last_jump_ms,
        )

    def uptime_s(self) -> int:
        return int(time.monotonic() - self._started_s)


_STATE = Lines(
    "config_last_reload_status:%s",
    "config_last_reload_time:%d",
    "lame_duck:%d",
    "clock_jumps:%d",
    "clock_last_jump_ms:%d",
)
# What does not change while the server runs.
_VERSION = (
    f"redis_version:{REDIS_VERSION}\r\n"
    "redis_git_sha1:00000000\r\n"
    "redis_git_dirty:0\r\n"
    f"redis_build_id:{crc32(__version__.encode()):016x}\r\n"
)
_PROGRAM = (
    f"server:{SERVER_NAME}\r\n"
    f"millstream_version:{__version__}\r\n"
    f"os:{_SYSTEM.sysname} {_SYSTEM.release} {_SYSTEM.machine}\r\n"
    "arch_bits:64\r\n"
    "monotonic_clock:POSIX clock_gettime\r\n"
    f"python_version:{sys.version.split()[0]}\r\n"
    "multiplexing_api:uvloop\r\n"
    f"gcc_version:{_COMPILER.removeprefix('GCC ')}\r\n"
)


@cache
def _executable() -> str:
    return os.path.abspath(sys.argv[0])


@cache
def _absolute(file: Path | None) -> str:
    return "" if file is None else str(file.absolute())


_PROCESS = Lines("process_id:%d", "process_supervised:%s", "run_id:%s", "tcp_port:%d")
_UPTIME = Lines(
    "uptime_in_seconds:%d",
    "uptime_in_days:%d",
    "hz:%s",
    "configured_hz:%s",
    "lru_clock:%d",
    "executable:%s",
    "config_file:%s",
    "io_threads_active:0",
)


def server_section(
    process: Process, supervisor: Callable[[], str], listeners: Listeners, config: Config,
    now_us: Callable[[], int],
) -> str:  # fmt: skip
    """`supervisor` returns the name of the service manager."""
    uptime_s, hz, time_us = process.uptime_s(), config.shown("hz"), now_us()
    process_lines = _PROCESS.text(process.number, supervisor(), process.run_id, listeners.port)
    time_lines = _UPTIME.text(
        uptime_s,
        uptime_s // 86400,
        hz,
        hz,
        time_us // 1_000_000 & 0xFFFFFF,
        _executable(),
        _absolute(process.config_file),
    )
    return (
        f"{_VERSION}"
        f"redis_mode:{'cluster' if config.cluster.enabled else 'standalone'}\r\n"
        f"{_PROGRAM}{process_lines}"
        f"server_time_usec:{time_us}\r\n"
        f"{time_lines}{process.state_lines()}{listeners.info()}"
    )


_CLIENTS = Lines(
    "connected_clients:%d",
    "cluster_connections:0",
    "maxclients:%d",
    "client_recent_max_input_buffer:%d",
    "client_recent_max_output_buffer:%d",
    "blocked_clients:%d",
    "tracking_clients:0",
    "pubsub_clients:%d",
    "watching_clients:%d",
    "clients_in_timeout_table:%d",
    "total_watched_keys:%d",
    "total_blocking_keys:%d",
    "total_blocking_keys_on_nokey:%d",
)


def clients_section(
    clients: Clients, executor: Executor, config: Config, steady_ms: Callable[[], int],
    client_totals: Callable[[], ClientTotals],
) -> str:  # fmt: skip
    pause, totals = executor.pauses.current, client_totals()
    waiting = executor.serving.waiting
    is_waiting = waiting.count > 0
    staying = sum(1 for _ in waiting.keys_that_must_stay()) if is_waiting else 0
    text = _CLIENTS.text(
        len(clients),
        config.maxclients,
        totals.input_max_bytes,
        totals.output_max_bytes,
        executor.blocked_count,
        totals.subscribed,
        totals.watching,
        waiting.timed_count,
        len(totals.watched),
        len([*waiting.keys()]) if is_waiting else 0,
        staying,
    )
    return text + (_NOT_PAUSED if pause is None else _pause_lines(pause, steady_ms()))


_PAUSE_REASONS = {
    "": "client_pause",
    "failover": "failover_in_progress",
    "shutdown": "shutdown_in_progress",
}


_NOT_PAUSED = "paused_reason:none\r\npaused_actions:none\r\npaused_timeout_milliseconds:0\r\n"


def _pause_lines(pause: Pause, steady_ms: int) -> str:
    """The reason for postponing commands, the commands, and the time."""
    reason = _PAUSE_REASONS[next(iter(sorted(pause.reasons)), "")]
    return (
        f"paused_reason:{reason}\r\n"
        f"paused_actions:{'all' if pause.all else 'write'}\r\n"
        f"paused_timeout_milliseconds:{max(0, pause.until_ms - steady_ms)}\r\n"
    )


_RATES = Lines(
    "total_net_repl_input_bytes:%d",
    "total_net_repl_output_bytes:%d",
    "instantaneous_input_kbps:%s",
    "instantaneous_output_kbps:%s",
    "instantaneous_input_repl_kbps:%s",
    "instantaneous_output_repl_kbps:%s",
    "rejected_connections:%d",
    "sync_full:%d",
    "sync_partial_ok:%d",
    "sync_partial_err:%d",
    "sync_rewinds:%d",
)


def traffic_stats(clients: Clients, executor: Executor, replication: Role, rates: Rates) -> str:
    resync, totals, redis_feeds = replication.resync, replication.totals, replication.redis_feeds
    rate_lines = _RATES.text(
        totals.received_bytes,
        replication.feeds.source.sent_bytes,
        *rates.kilobytes,
        clients.connections_rejected,
        resync.full_syncs + redis_feeds.full_syncs,
        resync.partial_syncs + redis_feeds.partial_syncs,
        resync.refused_partial_syncs + redis_feeds.refused_partial_syncs,
        totals.rewinds,
    )
    return (
        f"total_connections_received:{clients.connections_received}\r\n"
        f"total_commands_processed:{executor.statistics.commands}\r\n"
        f"instantaneous_ops_per_sec:{rates.commands}\r\n"
        f"total_net_input_bytes:{executor.bytes_in}\r\n"
        f"total_net_output_bytes:{executor.outbox.bytes_out}\r\n"
        f"{rate_lines}"
    )


_DATA = Lines(
    "expired_subkeys:0",
    "expired_keys:%d",
    "expired_keys_active:%d",
    "expired_subkeys_active:0",
    "reservations_pending:%d",
    "reservations_expired:%d",
    "expired_stale_perc:0.00",
    "expired_time_cap_reached_count:0",
    "evicted_keys:0",
    "evicted_entries:%d",
    "evicted_blocks:%d",
    "missed_entries:%d",
    "entries_lost:%d",
    "scheduled_entries:%d",
    "scheduled_fired:%d",
    "dead_letters:%d",
    "dead_letters_pending:%d",
    "evicted_clients:%d",
    "evicted_scripts:0",
    "total_eviction_exceeded_time:0",
    "current_eviction_exceeded_time:0",
    "keyspace_hits:%d",
    "keyspace_misses:%d",
    "pubsub_channels:%d",
    "pubsub_patterns:%d",
    "pubsubshard_channels:%d",
    "latest_fork_usec:0",
    "total_forks:0",
    "migrate_cached_sockets:0",
    "slave_expires_tracked_keys:0",
    "active_defrag_hits:0",
    "active_defrag_misses:0",
    "active_defrag_key_hits:0",
    "active_defrag_key_misses:0",
    "total_active_defrag_time:0",
    "current_active_defrag_time:0",
)


def data_stats(
    keyspace: Keyspace, executor: Executor, eviction: Eviction, pubsub: PubSub, clients: Clients
) -> str:
    return _DATA.text(
        keyspace.expired_count,
        executor.due.expired_count,
        keyspace.open_reservations(),
        keyspace.reservations_expired,
        eviction.evicted_entries,
        eviction.evicted_blocks,
        keyspace.missed_entries,
        keyspace.lost_entries,
        keyspace.scheduled_entries(),
        keyspace.scheduled_fired,
        keyspace.dead_letters.copied,
        keyspace.dead_letters.count_dead(keyspace.databases),
        clients.limits.evicted_clients,
        keyspace.hits,
        keyspace.misses,
        pubsub.channel_count,
        pubsub.pattern_count,
        pubsub.shard_channel_count,
    )


_ERRORS = Lines(
    "tracking_total_keys:0",
    "tracking_total_items:0",
    "tracking_total_prefixes:0",
    "unexpected_error_replies:0",
    "total_error_replies:%d",
    "dump_payload_sanitizations:0",
)
_REFUSALS = Lines(
    "io_threaded_reads_processed:0",
    "io_threaded_writes_processed:0",
    "io_threaded_total_prefetch_batches:0",
    "io_threaded_total_prefetch_entries:0",
    "client_output_buffer_limit_disconnections:%d",
    "user_limit_disconnections:%d",
    "user_limit_refusals:%d",
    "reply_buffer_shrinks:0",
    "reply_buffer_expands:0",
    "acl_access_denied_auth:%d",
    "acl_access_denied_cmd:%d",
    "acl_access_denied_key:%d",
    "acl_access_denied_channel:%d",
    "tls_handshake_failures:%d",
)


def request_stats(executor: Executor, clients: Clients, access: Access) -> str:
    denied, limits = access.log.counts, clients.limits
    refusals = _REFUSALS.text(
        clients.output_limit_closings,
        limits.user_closings,
        limits.user_refusals,
        denied.get("auth", 0),
        denied.get("command", 0),
        denied.get("key", 0),
        denied.get("channel", 0),
        FAILED_HANDSHAKES.count,
    )
    return (
        f"{_ERRORS.text(executor.statistics.error_replies)}"
        f"total_reads_processed:{executor.statistics.reads}\r\n"
        f"total_writes_processed:{executor.outbox.writes}\r\n"
        f"{refusals}"
    )


def cpu_section(steady_ms: Callable[[], int]) -> str:
    return _cpu_times(steady_ms())


@lru_cache(maxsize=1)
def _cpu_times(now_ms: int) -> str:
    """The times of the process, its children and its main thread, read once in a millisecond."""
    whole = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    main = resource.getrusage(resource.RUSAGE_THREAD)
    return (
        f"used_cpu_sys:{whole.ru_stime:.6f}\r\n"
        f"used_cpu_user:{whole.ru_utime:.6f}\r\n"
        f"used_cpu_sys_children:{children.ru_stime:.6f}\r\n"
        f"used_cpu_user_children:{children.ru_utime:.6f}\r\n"
        f"used_cpu_sys_main_thread:{main.ru_stime:.6f}\r\n"
        f"used_cpu_user_main_thread:{main.ru_utime:.6f}\r\n"
    )


def no_section() -> str:
    """INFO modules: there are none."""
    return ""


def commands_section(executor: Executor) -> str:
    return "".join(
        f"cmdstat_{name}:calls={stat.calls},usec={stat.usec},"
        f"usec_per_call={stat.usec / stat.calls if stat.calls else 0:.2f},"
        f"rejected_calls={stat.rejected_calls},failed_calls={stat.failed_calls}\r\n"
        for name, stat in executor.table.stats().items()
    )


def errors_section(executor: Executor) -> str:
    counts = executor.statistics.errors_by_code
    if not counts:
        return ""
    return "".join(f"errorstat_{code}:count={counts[code]}\r\n" for code in sorted(counts))


def percentile_us(counts: Sequence[int], percentage: float) -> int:
    """The time in microseconds within which this percentage of the calls ended: the end of a bucket
    of powers of two. `counts` has at least one call."""
    wanted = max(1, math.ceil(sum(counts) * percentage / 100))
    seen = 0
    for exponent, count in enumerate(counts):
        seen += count
        if seen >= wanted:
            return 1 << exponent
    raise ValueError("there are no calls")


def latency_fields(latency: LatencyMonitor, config: Config) -> Section:
    """The percentiles of each command's times."""
    percentages = config.latency_tracking_info_percentiles
    return {
        f"latency_percentiles_usec_{name}": ",".join(
            f"p{show_decimal(percentage)}={percentile_us(counts, percentage):.3f}"
            for percentage in percentages
        )
        for name, counts in latency.counts().items()
        if any(counts)
    }


def latency_section(latency: LatencyMonitor, config: Config) -> str:
    fields = latency_fields(latency, config)
    return "".join(f"{name}:{value}\r\n" for name, value in fields.items())


def cluster_section(config: Config) -> str:
    return f"cluster_enabled:{config.cluster.enabled:d}\r\n"


def keyspace_section(keyspace: Keyspace) -> str:
    return "".join(
        f"db{db.index}:keys={count},expires={expiring.keys},avg_ttl={expiring.average_ttl_ms},"
        "subexpiry=0\r\n"
        for db in keyspace.databases_with_keys()
        if (count := visible_count(db)) and (expiring := visible_expiring(db))
    )


SECTIONS = {
    "server": "Server", "clients": "Clients", "memory": "Memory", "persistence": "Persistence",
    "stats": "Stats", "replication": "Replication", "cpu": "CPU", "modules": "Modules",
    "commandstats": "Commandstats", "errorstats": "Errorstats", "latencystats": "Latencystats",
    "cluster": "Cluster", "keyspace": "Keyspace",
}  # fmt: skip
"""The titles of the sections, in Redis' order."""
EVERYTHING = frozenset(SECTIONS)
BY_DEFAULT = EVERYTHING - {"commandstats", "latencystats"}
GROUPS = {"default": BY_DEFAULT, "all": EVERYTHING, "everything": EVERYTHING}
NAMES = frozenset({*EVERYTHING, *GROUPS})
ONLY_DEFAULT = frozenset({"default"})

Collect = Callable[[], str]


def fields_of(section: str) -> Section:
    """The fields of a section by name; whole numbers as such."""
    pairs = (line.partition(":") for line in section.split("\r\n") if line)
    return {name: int(value) if re.fullmatch(WHOLE, value) else value for name, _, value in pairs}


class Info:
    """The text of INFO. `sections` has a function for each section."""

    def __init__(
        self, sections: Mapping[str, Collect], count_clients: Callable[[], ClientTotals]
    ) -> None:
        self._sections = sections
        self._count_clients = count_clients
        self._totals: ClientTotals | None = None
        self._chosen = lru_cache(maxsize=16)(self._choose)

    def client_totals(self) -> ClientTotals:
        """The totals of all clients, computed once for all sections of an INFO."""
        if self._totals is None:
            self._totals = self._count_clients()
        return self._totals

    def _choose(self, names: frozenset[str]) -> tuple[str, tuple[Collect, ...]]:
        """The sections that these names select: their titles, with places for their lines, and
        their functions."""
        chosen: frozenset[str] = frozenset().union(*(GROUPS.get(name, {name}) for name in names))
        ordered = [name for name in SECTIONS if name in chosen]
        template = "\r\n".join(f"# {SECTIONS[name]}\r\n%s" for name in ordered)
        return template, tuple(self._sections[name] for name in ordered)

    def text(self, names: Sequence[str]) -> str:
        """INFO for these sections (lower case; none: the default ones), in Redis' layout."""
        template, functions = self._chosen(NAMES.intersection(names) if names else ONLY_DEFAULT)
        self._totals = None
        return template % tuple([collect() for collect in functions])

    def fields(self, name: str, totals: ClientTotals) -> Section:
        """The fields of one section."""
        self._totals = totals
        return fields_of(self._sections[name]())
