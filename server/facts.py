"""What INFO tells, section by section, under Redis' names.

Dashboards, exporters and clients read these names, so they are kept even where this server works
differently; a figure that is not measured here is left out rather than made up. used_memory is what
the process holds of the machine's memory, since Python's and the compiled modules' allocators keep
no common account.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from millstream import __version__
from millstream.commands.connection import REDIS_VERSION, SERVER_NAME

if TYPE_CHECKING:
    from millstream.server.app import Server

Section = dict[str, object]
PAGE_BYTES = resource.getpagesize()
SAMPLES = 16  # as many seconds as the instantaneous rates look back, as in Redis


def human(size_bytes: int) -> str:
    """Redis' short form of a size: ``512B``, ``1.50K``, ``23.54G``."""
    if size_bytes < 1024:
        return f"{size_bytes}B"
    value = float(size_bytes)
    for unit in "KMGTP":
        value /= 1024
        if value < 1024 or unit == "P":
            break
    return f"{value:.2f}{unit}"


class Rates:
    """Figures per second over the last seconds, from totals sampled once a second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, tuple[int, int, int]]] = deque(maxlen=SAMPLES + 1)

    def sample(self, now_ms: int, commands: int, bytes_in: int, bytes_out: int) -> None:
        self._samples.append((now_ms, (commands, bytes_in, bytes_out)))

    def clear(self) -> None:
        self._samples.clear()

    def per_second(self) -> tuple[float, float, float]:
        """(commands, bytes in, bytes out); zeros until two samples are there."""
        if len(self._samples) < 2:
            return 0.0, 0.0, 0.0
        (first_ms, first), (last_ms, last) = self._samples[0], self._samples[-1]
        seconds = max(last_ms - first_ms, 1) / 1000
        commands, bytes_in, bytes_out = (
            (b - a) / seconds for a, b in zip(first, last, strict=True)
        )
        return commands, bytes_in, bytes_out


def _server(server: Server) -> Section:
    uptime_s = server.uptime_s()
    return {
        "redis_version": REDIS_VERSION,
        "redis_mode": "standalone",
        "server": SERVER_NAME,
        "millstream_version": __version__,
        "os": f"{platform.system()} {platform.release()} {platform.machine()}",
        "arch_bits": 64,
        "python_version": platform.python_version(),
        "multiplexing_api": "uvloop",
        "process_id": os.getpid(),
        "run_id": server.run_id,
        "tcp_port": server.port,
        "server_time_usec": server.now_ms() * 1000,
        "uptime_in_seconds": uptime_s,
        "uptime_in_days": uptime_s // 86400,
        "executable": sys.argv[0],
        "config_file": str(server.config_file or ""),
    }


def _clients(server: Server) -> Section:
    return {
        "connected_clients": len(server.clients),
        "cluster_connections": 0,
        "maxclients": server.config.maxclients,
        "blocked_clients": server.executor.blocked_count,
        "tracking_clients": 0,
        "pubsub_clients": 0,
        "watching_clients": 0,
        "total_watched_keys": 0,
        "total_blocking_keys": server.executor.blocking_keys,
        "total_blocking_keys_on_nokey": 0,
    }


def rss_bytes() -> int:
    """The memory of the machine that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory(server: Server) -> Section:
    used = rss_bytes()
    peak = max(peak_rss_bytes(), used)
    total = os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES
    return {
        "used_memory": used,
        "used_memory_human": human(used),
        "used_memory_rss": used,
        "used_memory_rss_human": human(used),
        "used_memory_peak": peak,
        "used_memory_peak_human": human(peak),
        "used_memory_peak_perc": f"{100 * used / peak:.2f}%",
        "used_memory_startup": server.startup_rss_bytes,
        "used_memory_dataset": max(0, used - server.startup_rss_bytes),
        "total_system_memory": total,
        "total_system_memory_human": human(total),
        "maxmemory": 0,
        "maxmemory_human": human(0),
        "maxmemory_policy": "noeviction",
        "mem_fragmentation_ratio": "1.00",
        "mem_clients_normal": sum(
            client.query_buffer_bytes + client.output_bytes for client in server.clients.values()
        ),
    }


def _persistence(server: Server) -> Section:
    changes = server.keyspace.dirty - server.persistence.changes_at_save
    return {**server.persistence.info(), "rdb_changes_since_last_save": changes}


def _stats(server: Server) -> Section:
    executor = server.executor
    commands, bytes_in, bytes_out = server.rates.per_second()
    return {
        "total_connections_received": server.connections_received,
        "total_commands_processed": executor.commands_processed,
        "instantaneous_ops_per_sec": round(commands),
        "total_net_input_bytes": executor.bytes_in,
        "total_net_output_bytes": executor.bytes_out,
        "instantaneous_input_kbps": f"{bytes_in / 1024:.2f}",
        "instantaneous_output_kbps": f"{bytes_out / 1024:.2f}",
        "rejected_connections": server.connections_rejected,
        "sync_full": 0,
        "sync_partial_ok": 0,
        "sync_partial_err": 0,
        "expired_keys": 0,
        "evicted_keys": 0,
        "evicted_clients": 0,
        "pubsub_channels": 0,
        "pubsub_patterns": 0,
        "latest_fork_usec": 0,
        "total_forks": 0,
        "total_error_replies": executor.error_replies,
    }


def _replication(server: Server) -> Section:
    return {
        "role": "master",
        "connected_slaves": 0,
        "master_failover_state": "no-failover",
        "master_replid": server.run_id,
        "master_replid2": "0" * 40,
        "master_repl_offset": 0,
        "second_repl_offset": -1,
        "repl_backlog_active": 0,
        "repl_backlog_size": 0,
        "repl_backlog_first_byte_offset": 0,
        "repl_backlog_histlen": 0,
    }


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
    counts = server.executor.errors_by_code
    return {f"errorstat_{code}": f"count={counts[code]}" for code in sorted(counts)}


def _cluster(server: Server) -> Section:
    return {"cluster_enabled": 0}


def _keyspace(server: Server) -> Section:
    return {
        f"db{db.index}": f"keys={len(db)},expires=0,avg_ttl=0"
        for db in server.keyspace.databases
        if len(db)
    }


SECTIONS: dict[str, tuple[str, Callable[[Server], Section]]] = {
    "server": ("Server", _server),
    "clients": ("Clients", _clients),
    "memory": ("Memory", _memory),
    "persistence": ("Persistence", _persistence),
    "stats": ("Stats", _stats),
    "replication": ("Replication", _replication),
    "cpu": ("CPU", _cpu),
    "modules": ("Modules", _modules),
    "commandstats": ("Commandstats", _commandstats),
    "errorstats": ("Errorstats", _errorstats),
    "cluster": ("Cluster", _cluster),
    "keyspace": ("Keyspace", _keyspace),
}
BY_DEFAULT = frozenset(SECTIONS) - {"commandstats"}


def _chosen(names: Sequence[str]) -> frozenset[str]:
    if {"all", "everything"} & set(names):
        return frozenset(SECTIONS)
    if not names or "default" in names:
        return BY_DEFAULT | (frozenset(names) & frozenset(SECTIONS))
    return frozenset(names) & frozenset(SECTIONS)


def info_text(server: Server, names: Sequence[str]) -> str:
    """INFO for these sections (lower case; none: the default ones), in Redis' layout."""
    chosen = _chosen(names)
    parts = []
    for name, (title, collect) in SECTIONS.items():
        if name in chosen:
            lines = [f"{field}:{value}\r\n" for field, value in collect(server).items()]
            parts.append(f"# {title}\r\n" + "".join(lines))
    return "\r\n".join(parts)
