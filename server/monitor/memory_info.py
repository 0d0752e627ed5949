"""INFO memory and MEMORY STATS, with Redis' names. server/monitor/memory defines used_memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.server.monitor import allocator
from millstream.server.monitor.info_lines import Part, part_of
from millstream.server.monitor.memory import Gauge

if TYPE_CHECKING:
    from millstream.server.clients import Clients, ClientTotals
    from millstream.server.config.directives import Config
    from millstream.server.durability.persistence import Persistence
    from millstream.server.execution.executor import Executor
    from millstream.server.replication.role import Role
    from millstream.storage.keyspace.database import Database

_MEMORY_TOTAL = os.sysconf("SC_PHYS_PAGES") * allocator.PAGE_BYTES


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

    def section(self, totals: ClientTotals) -> Sequence[Part]:
        """INFO memory."""
        used, rss = self._gauge.measure_at(self._steady_ms())
        return self._used(totals, used, rss), self._scripts(), self._limits(totals, used, rss)

    def _used(self, totals: ClientTotals, used: int, rss: int) -> Part:
        peak = max(rss, self._peak_rss_bytes)
        overhead = min(self._overhead_bytes(totals), used)
        data = used - overhead
        return part_of(
            {
                "used_memory": used,
                "used_memory_human": human(used),
                "used_memory_rss": rss,
                "used_memory_rss_human": human(rss),
                "used_memory_peak": peak,
                "used_memory_peak_human": human(peak),
                "used_memory_peak_perc": f"{100 * used / peak:.2f}%",
                "used_memory_overhead": overhead,
                "used_memory_startup": self._gauge.startup_bytes,
                "used_memory_dataset": data,
                "used_memory_dataset_perc": f"{100 * self._data_share(used, data):.2f}%",
                "allocator_allocated": used,
                "allocator_active": rss,
                "allocator_resident": rss,
                "allocator_muzzy": 0,
                "total_system_memory": _MEMORY_TOTAL,
                "total_system_memory_human": _MEMORY_TOTAL_HUMAN,
            }
        )

    def _scripts(self) -> Part:
        return part_of(
            {
                "used_memory_lua": 0,
                "used_memory_vm_eval": 0,
                "used_memory_lua_human": "0B",
                "used_memory_scripts_eval": 0,
                "number_of_cached_scripts": len(self._executor.context.scripts),
                "number_of_functions": 0,
                "number_of_libraries": 0,
                "used_memory_vm_functions": 0,
                "used_memory_vm_total": 0,
                "used_memory_vm_total_human": "0B",
                "used_memory_functions": 0,
                "used_memory_scripts": 0,
                "used_memory_scripts_human": "0B",
            }
        )

    def _limits(self, totals: ClientTotals, used: int, rss: int) -> Part:
        config, backlog_bytes = self._config, self._replication.backlog_bytes
        fragmentation = f"{_ratio(rss, used):.2f}"
        return part_of(
            {
                "maxmemory": config.maxmemory,
                "maxmemory_human": human(config.maxmemory),
                "maxmemory_policy": config.maxmemory_policy,
                "allocator_frag_ratio": fragmentation,
                "allocator_frag_bytes": rss - used,
                "allocator_rss_ratio": "1.00",
                "allocator_rss_bytes": 0,
                "rss_overhead_ratio": "1.00",
                "rss_overhead_bytes": 0,
                "mem_fragmentation_ratio": fragmentation,
                "mem_fragmentation_bytes": rss - used,
                "mem_not_counted_for_evict": 0,
                "mem_replication_backlog": backlog_bytes,
                "mem_total_replication_buffers": backlog_bytes,
                "mem_replica_full_sync_buffer": 0,
                "mem_clients_slaves": totals.replica_bytes,
                "mem_clients_normal": totals.memory_bytes,
                "mem_cluster_links": 0,
                "mem_aof_buffer": self._persistence.queued_bytes,
                "mem_allocator": "libc",
                "mem_overhead_db_hashtable_rehashing": 0,
                "active_defrag_running": 0,
                "lazyfree_pending_objects": 0,
                "lazyfreed_objects": 0,
            }
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
