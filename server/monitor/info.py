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
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING
from zlib import crc32

from millstream import __version__
from millstream.commands.admin.connection import REDIS_VERSION, SERVER_NAME
from millstream.server.monitor.info_lines import Part, Section, fields_of, part_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from millstream.server.clients import Clients, ClientTotals
    from millstream.server.config.directives import Config
    from millstream.server.durability.persistence import Persistence
    from millstream.server.execution.access import Access
    from millstream.server.execution.executor import Executor
    from millstream.server.execution.pubsub import PubSub
    from millstream.server.monitor.eviction import Eviction
    from millstream.server.monitor.latency import LatencyMonitor
    from millstream.server.net.listeners import Listeners
    from millstream.server.replication.role import Role
    from millstream.storage.keyspace.keyspace import Keyspace

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


class Process:
    """The process of a server, for INFO and the metrics."""

    def __init__(self, run_id: str, config_file: Path | None, started_at_ms: int) -> None:
        self.run_id = run_id
        self.config_file = config_file
        self.number = os.getpid()
        self.started_at_ms = started_at_ms
        self._started_s = time.monotonic()

    def uptime_s(self) -> int:
        return int(time.monotonic() - self._started_s)


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


@cache
def _executable() -> str:
    return os.path.abspath(sys.argv[0])


@cache
def _absolute(file: Path | None) -> str:
    return "" if file is None else str(file.absolute())


def server_section(
    process: Process, supervisor: Callable[[], str], listeners: Listeners, config: Config,
    now_us: Callable[[], int],
) -> Sequence[Part]:  # fmt: skip
    """`supervisor` returns the name of the service manager."""
    uptime_s, hz, time_us = process.uptime_s(), config.shown("hz"), now_us()
    fields = {
        "process_id": process.number,
        "process_supervised": supervisor(),
        "run_id": process.run_id,
        "tcp_port": listeners.port,
        "server_time_usec": time_us,
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s // 86400,
        "hz": hz,
        "configured_hz": hz,
        "lru_clock": time_us // 1_000_000 & 0xFFFFFF,
        "executable": _executable(),
        "config_file": _absolute(process.config_file),
        "io_threads_active": 0,
    }
    return _PROGRAM, part_of(fields), listeners.info()


def clients_section(
    totals: ClientTotals, clients: Clients, executor: Executor, config: Config,
    steady_ms: Callable[[], int],
) -> Sequence[Part]:  # fmt: skip
    waiting = executor.serving.waiting
    is_waiting = waiting.count > 0
    fields = {
        "connected_clients": len(clients),
        "cluster_connections": 0,
        "maxclients": config.maxclients,
        "client_recent_max_input_buffer": totals.input_max_bytes,
        "client_recent_max_output_buffer": totals.output_max_bytes,
        "blocked_clients": executor.blocked_count,
        "tracking_clients": 0,
        "pubsub_clients": totals.subscribed,
        "watching_clients": totals.watching,
        "clients_in_timeout_table": waiting.timed_count,
        "total_watched_keys": len(totals.watched),
        "total_blocking_keys": len([*waiting.keys()]) if is_waiting else 0,
        "total_blocking_keys_on_nokey": (
            sum(1 for _ in waiting.keys_that_must_stay()) if is_waiting else 0
        ),
        **_pause(executor, steady_ms),
    }
    return (part_of(fields),)


_PAUSE_REASONS = {
    "": "client_pause",
    "failover": "failover_in_progress",
    "shutdown": "shutdown_in_progress",
}


def _pause(executor: Executor, steady_ms: Callable[[], int]) -> Section:
    """Why commands are postponed, which ones, and for how long."""
    pause = executor.pauses.current
    reason, actions, left_ms = "none", "none", 0
    if pause is not None:
        reason = _PAUSE_REASONS[next(iter(sorted(pause.reasons)), "")]
        actions = "all" if pause.all else "write"
        left_ms = max(0, pause.until_ms - steady_ms())
    return {
        "paused_reason": reason,
        "paused_actions": actions,
        "paused_timeout_milliseconds": left_ms,
    }


def persistence_section(
    persistence: Persistence, keyspace: Keyspace, executor: Executor
) -> Sequence[Part]:
    parts = persistence.info(keyspace.dirty)
    if persistence.appendonly:
        parts.append(part_of({"journal_queue_stalls": executor.backpressure.count}))
    return parts


def traffic_stats(
    clients: Clients, executor: Executor, replication: Role, rates: Rates
) -> Sequence[Part]:
    commands, bytes_in, bytes_out, repl_in, repl_out = rates.per_second
    fields = {
        "total_connections_received": clients.connections_received,
        "total_commands_processed": executor.statistics.commands,
        "instantaneous_ops_per_sec": round(commands),
        "total_net_input_bytes": executor.bytes_in,
        "total_net_output_bytes": executor.outbox.bytes_out,
        "total_net_repl_input_bytes": replication.totals.received_bytes,
        "total_net_repl_output_bytes": replication.feeds.source.sent_bytes,
        "instantaneous_input_kbps": f"{bytes_in / 1024:.2f}",
        "instantaneous_output_kbps": f"{bytes_out / 1024:.2f}",
        "instantaneous_input_repl_kbps": f"{repl_in / 1024:.2f}",
        "instantaneous_output_repl_kbps": f"{repl_out / 1024:.2f}",
        "rejected_connections": clients.connections_rejected,
        "sync_full": replication.resync.full_syncs,
        "sync_partial_ok": replication.resync.partial_syncs,
        "sync_partial_err": replication.resync.refused_partial_syncs,
        "sync_rewinds": replication.totals.rewinds,
    }
    return (part_of(fields),)


def data_stats(
    keyspace: Keyspace, executor: Executor, eviction: Eviction, pubsub: PubSub
) -> Sequence[Part]:
    fields = {
        "expired_subkeys": 0,
        "expired_keys": keyspace.expired_count,
        "expired_keys_active": executor.due.expired_count,
        "expired_subkeys_active": 0,
        "reservations_pending": keyspace.open_reservations(),
        "reservations_expired": keyspace.reservations_expired,
        "expired_stale_perc": "0.00",
        "expired_time_cap_reached_count": 0,
        "evicted_keys": 0,
        "evicted_entries": eviction.evicted_entries,
        "evicted_blocks": eviction.evicted_blocks,
        "evicted_clients": 0,
        "evicted_scripts": 0,
        "total_eviction_exceeded_time": 0,
        "current_eviction_exceeded_time": 0,
        "keyspace_hits": keyspace.hits,
        "keyspace_misses": keyspace.misses,
        "pubsub_channels": pubsub.channel_count,
        "pubsub_patterns": pubsub.pattern_count,
        "pubsubshard_channels": pubsub.shard_channel_count,
        "latest_fork_usec": 0,
        "total_forks": 0,
        "migrate_cached_sockets": 0,
        "slave_expires_tracked_keys": 0,
        "active_defrag_hits": 0,
        "active_defrag_misses": 0,
        "active_defrag_key_hits": 0,
        "active_defrag_key_misses": 0,
        "total_active_defrag_time": 0,
        "current_active_defrag_time": 0,
    }
    return (part_of(fields),)


def request_stats(executor: Executor, clients: Clients, access: Access) -> Sequence[Part]:
    denied = access.log.counts
    fields = {
        "tracking_total_keys": 0,
        "tracking_total_items": 0,
        "tracking_total_prefixes": 0,
        "unexpected_error_replies": 0,
        "total_error_replies": executor.statistics.error_replies,
        "dump_payload_sanitizations": 0,
        "total_reads_processed": executor.statistics.reads,
        "total_writes_processed": executor.outbox.writes,
        "io_threaded_reads_processed": 0,
        "io_threaded_writes_processed": 0,
        "io_threaded_total_prefetch_batches": 0,
        "io_threaded_total_prefetch_entries": 0,
        "client_output_buffer_limit_disconnections": clients.output_limit_closings,
        "reply_buffer_shrinks": 0,
        "reply_buffer_expands": 0,
        "acl_access_denied_auth": denied.get("auth", 0),
        "acl_access_denied_cmd": denied.get("command", 0),
        "acl_access_denied_key": denied.get("key", 0),
        "acl_access_denied_channel": denied.get("channel", 0),
    }
    return (part_of(fields),)


def cpu_section(steady_ms: Callable[[], int]) -> Sequence[Part]:
    return (_cpu_times(steady_ms()),)


@lru_cache(maxsize=1)
def _cpu_times(now_ms: int) -> Part:
    """The times of the process, its children and its main thread, read once in a millisecond."""
    whole = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    main = resource.getrusage(resource.RUSAGE_THREAD)
    return part_of(
        {
            "used_cpu_sys": f"{whole.ru_stime:.6f}",
            "used_cpu_user": f"{whole.ru_utime:.6f}",
            "used_cpu_sys_children": f"{children.ru_stime:.6f}",
            "used_cpu_user_children": f"{children.ru_utime:.6f}",
            "used_cpu_sys_main_thread": f"{main.ru_stime:.6f}",
            "used_cpu_user_main_thread": f"{main.ru_utime:.6f}",
        }
    )


def no_section() -> Sequence[Part]:
    """INFO modules: there are none."""
    return ()


def commands_section(executor: Executor) -> Sequence[Part]:
    fields = {
        f"cmdstat_{name}": f"calls={stat.calls},usec={stat.usec},"
        f"usec_per_call={stat.usec / stat.calls if stat.calls else 0:.2f},"
        f"rejected_calls={stat.rejected_calls},failed_calls={stat.failed_calls}"
        for name, stat in executor.command_stats().items()
    }
    return (part_of(fields),)


def errors_section(executor: Executor) -> Sequence[Part]:
    counts = executor.statistics.errors_by_code
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


def latency_fields(latency: LatencyMonitor, config: Config) -> Section:
    """The percentiles of each command's times."""
    percentages = config.latency_tracking_info_percentiles
    return {
        f"latency_percentiles_usec_{name}": ",".join(
            f"p{percentage:g}={percentile_us(counts, percentage):.3f}" for percentage in percentages
        )
        for name, counts in latency.counts().items()
        if any(counts)
    }


def latency_section(latency: LatencyMonitor, config: Config) -> Sequence[Part]:
    return (part_of(latency_fields(latency, config)),)


_CLUSTER = part_of({"cluster_enabled": 0})


def cluster_section() -> Sequence[Part]:
    return (_CLUSTER,)


def keyspace_section(keyspace: Keyspace) -> Sequence[Part]:
    fields: Section = {}
    for db in keyspace.databases_with_keys():
        fields[f"db{db.index}"] = (
            f"keys={len(db)},expires={db.expiring_count},avg_ttl={db.average_ttl_ms()},subexpiry=0"
        )
    return (part_of(fields),)


SECTIONS = (
    "server", "clients", "memory", "persistence", "stats", "replication", "cpu", "modules",
    "commandstats", "errorstats", "latencystats", "cluster", "keyspace",
)  # fmt: skip
EVERYTHING = frozenset(SECTIONS)
BY_DEFAULT = EVERYTHING - {"commandstats", "latencystats"}
GROUPS = {"default": BY_DEFAULT, "all": EVERYTHING, "everything": EVERYTHING}
NAMES = frozenset({*EVERYTHING, *GROUPS})
ONLY_DEFAULT = frozenset({"default"})

Collect = Callable[[], Sequence[Part]]
CollectOfClients = Callable[["ClientTotals"], Sequence[Part]]


@lru_cache(maxsize=16)
def _chosen(names: frozenset[str]) -> tuple[str, ...]:
    """The sections that these names select, in the order of SECTIONS."""
    chosen: frozenset[str] = frozenset().union(*(GROUPS.get(name, {name}) for name in names))
    return tuple(name for name in SECTIONS if name in chosen)


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
        self._titles = {name: f"\r\n# {name.capitalize()}\r\n" for name in SECTIONS}

    def text(self, names: Sequence[str]) -> str:
        """INFO for these sections (lower case; none: the default ones), in Redis' layout."""
        totals: ClientTotals | None = None
        found: list[str] = []
        for name in _chosen(NAMES.intersection(names) if names else ONLY_DEFAULT):
            title = self._titles[name]
            found.append(title if found else title[2:])  # no empty line before the first title
            if name in self._of_clients:
                totals = totals or self._totals()
                parts = self._of_clients[name](totals)
            else:
                parts = self._sections[name]()
            for part, values in parts:
                found.append(part.text(values))
        return "".join(found)

    def fields(self, name: str, totals: ClientTotals) -> Section:
        """The fields of one section."""
        if name in self._of_clients:
            return fields_of(self._of_clients[name](totals))
        return fields_of(self._sections[name]())
