"""INFO, section by section, with Redis' names.

Dashboards, exporters and clients read these names, so they are used even where this server works
differently. Absent features (forks, Lua) have the values that Redis shows when they
are not used; figures that are not measured are left out.
"""

from __future__ import annotations

import math
import os
import platform
import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from millstream import __version__
from millstream.commands.admin.connection import REDIS_VERSION, SERVER_NAME
from millstream.server.monitor.client_totals import ClientTotals, client_totals
from millstream.server.monitor.memory_info import memory_section

if TYPE_CHECKING:
    from millstream.server.app import Server

Section = dict[str, object]
TOTALS = 5  # commands, bytes in and out, bytes in and out of the links of replicas
SAMPLES = 16  # the seconds that the instantaneous rates cover, as in Redis


class Rates:
    """Figures per second over the last seconds, from totals sampled once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=SAMPLES + 1)

    def sample(self, now_ms: int, *totals: int) -> None:
        """Note the TOTALS."""
        self._samples.append((now_ms, totals))

    def clear(self) -> None:
        self._samples.clear()

    def per_second(self) -> list[float]:
        """The rates of the totals; zeros until there are two samples."""
        if len(self._samples) < 2:
            return [0.0] * TOTALS
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        seconds = max(last_ms - first_ms, 1) / 1000
        return [(b - a) / seconds for a, b in zip(first, last, strict=True)]


# What does not change while the server runs.
_PROGRAM: Section = {
    "redis_version": REDIS_VERSION,
    "redis_git_sha1": "00000000",
    "redis_git_dirty": 0,
    "redis_build_id": f"{crc32(__version__.encode()):016x}",
    "redis_mode": "standalone",
    "server": SERVER_NAME,
    "millstream_version": __version__,
    "os": f"{platform.system()} {platform.release()} {platform.machine()}",
    "arch_bits": 64,
    "monotonic_clock": "POSIX clock_gettime",
    "python_version": platform.python_version(),
    "multiplexing_api": "uvloop",
    "gcc_version": platform.python_compiler().removeprefix("GCC "),
}


def _server(server: Server) -> Section:
    uptime_s = server.uptime_s()
    return {
        **_PROGRAM,
        "process_id": os.getpid(),
        "process_supervised": server.supervision.name,
        "run_id": server.run_id,
        "tcp_port": server.port,
        "server_time_usec": server.now_us(),
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s // 86400,
        "hz": server.config.shown("hz"),
        "configured_hz": server.config.shown("hz"),
        "lru_clock": server.now_ms() // 1000 & 0xFFFFFF,
        "executable": os.path.abspath(sys.argv[0]),
        "config_file": str(server.config_file.absolute() if server.config_file else ""),
        "io_threads_active": 0,
        **server.listeners.info_fields(),
    }


def clients_section(server: Server, totals: ClientTotals) -> Section:
    waiting = server.executor.serving.waiting
    return {
        "connected_clients": len(server.clients),
        "cluster_connections": 0,
        "maxclients": server.config.maxclients,
        "client_recent_max_input_buffer": totals.input_max_bytes,
        "client_recent_max_output_buffer": totals.output_max_bytes,
        "blocked_clients": server.executor.blocked_count,
        "tracking_clients": 0,
        "pubsub_clients": totals.subscribed,
        "watching_clients": totals.watching,
        "clients_in_timeout_table": server.executor.serving.waiting.timed_count,
        "total_watched_keys": len(totals.watched),
        "total_blocking_keys": len([*waiting.keys()]),
        "total_blocking_keys_on_nokey": sum(1 for _ in waiting.keys_that_must_stay()),
        **_pause(server),
    }


_PAUSE_REASONS = {
    "": "client_pause",
    "failover": "failover_in_progress",
    "shutdown": "shutdown_in_progress",
}


def _pause(server: Server) -> Section:
    """The commands that a pause postpones, and for how long."""
    pause = server.executor.pauses.current
    if pause is None:
        return {
            "paused_reason": "none",
            "paused_actions": "none",
            "paused_timeout_milliseconds": 0,
        }
    return {
        "paused_reason": _PAUSE_REASONS[next(iter(sorted(pause.reasons)), "")],
        "paused_actions": "all" if pause.all else "write",
        "paused_timeout_milliseconds": max(0, pause.until_ms - server.steady_ms()),
    }


def _persistence(server: Server) -> Section:
    changes = server.keyspace.dirty - server.persistence.snapshots.save_points.changes_at_save
    fields = dict(server.persistence.info())
    if server.persistence.appendonly:
        fields["journal_queue_stalls"] = server.executor.backpressure.count
    # In Redis' order: after the fields about the current load and save.
    now = ("loading", "async_loading", "current_")
    first = {name: fields.pop(name) for name in list(fields) if name.startswith(now)}
    return {**first, "rdb_changes_since_last_save": changes, **fields}


def _stats(server: Server) -> Section:
    return {**_traffic(server), **_data_stats(server), **_request_stats(server)}


def _traffic(server: Server) -> Section:
    commands, bytes_in, bytes_out, repl_in, repl_out = server.rates.per_second()
    executor = server.executor
    return {
        "total_connections_received": server.registry.connections_received,
        "total_commands_processed": executor.statistics.commands,
        "instantaneous_ops_per_sec": round(commands),
        "total_net_input_bytes": executor.bytes_in,
        "total_net_output_bytes": executor.outbox.bytes_out,
        "total_net_repl_input_bytes": server.replication.received_bytes,
        "total_net_repl_output_bytes": server.replication.feeds.sent_bytes,
        "instantaneous_input_kbps": f"{bytes_in / 1024:.2f}",
        "instantaneous_output_kbps": f"{bytes_out / 1024:.2f}",
        "instantaneous_input_repl_kbps": f"{repl_in / 1024:.2f}",
        "instantaneous_output_repl_kbps": f"{repl_out / 1024:.2f}",
        "rejected_connections": server.registry.connections_rejected,
        "sync_full": server.replication.resync.full_syncs,
        "sync_partial_ok": server.replication.resync.partial_syncs,
        "sync_partial_err": server.replication.resync.refused_partial_syncs,
        "sync_rewinds": server.replication.rewinds,
    }


def _data_stats(server: Server) -> Section:
    return {
        "expired_subkeys": 0,
        "expired_keys": server.keyspace.expired_count,
        "expired_keys_active": server.executor.due.expired_count,
        "expired_subkeys_active": 0,
        "reservations_pending": sum(db.reservations for db in server.keyspace.databases),
        "reservations_expired": server.keyspace.reservations_expired,
        "expired_stale_perc": "0.00",
        "expired_time_cap_reached_count": 0,
        "evicted_keys": 0,
        "evicted_entries": server.eviction.evicted_entries,
        "evicted_blocks": server.eviction.evicted_blocks,
        "evicted_clients": 0,
        "evicted_scripts": 0,
        "total_eviction_exceeded_time": 0,
        "current_eviction_exceeded_time": 0,
        "keyspace_hits": server.keyspace.hits,
        "keyspace_misses": server.keyspace.misses,
        "pubsub_channels": server.pubsub.channel_count,
        "pubsub_patterns": server.pubsub.pattern_count,
        "pubsubshard_channels": 0,
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


def _request_stats(server: Server) -> Section:
    executor = server.executor
    denied = server.access.log.counts
    return {
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
        "client_output_buffer_limit_disconnections": server.registry.output_limit_closings,
        "reply_buffer_shrinks": 0,
        "reply_buffer_expands": 0,
        "acl_access_denied_auth": denied["auth"],
        "acl_access_denied_cmd": denied["command"],
        "acl_access_denied_key": denied["key"],
        "acl_access_denied_channel": denied["channel"],
    }


def _replication(server: Server) -> Section:
    return server.replication.facts()


def _cpu(server: Server) -> Section:
    whole = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    main = resource.getrusage(resource.RUSAGE_THREAD)
    return {
        "used_cpu_sys": f"{whole.ru_stime:.6f}",
        "used_cpu_user": f"{whole.ru_utime:.6f}",
        "used_cpu_sys_children": f"{children.ru_stime:.6f}",
        "used_cpu_user_children": f"{children.ru_utime:.6f}",
        "used_cpu_sys_main_thread": f"{main.ru_stime:.6f}",
        "used_cpu_user_main_thread": f"{main.ru_utime:.6f}",
    }


def _modules(server: Server) -> Section:
    return {}


def _commandstats(server: Server) -> Section:
    return {
        f"cmdstat_{name}": f"calls={stat.calls},usec={stat.usec},"
        f"usec_per_call={stat.usec / stat.calls if stat.calls else 0:.2f},"
        f"rejected_calls={stat.rejected_calls},failed_calls={stat.failed_calls}"
        for name, stat in server.executor.command_stats().items()
    }


def _errorstats(server: Server) -> Section:
    counts = server.executor.statistics.errors_by_code
    return {f"errorstat_{code}": f"count={counts[code]}" for code in sorted(counts)}


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


def _latencystats(server: Server) -> Section:
    percentages = server.config.latency_tracking_info_percentiles
    return {
        f"latency_percentiles_usec_{name}": ",".join(
            f"p{percentage:g}={percentile_us(counts, percentage):.3f}" for percentage in percentages
        )
        for name, counts in server.latency_counts().items()
        if any(counts)
    }


def _cluster(server: Server) -> Section:
    return {"cluster_enabled": 0}


def _keyspace(server: Server) -> Section:
    return {
        f"db{db.index}": f"keys={len(db)},expires={db.expiring_count},"
        f"avg_ttl={db.average_ttl_ms()},subexpiry=0"
        for db in server.keyspace.databases
        if len(db)
    }


OF_CLIENTS: dict[str, Callable[[Server, ClientTotals], Section]] = {
    "clients": clients_section,
    "memory": memory_section,
}
"""Sections for which all clients are looked at, once for all of these sections."""
SECTIONS: dict[str, tuple[str, Callable[[Server], Section]]] = {
    "server": ("Server", _server),
    "clients": ("Clients", lambda server: clients_section(server, client_totals(server))),
    "memory": ("Memory", lambda server: memory_section(server, client_totals(server))),
    "persistence": ("Persistence", _persistence),
    "stats": ("Stats", _stats),
    "replication": ("Replication", _replication),
    "cpu": ("CPU", _cpu),
    "modules": ("Modules", _modules),
    "commandstats": ("Commandstats", _commandstats),
    "errorstats": ("Errorstats", _errorstats),
    "latencystats": ("Latencystats", _latencystats),
    "cluster": ("Cluster", _cluster),
    "keyspace": ("Keyspace", _keyspace),
}
EVERYTHING = frozenset(SECTIONS)
BY_DEFAULT = EVERYTHING - {"commandstats", "latencystats"}
GROUPS = {"default": BY_DEFAULT, "all": EVERYTHING, "everything": EVERYTHING}


def _chosen(names: Sequence[str]) -> frozenset[str]:
    """The sections that these names select."""
    if not names:
        return BY_DEFAULT
    return frozenset().union(*(GROUPS.get(name, {name} & EVERYTHING) for name in names))


class SectionText:
    """The text of one section of INFO. Most fields are as in the last INFO: only the lines of
    others are made again."""

    def __init__(self, title: str) -> None:
        self._names: list[str] = []
        self._values: list[object] = []
        self._lines = [f"# {title}\r\n"]
        self._text = self._lines[0]

    def update(self, fields: Section) -> str:
        """The text for these fields. A field's values are always of one type."""
        names, values, lines = list(fields), list(fields.values()), self._lines
        if names != self._names:
            lines[1:] = [f"{name}:{value}\r\n" for name, value in fields.items()]
        elif values == self._values:
            return self._text
        else:
            for place, old in enumerate(self._values):
                if old != values[place]:
                    lines[place + 1] = f"{names[place]}:{values[place]}\r\n"
        self._names, self._values, self._text = names, values, "".join(lines)
        return self._text


class InfoText:
    """INFO in Redis' layout."""

    def __init__(self) -> None:
        self._sections = {name: SectionText(title) for name, (title, _) in SECTIONS.items()}

    def make(self, server: Server, names: Sequence[str]) -> str:
        """INFO for these sections (lower case; none: the default ones)."""
        chosen = _chosen(names)
        totals = client_totals(server) if chosen & OF_CLIENTS.keys() else ClientTotals()
        parts = []
        for name, (_, collect) in SECTIONS.items():
            if name in chosen:
                of_clients = OF_CLIENTS.get(name)
                fields = collect(server) if of_clients is None else of_clients(server, totals)
                parts.append(self._sections[name].update(fields))
        return "\r\n".join(parts)
