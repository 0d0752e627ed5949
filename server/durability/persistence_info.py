"""INFO persistence, with Redis' names and order."""

from __future__ import annotations

from typing import Protocol

from millstream.server.durability.data_loading import DataLoading
from millstream.server.durability.refusal import Refusal
from millstream.server.durability.snapshots import Snapshots
from millstream.server.monitor.info_lines import Part, part_of


class State(Protocol):
    """The attributes of a Persistence that INFO reads."""

    snapshots: Snapshots
    data_loading: DataLoading
    refusal: Refusal
    appendonly: bool
    base_bytes: int

    @property
    def queued_bytes(self) -> int: ...

    def current_bytes(self) -> int: ...


def persistence_parts(persistence: State, dirty: int, now_ms: int) -> list[Part]:
    """INFO persistence. `dirty` counts all changes so far, `now_ms` is a time of the steady
    clock."""
    is_loading = persistence.data_loading.is_running
    current = {
        "loading": int(is_loading),
        "async_loading": 0,
        "current_cow_peak": 0,
        "current_cow_size": 0,
        "current_cow_size_age": 0,
        "current_fork_perc": "0.00",
    }
    parts = [part_of(current)]
    if is_loading:
        parts.append(part_of(_loading_facts(persistence.data_loading, now_ms)))
    parts.append(part_of(_snapshot_facts(persistence, dirty, now_ms)))
    if persistence.appendonly:
        journal = {
            "aof_current_size": persistence.current_bytes(),
            "aof_base_size": persistence.base_bytes,
            "aof_pending_rewrite": 0,
            "aof_buffer_length": persistence.queued_bytes,
            "aof_pending_bio_fsync": 0,
            "aof_delayed_fsync": 0,
        }
        parts.append(part_of(journal))
    return parts


def _snapshot_facts(persistence: State, dirty: int, now_ms: int) -> dict[str, object]:
    snapshots = persistence.snapshots
    save, rewrite = snapshots.tallies["save"], snapshots.tallies["rewrite"]
    job = snapshots.job
    kind = job.kind if job is not None else None
    running_s = (now_ms - job.started_ms) // 1000 if job is not None else -1
    return {
        "rdb_changes_since_last_save": dirty - snapshots.save_points.changes_at_save,
        "rdb_bgsave_in_progress": int(kind == "save"),
        "rdb_last_save_time": snapshots.last_save_s,
        "rdb_last_bgsave_status": _status(save.ok),
        "rdb_last_bgsave_time_sec": save.last_s,
        "rdb_current_bgsave_time_sec": running_s if kind == "save" else -1,
        "rdb_saves": save.count,
        "rdb_last_cow_size": 0,
        "rdb_last_load_keys_expired": 0,
        "rdb_last_load_keys_loaded": persistence.data_loading.keys,
        "aof_enabled": int(persistence.appendonly),
        "aof_rewrite_in_progress": int(kind == "rewrite"),
        "aof_rewrite_scheduled": int(snapshots.scheduled == "rewrite"),
        "aof_last_rewrite_time_sec": rewrite.last_s,
        "aof_current_rewrite_time_sec": running_s if kind == "rewrite" else -1,
        "aof_last_bgrewrite_status": _status(rewrite.ok),
        "aof_rewrites": rewrite.count,
        "aof_last_write_status": _status(not persistence.refusal.is_by_journal),
        "aof_last_cow_size": 0,
        "module_fork_in_progress": 0,
        "module_fork_last_cow_size": 0,
    }


def _loading_facts(loading: DataLoading, now_ms: int) -> dict[str, object]:
    done, total = loading.loader.done_bytes, loading.loader.total_bytes
    elapsed_s = (now_ms - loading.start_steady_ms) / 1000
    eta_s = int(elapsed_s * (total - done) / done) if done else 1
    return {
        "loading_start_time": loading.start_wall_ms // 1000,
        "loading_total_bytes": total,
        "loading_loaded_bytes": done,
        "loading_loaded_perc": f"{100 * done / total if total else 100:.2f}",
        "loading_eta_seconds": eta_s,
    }


def _status(ok: bool) -> str:
    return "ok" if ok else "err"
