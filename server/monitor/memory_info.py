"""INFO memory and MEMORY STATS, with Redis' names. server/monitor/memory defines used_memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

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


def _table_bytes(db: Database) -> dict[bytes, int]:
    """The memory of a database's tables, without keys and values."""
    return {
        b"overhead.hashtable.main": sys.getsizeof(db.table),
        b"overhead.hashtable.expires": sys.getsizeof(db.expiries),
    }


@lru_cache(maxsize=4)  # mostly those of the last INFO
def _used_lines(used: int, rss: int, peak: int, overhead: int, startup: int, share: float) -> str:
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


@lru_cache(maxsize=4)
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


@lru_cache(maxsize=4)
def _fragmentation_lines(maxmemory: int, policy: str, used: int, rss: int) -> str:
    fragmentation = f"{_ratio(rss, used):.2f}"
    return (
        f"maxmemory:{maxmemory}\r\n"
        f"maxmemory_human:{human(maxmemory)}\r\n"
        f"maxmemory_policy:{policy}\r\n"
        f"allocator_frag_ratio:{fragmentation}\r\n"
        f"allocator_frag_bytes:{rss - used}\r\n"
        "allocator_rss_ratio:1.00\r\n"
        "allocator_rss_bytes:0\r\n"
        "rss_overhead_ratio:1.00\r\n"
        "rss_overhead_bytes:0\r\n"
        f"mem_fragmentation_ratio:{fragmentation}\r\n"
        f"mem_fragmentation_bytes:{rss - used}\r\n"
        "mem_not_counted_for_evict:0\r\n"
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

    def _overhead_bytes(self, totals: ClientTotals) -> int:
        """The memory used for purposes other than data."""
        clients = totals.memory_bytes + totals.replica_bytes
        return self._gauge.startup_bytes + clients + self._replication.backlog_bytes

    def _data_share(self, used: int, data: int) -> float:
        """The data's percentage of the memory added since the start, as in Redis."""
        return min(1.0, data / max(1, used - self._gauge.startup_bytes))

    def section(self, totals: ClientTotals) -> str:
        """INFO memory."""
        used, rss = self._gauge.measure_at(self._steady_ms())
        overhead = min(self._overhead_bytes(totals), used)
        config, backlog_bytes = self._config, self._replication.backlog_bytes
        share = self._data_share(used, used - overhead)
        startup_bytes, scripts = self._gauge.startup_bytes, len(self._executor.context.scripts)
        return (
            _used_lines(used, rss, max(rss, self._peak_rss_bytes), overhead, startup_bytes, share)
            + _script_lines(scripts)
            + _fragmentation_lines(config.maxmemory, config.maxmemory_policy, used, rss)
            + f"mem_replication_backlog:{backlog_bytes}\r\n"
            f"mem_total_replication_buffers:{backlog_bytes}\r\n"
            "mem_replica_full_sync_buffer:0\r\n"
            f"mem_clients_slaves:{totals.replica_bytes}\r\n"
            f"mem_clients_normal:{totals.memory_bytes}\r\n"
            "mem_cluster_links:0\r\n"
            f"mem_aof_buffer:{self._persistence.commits.queued_bytes}\r\n"
            "mem_allocator:libc\r\n"
            "mem_overhead_db_hashtable_rehashing:0\r\n"
            "active_defrag_running:0\r\n"
            "lazyfree_pending_objects:0\r\n"
            "lazyfreed_objects:0\r\n"
        )

    def facts(self) -> dict[str, object]:
        """The figures of MEMORY STATS, under its names."""
        used, rss = self._gauge.measure(), self._gauge.held()
        peak = max(rss, allocator.peak_rss_bytes())
        totals = self._clients.totals()
        overhead = min(self._overhead_bytes(totals), used)
        data = used - overhead
        databases = self._executor.keyspace.databases
        keys = sum(map(len, databases))
        return {
            "peak.allocated": peak,
            "total.allocated": used,
            "startup.allocated": self._gauge.startup_bytes,
            "replication.backlog": self._replication.backlog_bytes,
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
            "dataset.percentage": 100 * self._data_share(used, data),
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
