"""INFO, section by section, with Redis' names.

Dashboards, exporters and clients read these names, so they are used even where this server works
differently. Absent features (forks, Lua) have the values that Redis shows when they
are not used; figures that are not measured are left out.
"""

from __future__ import annotations

import math
import os
import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from millstream import __version__
from millstream.commands.admin.connection import REDIS_VERSION, SERVER_NAME
from millstream.server.monitor.client_totals import ClientTotals, client_totals
from millstream.server.monitor.info_lines import Part, Section, lines, part_of
from millstream.server.monitor.memory_info import memory_section

if TYPE_CHECKING:
    from millstream.server.app import Server

TOTALS = 5  # commands, bytes in and out, bytes in and out of the links of replicas
NO_RATES = [0.0] * TOTALS
# What `platform` says. To import it takes a fiftieth of the time of a start.
_SYSTEM = os.uname()
_COMPILER = sys.version.partition("[")[2].removesuffix("]")
SAMPLES = 16  # the seconds that the instantaneous rates cover, as in Redis


class Rates:
    """Figures per second over the last seconds, from totals sampled once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=SAMPLES + 1)
        self.per_second = NO_RATES  # of the totals; zeros until there are two samples

    def sample(self, now_ms: int, *totals: int) -> None:
        """Note the TOTALS."""
        self._samples.append((now_ms, totals))
        if len(self._samples) > 1:
            (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
            seconds = max(last_ms - first_ms, 1) / 1000
            self.per_second = [(b - a) / seconds for a, b in zip(first, last, strict=True)]

    def clear(self) -> None:
        self._samples.clear()
        self.per_second = NO_RATES


# What does not change while the server runs.
_PROGRAM = part_of(
    {
        "redis_version": REDIS_VERSION,
        "redis_git_sha1": "00000000",
        "redis_git_dirty": 0,
        "redis_build_id": f"{crc32(__version__.encode()):016x}",
        "redis_mode": "standalone",
        "server": SERVER_NAME,
        "millstream_version": __version__,
        "os": f"{_SYSTEM.sysname} {_SYSTEM.release} {_SYSTEM.machine}",
        "arch_bits": 64,
        "monotonic_clock": "POSIX clock_gettime",
        "python_version": sys.version.split()[0],
        "multiplexing_api": "uvloop",
        "gcc_version": _COMPILER.removeprefix("GCC "),
    }
)
_PROCESS = lines(
    "process_id",
    "process_supervised",
    "run_id",
    "tcp_port",
    "server_time_usec",
    "uptime_in_seconds",
    "uptime_in_days",
    "hz",
    "configured_hz",
    "lru_clock",
    "executable",
    "config_file",
    "io_threads_active:0",
)


@cache
def _executable() -> str:
    return os.path.abspath(sys.argv[0])


@cache
def _absolute(file: Path | None) -> str:
    return "" if file is None else str(file.absolute())


def _server(server: Server) -> Sequence[Part]:
    uptime_s = server.uptime_s()
    hz = server.config.shown("hz")
    process = (
        server.process_id,
        server.supervision.name,
        server.run_id,
        server.port,
        server.now_us(),
        uptime_s,
        uptime_s // 86400,
        hz,
        hz,
        server.now_ms() // 1000 & 0xFFFFFF,
        _executable(),
        _absolute(server.config_file),
    )
    return _PROGRAM, (_PROCESS, process), server.listeners.info()


_CLIENTS = lines(
    "connected_clients",
    "cluster_connections:0",
    "maxclients",
    "client_recent_max_input_buffer",
    "client_recent_max_output_buffer",
    "blocked_clients",
    "tracking_clients:0",
    "pubsub_clients",
    "watching_clients",
    "clients_in_timeout_table",
    "total_watched_keys",
    "total_blocking_keys",
    "total_blocking_keys_on_nokey",
    "paused_reason",
    "paused_actions",
    "paused_timeout_milliseconds",
)


def clients_section(server: Server, totals: ClientTotals) -> Sequence[Part]:
    executor = server.executor
    waiting = executor.serving.waiting
    is_waiting = waiting.count > 0
    values = (
        len(server.clients),
        server.config.maxclients,
        totals.input_max_bytes,
        totals.output_max_bytes,
        executor.blocked_count,
        totals.subscribed,
        totals.watching,
        waiting.timed_count,
        len(totals.watched),
        len([*waiting.keys()]) if is_waiting else 0,
        sum(1 for _ in waiting.keys_that_must_stay()) if is_waiting else 0,
        *_pause(server),
    )
    return ((_CLIENTS, values),)


_PAUSE_REASONS = {
    "": "client_pause",
    "failover": "failover_in_progress",
    "shutdown": "shutdown_in_progress",
}


def _pause(server: Server) -> tuple[str, str, int]:
    """Why commands are postponed, which ones, and for how long."""
    pause = server.executor.pauses.current
    if pause is None:
        return "none", "none", 0
    reason = _PAUSE_REASONS[next(iter(sorted(pause.reasons)), "")]
    actions = "all" if pause.all else "write"
    return reason, actions, max(0, pause.until_ms - server.steady_ms())


_STALLS = lines("journal_queue_stalls")


def _persistence(server: Server) -> Sequence[Part]:
    parts = server.persistence.info(server.keyspace.dirty)
    if server.persistence.appendonly:
        parts.append((_STALLS, (server.executor.backpressure.count,)))
    return parts


_TRAFFIC = lines(
    "total_connections_received",
    "total_commands_processed",
    "instantaneous_ops_per_sec",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "total_net_repl_input_bytes",
    "total_net_repl_output_bytes",
    "instantaneous_input_kbps:%.2f",
    "instantaneous_output_kbps:%.2f",
    "instantaneous_input_repl_kbps:%.2f",
    "instantaneous_output_repl_kbps:%.2f",
    "rejected_connections",
    "sync_full",
    "sync_partial_ok",
    "sync_partial_err",
    "sync_rewinds",
)


def _traffic(server: Server) -> Part:
    commands, bytes_in, bytes_out, repl_in, repl_out = server.rates.per_second
    executor, replication = server.executor, server.replication
    return _TRAFFIC, (
        server.registry.connections_received,
        executor.statistics.commands,
        round(commands),
        executor.bytes_in,
        executor.outbox.bytes_out,
        replication.received_bytes,
        replication.feeds.sent_bytes,
        bytes_in / 1024,
        bytes_out / 1024,
        repl_in / 1024,
        repl_out / 1024,
        server.registry.connections_rejected,
        replication.resync.full_syncs,
        replication.resync.partial_syncs,
        replication.resync.refused_partial_syncs,
        replication.rewinds,
    )


_DATA_STATS = lines(
    "expired_subkeys:0",
    "expired_keys",
    "expired_keys_active",
    "expired_subkeys_active:0",
    "reservations_pending",
    "reservations_expired",
    "expired_stale_perc:0.00",
    "expired_time_cap_reached_count:0",
    "evicted_keys:0",
    "evicted_entries",
    "evicted_blocks",
    "evicted_clients:0",
    "evicted_scripts:0",
    "total_eviction_exceeded_time:0",
    "current_eviction_exceeded_time:0",
    "keyspace_hits",
    "keyspace_misses",
    "pubsub_channels",
    "pubsub_patterns",
    "pubsubshard_channels",
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


def _data_stats(server: Server) -> Part:
    keyspace = server.keyspace
    return _DATA_STATS, (
        keyspace.expired_count,
        server.executor.due.expired_count,
        keyspace.open_reservations(),
        keyspace.reservations_expired,
        server.eviction.evicted_entries,
        server.eviction.evicted_blocks,
        keyspace.hits,
        keyspace.misses,
        server.pubsub.channel_count,
        server.pubsub.pattern_count,
        server.pubsub.shard_channel_count,
    )


_REQUEST_STATS = lines(
    "tracking_total_keys:0",
    "tracking_total_items:0",
    "tracking_total_prefixes:0",
    "unexpected_error_replies:0",
    "total_error_replies",
    "dump_payload_sanitizations:0",
    "total_reads_processed",
    "total_writes_processed",
    "io_threaded_reads_processed:0",
    "io_threaded_writes_processed:0",
    "io_threaded_total_prefetch_batches:0",
    "io_threaded_total_prefetch_entries:0",
    "client_output_buffer_limit_disconnections",
    "reply_buffer_shrinks:0",
    "reply_buffer_expands:0",
    "acl_access_denied_auth",
    "acl_access_denied_cmd",
    "acl_access_denied_key",
    "acl_access_denied_channel",
)


def _request_stats(server: Server) -> Part:
    executor = server.executor
    denied = server.access.log.counts
    return _REQUEST_STATS, (
        executor.statistics.error_replies,
        executor.statistics.reads,
        executor.outbox.writes,
        server.registry.output_limit_closings,
        denied.get("auth", 0),
        denied.get("command", 0),
        denied.get("key", 0),
        denied.get("channel", 0),
    )


def _stats(server: Server) -> Sequence[Part]:
    return _traffic(server), _data_stats(server), _request_stats(server)


def _replication(server: Server) -> Sequence[Part]:
    return server.replication.info()


_CPU = lines(
    "used_cpu_sys:%.6f",
    "used_cpu_user:%.6f",
    "used_cpu_sys_children:%.6f",
    "used_cpu_user_children:%.6f",
    "used_cpu_sys_main_thread:%.6f",
    "used_cpu_user_main_thread:%.6f",
)


def _cpu(server: Server) -> Sequence[Part]:
    return ((_CPU, _cpu_times(server.steady_ms())),)


@lru_cache(maxsize=1)
def _cpu_times(now_ms: int) -> tuple[float, ...]:
    """The times of the process, its children and its main thread, read once in a millisecond."""
    whole = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    main = resource.getrusage(resource.RUSAGE_THREAD)
    return (
        whole.ru_stime,
        whole.ru_utime,
        children.ru_stime,
        children.ru_utime,
        main.ru_stime,
        main.ru_utime,
    )


def _modules(server: Server) -> Sequence[Part]:
    return ()


def _commandstats(server: Server) -> Sequence[Part]:
    fields = {
        f"cmdstat_{name}": f"calls={stat.calls},usec={stat.usec},"
        f"usec_per_call={stat.usec / stat.calls if stat.calls else 0:.2f},"
        f"rejected_calls={stat.rejected_calls},failed_calls={stat.failed_calls}"
        for name, stat in server.executor.command_stats().items()
    }
    return (part_of(fields),)


def _errorstats(server: Server) -> Sequence[Part]:
    counts = server.executor.statistics.errors_by_code
    if not counts:
        return ()
    return (part_of({f"errorstat_{code}": f"count={counts[code]}" for code in sorted(counts)}),)


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


def latency_fields(server: Server) -> Section:
    """The percentiles of each command's times."""
    percentages = server.config.latency_tracking_info_percentiles
    return {
        f"latency_percentiles_usec_{name}": ",".join(
            f"p{percentage:g}={percentile_us(counts, percentage):.3f}" for percentage in percentages
        )
        for name, counts in server.latency_counts().items()
        if any(counts)
    }


def _latencystats(server: Server) -> Sequence[Part]:
    return (part_of(latency_fields(server)),)


_CLUSTER = lines("cluster_enabled:0")


def _cluster(server: Server) -> Sequence[Part]:
    return ((_CLUSTER, ()),)


def _keyspace(server: Server) -> Sequence[Part]:
    fields: Section = {}
    for db in server.keyspace.databases_with_keys():
        fields[f"db{db.index}"] = (
            f"keys={len(db)},expires={db.expiring_count},avg_ttl={db.average_ttl_ms()},subexpiry=0"
        )
    return (part_of(fields),)


Collect = Callable[..., Sequence[Part]]
OF_CLIENTS: dict[str, Collect] = {
    "clients": clients_section,
    "memory": memory_section,
}
"""Sections for which all clients are looked at, once for all of these sections."""
SECTIONS: dict[str, tuple[str, Collect]] = {
    "server": ("\r\n# Server\r\n", _server),
    "clients": ("\r\n# Clients\r\n", lambda server: clients_section(server, client_totals(server))),
    "memory": ("\r\n# Memory\r\n", lambda server: memory_section(server, client_totals(server))),
    "persistence": ("\r\n# Persistence\r\n", _persistence),
    "stats": ("\r\n# Stats\r\n", _stats),
    "replication": ("\r\n# Replication\r\n", _replication),
    "cpu": ("\r\n# CPU\r\n", _cpu),
    "modules": ("\r\n# Modules\r\n", _modules),
    "commandstats": ("\r\n# Commandstats\r\n", _commandstats),
    "errorstats": ("\r\n# Errorstats\r\n", _errorstats),
    "latencystats": ("\r\n# Latencystats\r\n", _latencystats),
    "cluster": ("\r\n# Cluster\r\n", _cluster),
    "keyspace": ("\r\n# Keyspace\r\n", _keyspace),
}
EVERYTHING = frozenset(SECTIONS)
BY_DEFAULT = EVERYTHING - {"commandstats", "latencystats"}
GROUPS = {"default": BY_DEFAULT, "all": EVERYTHING, "everything": EVERYTHING}
NAMES = frozenset({*EVERYTHING, *GROUPS})
ONLY_DEFAULT = frozenset({"default"})


@lru_cache(maxsize=16)
def _chosen(names: frozenset[str]) -> tuple[tuple[str, Collect, bool], ...]:
    """The sections that these names select: title, function, and whether it needs the clients."""
    chosen: frozenset[str] = frozenset().union(*(GROUPS.get(name, {name}) for name in names))
    return tuple(
        (title, OF_CLIENTS.get(name, collect), name in OF_CLIENTS)
        for name, (title, collect) in SECTIONS.items()
        if name in chosen
    )


def info_text(server: Server, names: Sequence[str]) -> str:
    """INFO for these sections (lower case; none: the default ones), in Redis' layout."""
    totals: ClientTotals | None = None
    found: list[str] = []
    for title, collect, of_clients in _chosen(NAMES.intersection(names) if names else ONLY_DEFAULT):
        found.append(title if found else title[2:])  # no empty line before the first title
        if of_clients:
            totals = totals or client_totals(server)
            parts = collect(server, totals)
        else:
            parts = collect(server)
        for part, values in parts:
            found.append(part.text(values))
    return "".join(found)
