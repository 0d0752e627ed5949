"""INFO memory and MEMORY STATS, with Redis' names. server/monitor/memory defines used_memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from millstream.server.monitor import allocator
from millstream.server.monitor.memory import Gauge

if TYPE_CHECKING:
    from millstream.server.clients import Clients, ClientTotals
    from millstream.server.config.directives import Config
    from millstream.server.durability.persistence import Persistence
    from millstream.server.execution.executor import Executor
    from millstream.server.replication.role import Role
    from millstream.storage.keyspace.database import Database

_MEMORY_TOTAL = os.sysconf("SC_PHYS_PAGES") * allocator.PAGE_BYTES


@lru_cache(maxsize=16)  # mostly the sizes of the last INFO
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


_MEMORY_TOTAL_HUMAN = human(_MEMORY_TOTAL)


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _data_share(used: int, data: int, startup: int) -> float:
    """The data's share of the memory added since the start, as in Redis."""
    return min(1.0, data / max(1, used - startup))


def _table_bytes(db: Database) -> dict[bytes, int]:
    """The memory of a database's tables, without keys and values."""
    return {
        b"overhead.hashtable.main": sys.getsizeof(db.table),
        b"overhead.hashtable.expires": sys.getsizeof(db.expiries),
    }


def _used_lines(used: int, rss: int, peak: int, overhead: int, startup: int) -> str:
    share = _data_share(used, used - overhead, startup)
    return (
        f"used_memory:{used}\r\n"
        f"used_memory_human:{human(used)}\r\n"
        f"used_memory_rss:{rss}\r\n"
        f"used_memory_rss_human:{human(rss)}\r\n"
        f"used_memory_peak:{peak}\r\n"
        f"used_memory_peak_human:{human(peak)}\r\n"
        f"used_memory_peak_perc:{100 * used / peak:.2f}%\r\n"
        f"used_memory_overhead:{overhead}\r\n"
        f"used_memory_startup:{startup}\r\n"
        f"used_memory_dataset:{used - overhead}\r\n"
        f"used_memory_dataset_perc:{100 * share:.2f}%\r\n"
        f"allocator_allocated:{used}\r\n"
        f"allocator_active:{rss}\r\n"
        f"allocator_resident:{rss}\r\n"
        "allocator_muzzy:0\r\n"
        f"total_system_memory:{_MEMORY_TOTAL}\r\n"
        f"total_system_memory_human:{_MEMORY_TOTAL_HUMAN}\r\n"
    )


def _script_lines(scripts: int) -> str:
    return (
        "used_memory_lua:0\r\n"
        "used_memory_vm_eval:0\r\n"
        "used_memory_lua_human:0B\r\n"
        "used_memory_scripts_eval:0\r\n"
        f"number_of_cached_scripts:{scripts}\r\n"
        "number_of_functions:0\r\n"
        "number_of_libraries:0\r\n"
        "used_memory_vm_functions:0\r\n"
        "used_memory_vm_total:0\r\n"
        "used_memory_vm_total_human:0B\r\n"
        "used_memory_functions:0\r\n"
        "used_memory_scripts:0\r\n"
        "used_memory_scripts_human:0B\r\n"
    )


class _Figures(NamedTuple):
    """The sizes in bytes, and the number of scripts, that INFO memory shows or computes with."""

    used: int
    rss: int
    peak_rss: int
    startup: int
    of_clients: int
    of_replicas: int
    backlog: int
    queued: int
    scripts: int
    maxmemory: int
    policy: str


@lru_cache(maxsize=4)  # mostly those of the last INFO
def _memory_lines(figures: _Figures) -> str:
    used, rss, backlog = figures.used, figures.rss, figures.backlog
    maxmemory, startup = figures.maxmemory, figures.startup
    of_clients, of_replicas = figures.of_clients, figures.of_replicas
    fragmentation = f"{_ratio(rss, used):.2f}"
    overhead = min(startup + of_clients + of_replicas + backlog, used)
    return (
        f"{_used_lines(used, rss, max(rss, figures.peak_rss), overhead, startup)}"
        f"{_script_lines(figures.scripts)}"
        f"maxmemory:{maxmemory}\r\n"
        f"maxmemory_human:{human(maxmemory)}\r\n"
        f"maxmemory_policy:{figures.policy}\r\n"
        f"allocator_frag_ratio:{fragmentation}\r\n"
        f"allocator_frag_bytes:{rss - used}\r\n"
        "allocator_rss_ratio:1.00\r\n"
        "allocator_rss_bytes:0\r\n"
        "rss_overhead_ratio:1.00\r\n"
        "rss_overhead_bytes:0\r\n"
        f"mem_fragmentation_ratio:{fragmentation}\r\n"
        f"mem_fragmentation_bytes:{rss - used}\r\n"
        "mem_not_counted_for_evict:0\r\n"
        f"mem_replication_backlog:{backlog}\r\n"
        f"mem_total_replication_buffers:{backlog}\r\n"
        "mem_replica_full_sync_buffer:0\r\n"
        f"mem_clients_slaves:{of_replicas}\r\n"
        f"mem_clients_normal:{of_clients}\r\n"
        "mem_cluster_links:0\r\n"
        f"mem_aof_buffer:{figures.queued}\r\n"
        "mem_allocator:libc\r\n"
        "mem_overhead_db_hashtable_rehashing:0\r\n"
        "active_defrag_running:0\r\n"
        "lazyfree_pending_objects:0\r\n"
        "lazyfreed_objects:0\r\n"
    )


class MemoryInfo:
    """The memory of the process and its parts. `gauge` measures used memory."""

    def __init__(
        self,
        gauge: Gauge,
        config: Config,
        clients: Clients,
        executor: Executor,
        persistence: Persistence,
        replication: Role,
        steady_ms: Callable[[], int],
    ) -> None:
        self._gauge = gauge
        self._config = config
        self._clients = clients
        self._executor = executor
        self._persistence = persistence
        self._replication = replication
        self._steady_ms = steady_ms
        self._peak_rss_bytes = allocator.peak_rss_bytes()

    def tick_second(self) -> None:
        """Measure again, often enough to notice the peak of the blocks' memory."""
        self._gauge.measure()
        self._peak_rss_bytes = allocator.peak_rss_bytes()

    def section(self, client_totals: Callable[[], ClientTotals]) -> str:
        """INFO memory."""
        used, rss = self._gauge.measure_at(self._steady_ms())
        config, totals = self._config, client_totals()
        figures = _Figures(
            used,
            rss,
            self._peak_rss_bytes,
            self._gauge.startup_bytes,
            totals.memory_bytes,
            totals.replica_bytes,
            self._replication.feeds.backlog_bytes,
            self._persistence.commits.queued_bytes,
            len(self._executor.context.scripts),
            config.maxmemory,
            config.maxmemory_policy,
        )
        return _memory_lines(figures)

    def facts(self) -> dict[str, object]:
        """The figures of MEMORY STATS, under its names."""
        used, rss = self._gauge.measure(), self._gauge.held()
        peak = max(rss, allocator.peak_rss_bytes())
        totals = self._clients.totals()
        startup_bytes = self._gauge.startup_bytes
        backlog_bytes = self._replication.feeds.backlog_bytes
        of_clients = totals.memory_bytes + totals.replica_bytes
        overhead = min(startup_bytes + of_clients + backlog_bytes, used)
        data = used - overhead
        databases = self._executor.keyspace.databases
        keys = sum(map(len, databases))
        return {
            "peak.allocated": peak,
            "total.allocated": used,
            "startup.allocated": startup_bytes,
            "replication.backlog": backlog_bytes,
            "clients.slaves": totals.replica_bytes,
            "clients.normal": totals.memory_bytes,
            "cluster.links": 0,
            "lua.caches": 0,
            "functions.caches": 0,
            **{f"db.{db.index}": _table_bytes(db) for db in databases if len(db)},
            "overhead.total": overhead,
            "keys.count": keys,
            "keys.bytes-per-key": data // keys if keys else 0,
            "dataset.bytes": data,
            "dataset.percentage": 100 * _data_share(used, data, startup_bytes),
            "peak.percentage": 100 * used / peak,
            "allocator.allocated": used,
            "allocator.active": rss,
            "allocator.resident": rss,
            "allocator-fragmentation.ratio": _ratio(rss, used),
            "allocator-fragmentation.bytes": rss - used,
            "fragmentation": _ratio(rss, used),
            "fragmentation.bytes": rss - used,
        }

    def trim(self) -> None:
        """MEMORY PURGE: return unused memory to the system."""
        allocator.trim()
