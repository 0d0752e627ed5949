"""INFO memory and MEMORY STATS, with Redis' names. server/monitor/memory defines used_memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from millstream.server.monitor import allocator
from millstream.server.monitor.client_totals import ClientTotals, client_totals
from millstream.server.monitor.info_lines import Part, lines

if TYPE_CHECKING:
    from millstream.server.app import Server
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


def _overhead_bytes(server: Server, totals: ClientTotals) -> int:
    """The memory used for purposes other than data."""
    clients = totals.memory_bytes + totals.replica_bytes
    return server.startup_bytes + clients + server.replication.backlog_bytes


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def _data_share(server: Server, used: int, data: int) -> float:
    """The data's percentage of the memory added since the start, as in Redis."""
    return min(1.0, data / max(1, used - server.startup_bytes))


_USED = lines(
    "used_memory",
    "used_memory_human",
    "used_memory_rss",
    "used_memory_rss_human",
    "used_memory_peak",
    "used_memory_peak_human",
    "used_memory_peak_perc:%.2f%%",
    "used_memory_overhead",
    "used_memory_startup",
    "used_memory_dataset",
    "used_memory_dataset_perc:%.2f%%",
    "allocator_allocated",
    "allocator_active",
    "allocator_resident",
    "allocator_muzzy:0",
    f"total_system_memory:{_MEMORY_TOTAL}",
    f"total_system_memory_human:{human(_MEMORY_TOTAL)}",
)
_SCRIPTS = lines(
    "used_memory_lua:0",
    "used_memory_vm_eval:0",
    "used_memory_lua_human:0B",
    "used_memory_scripts_eval:0",
    "number_of_cached_scripts",
    "number_of_functions:0",
    "number_of_libraries:0",
    "used_memory_vm_functions:0",
    "used_memory_vm_total:0",
    "used_memory_vm_total_human:0B",
    "used_memory_functions:0",
    "used_memory_scripts:0",
    "used_memory_scripts_human:0B",
)
_OTHER = lines(
    "maxmemory",
    "maxmemory_human",
    "maxmemory_policy",
    "allocator_frag_ratio:%.2f",
    "allocator_frag_bytes",
    "allocator_rss_ratio:1.00",
    "allocator_rss_bytes:0",
    "rss_overhead_ratio:1.00",
    "rss_overhead_bytes:0",
    "mem_fragmentation_ratio:%.2f",
    "mem_fragmentation_bytes",
    "mem_not_counted_for_evict:0",
    "mem_replication_backlog",
    "mem_total_replication_buffers",
    "mem_replica_full_sync_buffer:0",
    "mem_clients_slaves",
    "mem_clients_normal",
    "mem_cluster_links:0",
    "mem_aof_buffer",
    "mem_allocator:libc",
    "mem_overhead_db_hashtable_rehashing:0",
    "active_defrag_running:0",
    "lazyfree_pending_objects:0",
    "lazyfreed_objects:0",
)


def memory_section(server: Server, totals: ClientTotals) -> Sequence[Part]:
    used, rss = server.memory.measure_at(server.steady_ms())
    peak = max(rss, server.peak_rss_bytes)
    overhead = min(_overhead_bytes(server, totals), used)
    data = used - overhead
    config, backlog_bytes = server.config, server.replication.backlog_bytes
    share = _data_share(server, used, data)
    other = (
        *(config.maxmemory, human(config.maxmemory), config.maxmemory_policy),
        *(_ratio(rss, used), rss - used, _ratio(rss, used), rss - used),
        *(backlog_bytes, backlog_bytes, totals.replica_bytes, totals.memory_bytes),
        server.persistence.queued_bytes,
    )
    used_fields = _used_fields(used, rss, peak, overhead, server.startup_bytes, share)
    scripts = (len(server.executor.context.scripts),)
    return (_USED, used_fields), (_SCRIPTS, scripts), (_OTHER, other)


@lru_cache(maxsize=4)  # mostly those of the last INFO
def _used_fields(
    used: int, rss: int, peak: int, overhead: int, startup: int, share: float
) -> tuple[object, ...]:
    return (
        *(used, human(used), rss, human(rss), peak, human(peak), 100 * used / peak),
        *(overhead, startup, used - overhead, 100 * share),
        *(used, rss, rss),
    )


def _table_bytes(db: Database) -> dict[bytes, int]:
    """The memory of a database's tables, without keys and values."""
    return {
        b"overhead.hashtable.main": sys.getsizeof(db.table),
        b"overhead.hashtable.expires": sys.getsizeof(db.expiries),
    }


def memory_facts(server: Server) -> dict[str, object]:
    """The figures of MEMORY STATS, under its names."""
    used, rss = server.memory.measure(), server.memory.held()
    peak = max(rss, allocator.peak_rss_bytes())
    totals = client_totals(server)
    overhead = min(_overhead_bytes(server, totals), used)
    data = used - overhead
    keys = sum(map(len, server.keyspace.databases))
    return {
        "peak.allocated": peak,
        "total.allocated": used,
        "startup.allocated": server.startup_bytes,
        "replication.backlog": server.replication.backlog_bytes,
        "clients.slaves": totals.replica_bytes,
        "clients.normal": totals.memory_bytes,
        "cluster.links": 0,
        "lua.caches": 0,
        "functions.caches": 0,
        **{f"db.{db.index}": _table_bytes(db) for db in server.keyspace.databases if len(db)},
        "overhead.total": overhead,
        "keys.count": keys,
        "keys.bytes-per-key": data // keys if keys else 0,
        "dataset.bytes": data,
        "dataset.percentage": 100 * _data_share(server, used, data),
        "peak.percentage": 100 * used / peak,
        "allocator.allocated": used,
        "allocator.active": rss,
        "allocator.resident": rss,
        "allocator-fragmentation.ratio": _ratio(rss, used),
        "allocator-fragmentation.bytes": rss - used,
        "fragmentation": _ratio(rss, used),
        "fragmentation.bytes": rss - used,
    }
