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

TOTALS = 5  # commands, bytes in and out, bytes in and out of the links of replicas
NO_RATES = [0.0] * TOTALS
# What `platform` says. To import it takes a fiftieth of the time of a start.
_SYSTEM = os.uname()
_COMPILER = sys.version.partition("[")[2].removesuffix("]")
Section = dict[str, object]
WHOLE = re.compile("-?(0|[1-9][0-9]*)")
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
        return (
            f"config_last_reload_status:{'ok' if self._reload_is_good else 'err'}\r\n"
            f"config_last_reload_time:{self._reload_s}\r\n"
            f"lame_duck:{int(self.is_lame_duck)}\r\n"
            f"clock_jumps:{self.clock.jumps}\r\n"
            f"clock_last_jump_ms:{self.clock.last_jump_ms}\r\n"
        )

    def uptime_s(self) -> int:
        return int(time.monotonic() - self._started_s)


# What does not change while the server runs.
_PROGRAM = (
    f"redis_version:{REDIS_VERSION}\r\n"
    "redis_git_sha1:00000000\r\n"
    "redis_git_dirty:0\r\n"
    f"redis_build_id:{crc32(__version__.encode()):016x}\r\n"
    "redis_mode:standalone\r\n"
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


def server_section(
    process: Process, supervisor: Callable[[], str], listeners: Listeners, config: Config,
    now_us: Callable[[], int],
) -> str:  # fmt: skip
    """`supervisor` returns the name of the service manager."""
    uptime_s, hz, time_us = process.uptime_s(), config.shown("hz"), now_us()
    process_lines = (
        f"process_id:{process.number}\r\n"
        f"process_supervised:{supervisor()}\r\n"
        f"run_id:{process.run_id}\r\n"
        f"tcp_port:{listeners.port}\r\n"
        f"server_time_usec:{time_us}\r\n"
        f"uptime_in_seconds:{uptime_s}\r\n"
        f"uptime_in_days:{uptime_s // 86400}\r\n"
        f"hz:{hz}\r\n"
        f"configured_hz:{hz}\r\n"
        f"lru_clock:{time_us // 1_000_000 & 0xFFFFFF}\r\n"
        f"executable:{_executable()}\r\n"
        f"config_file:{_absolute(process.config_file)}\r\n"
        "io_threads_active:0\r\n"
    )
    return _PROGRAM + process_lines + process.state_lines() + listeners.info()


def clients_section(
    clients: Clients, executor: Executor, config: Config, steady_ms: Callable[[], int],
    totals: ClientTotals,
) -> str:  # fmt: skip
    pause = executor.pauses.current
    waiting = executor.serving.waiting
    is_waiting = waiting.count > 0
    staying = sum(1 for _ in waiting.keys_that_must_stay()) if is_waiting else 0
    return (
        f"connected_clients:{len(clients)}\r\n"
        "cluster_connections:0\r\n"
        f"maxclients:{config.maxclients}\r\n"
        f"client_recent_max_input_buffer:{totals.input_max_bytes}\r\n"
        f"client_recent_max_output_buffer:{totals.output_max_bytes}\r\n"
        f"blocked_clients:{executor.blocked_count}\r\n"
        "tracking_clients:0\r\n"
        f"pubsub_clients:{totals.subscribed}\r\n"
        f"watching_clients:{totals.watching}\r\n"
        f"clients_in_timeout_table:{waiting.timed_count}\r\n"
        f"total_watched_keys:{len(totals.watched)}\r\n"
        f"total_blocking_keys:{len([*waiting.keys()]) if is_waiting else 0}\r\n"
        f"total_blocking_keys_on_nokey:{staying}\r\n"
        f"{_NOT_PAUSED if pause is None else _pause_lines(pause, steady_ms())}"
    )


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


def traffic_stats(clients: Clients, executor: Executor, replication: Role, rates: Rates) -> str:
    kb_in, kb_out, repl_kb_in, repl_kb_out = rates.kilobytes
    return (
        f"total_connections_received:{clients.connections_received}\r\n"
        f"total_commands_processed:{executor.statistics.commands}\r\n"
        f"instantaneous_ops_per_sec:{rates.commands}\r\n"
        f"total_net_input_bytes:{executor.bytes_in}\r\n"
        f"total_net_output_bytes:{executor.outbox.bytes_out}\r\n"
        f"total_net_repl_input_bytes:{replication.totals.received_bytes}\r\n"
        f"total_net_repl_output_bytes:{replication.feeds.source.sent_bytes}\r\n"
        f"instantaneous_input_kbps:{kb_in}\r\n"
        f"instantaneous_output_kbps:{kb_out}\r\n"
        f"instantaneous_input_repl_kbps:{repl_kb_in}\r\n"
        f"instantaneous_output_repl_kbps:{repl_kb_out}\r\n"
        f"rejected_connections:{clients.connections_rejected}\r\n"
        f"sync_full:{replication.resync.full_syncs}\r\n"
        f"sync_partial_ok:{replication.resync.partial_syncs}\r\n"
        f"sync_partial_err:{replication.resync.refused_partial_syncs}\r\n"
        f"sync_rewinds:{replication.totals.rewinds}\r\n"
    )


def data_stats(
    keyspace: Keyspace, executor: Executor, eviction: Eviction, pubsub: PubSub, clients: Clients
) -> str:
    return (
        "expired_subkeys:0\r\n"
        f"expired_keys:{keyspace.expired_count}\r\n"
        f"expired_keys_active:{executor.due.expired_count}\r\n"
        "expired_subkeys_active:0\r\n"
        f"reservations_pending:{keyspace.open_reservations()}\r\n"
        f"reservations_expired:{keyspace.reservations_expired}\r\n"
        "expired_stale_perc:0.00\r\n"
        "expired_time_cap_reached_count:0\r\n"
        "evicted_keys:0\r\n"
        f"evicted_entries:{eviction.evicted_entries}\r\n"
        f"evicted_blocks:{eviction.evicted_blocks}\r\n"
        f"missed_entries:{keyspace.missed_entries}\r\n"
        f"evicted_clients:{clients.limits.evicted_clients}\r\n"
        "evicted_scripts:0\r\n"
        "total_eviction_exceeded_time:0\r\n"
        "current_eviction_exceeded_time:0\r\n"
        f"keyspace_hits:{keyspace.hits}\r\n"
        f"keyspace_misses:{keyspace.misses}\r\n"
        f"pubsub_channels:{pubsub.channel_count}\r\n"
        f"pubsub_patterns:{pubsub.pattern_count}\r\n"
        f"pubsubshard_channels:{pubsub.shard_channel_count}\r\n"
        "latest_fork_usec:0\r\n"
        "total_forks:0\r\n"
        "migrate_cached_sockets:0\r\n"
        "slave_expires_tracked_keys:0\r\n"
        "active_defrag_hits:0\r\n"
        "active_defrag_misses:0\r\n"
        "active_defrag_key_hits:0\r\n"
        "active_defrag_key_misses:0\r\n"
        "total_active_defrag_time:0\r\n"
        "current_active_defrag_time:0\r\n"
    )


def request_stats(executor: Executor, clients: Clients, access: Access) -> str:
    denied = access.log.counts
    return (
        "tracking_total_keys:0\r\n"
        "tracking_total_items:0\r\n"
        "tracking_total_prefixes:0\r\n"
        "unexpected_error_replies:0\r\n"
        f"total_error_replies:{executor.statistics.error_replies}\r\n"
        "dump_payload_sanitizations:0\r\n"
        f"total_reads_processed:{executor.statistics.reads}\r\n"
        f"total_writes_processed:{executor.outbox.writes}\r\n"
        "io_threaded_reads_processed:0\r\n"
        "io_threaded_writes_processed:0\r\n"
        "io_threaded_total_prefetch_batches:0\r\n"
        "io_threaded_total_prefetch_entries:0\r\n"
        f"client_output_buffer_limit_disconnections:{clients.output_limit_closings}\r\n"
        f"user_limit_disconnections:{clients.limits.user_closings}\r\n"
        f"user_limit_refusals:{clients.limits.user_refusals}\r\n"
        "reply_buffer_shrinks:0\r\n"
        "reply_buffer_expands:0\r\n"
        f"acl_access_denied_auth:{denied.get('auth', 0)}\r\n"
        f"acl_access_denied_cmd:{denied.get('command', 0)}\r\n"
        f"acl_access_denied_key:{denied.get('key', 0)}\r\n"
        f"acl_access_denied_channel:{denied.get('channel', 0)}\r\n"
        f"tls_handshake_failures:{FAILED_HANDSHAKES.count}\r\n"
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


def cluster_section() -> str:
    return "cluster_enabled:0\r\n"


def keyspace_section(keyspace: Keyspace) -> str:
    return "".join(
        f"db{db.index}:keys={len(db)},expires={db.expiring_count},avg_ttl={db.average_ttl_ms()},"
        "subexpiry=0\r\n"
        for db in keyspace.databases_with_keys()
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
CollectOfClients = Callable[["ClientTotals"], str]


def fields_of(section: str) -> Section:
    """The fields of a section by name; whole numbers as such."""
    pairs = (line.partition(":") for line in section.split("\r\n") if line)
    return {name: int(value) if WHOLE.fullmatch(value) else value for name, _, value in pairs}


class Info:
    """The text of INFO. `sections` has a function for each section; those in `of_clients` are given
    the totals of all clients, which are computed once for all of these sections."""

    def __init__(
        self,
        sections: Mapping[str, Collect],
        of_clients: Mapping[str, CollectOfClients],
        totals: Callable[[], ClientTotals],
    ) -> None:
        self._sections = sections
        self._of_clients = of_clients
        self._totals = totals
        self._chosen = lru_cache(maxsize=16)(self._choose)

    def _choose(
        self, names: frozenset[str]
    ) -> tuple[tuple[str, Collect | None, CollectOfClients | None], ...]:
        """The titles and functions of the sections that these names select."""
        chosen: frozenset[str] = frozenset().union(*(GROUPS.get(name, {name}) for name in names))
        return tuple(
            (f"\r\n# {title}\r\n", self._sections.get(name), self._of_clients.get(name))
            for name, title in SECTIONS.items()
            if name in chosen
        )

    def text(self, names: Sequence[str]) -> str:
        """INFO for these sections (lower case; none: the default ones), in Redis' layout."""
        totals: ClientTotals | None = None
        found: list[str] = []
        for title, collect, collect_of_clients in self._chosen(
            NAMES.intersection(names) if names else ONLY_DEFAULT
        ):
            found.append(title)
            if collect is not None:
                found.append(collect())
            elif collect_of_clients is not None:
                totals = totals or self._totals()
                found.append(collect_of_clients(totals))
        if found:
            found[0] = found[0][2:]  # no empty line before the first title
        return "".join(found)

    def fields(self, name: str, totals: ClientTotals) -> Section:
        """The fields of one section."""
        if name in self._of_clients:
            return fields_of(self._of_clients[name](totals))
        return fields_of(self._sections[name]())
