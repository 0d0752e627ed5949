"""INFO persistence, with Redis' names and order (without rdb_changes_since_last_save)."""

from __future__ import annotations

from typing import Protocol

from millstream.server.durability.data_loading import DataLoading
from millstream.server.durability.refusal import Refusal
from millstream.server.durability.snapshots import Snapshots


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


def persistence_facts(persistence: State, now_ms: int) -> dict[str, object]:
    """The fields of INFO persistence. `now_ms` is a time of the steady clock."""
    snapshots = persistence.snapshots
    save, rewrite = snapshots.tallies["save"], snapshots.tallies["rewrite"]
    job = snapshots.job
    kind = job.kind if job is not None else None
    running_s = (now_ms - job.started_ms) // 1000 if job is not None else -1
    fields: dict[str, object] = {
        "loading": int(persistence.data_loading.is_running),
        "async_loading": 0,
        "current_cow_peak": 0,
        "current_cow_size": 0,
        "current_cow_size_age": 0,
        "current_fork_perc": "0.00",
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
    if persistence.appendonly:
        fields["aof_current_size"] = persistence.current_bytes()
        fields["aof_base_size"] = persistence.base_bytes
        fields["aof_pending_rewrite"] = 0
        fields["aof_buffer_length"] = persistence.queued_bytes
        fields["aof_pending_bio_fsync"] = 0
        fields["aof_delayed_fsync"] = 0
    if persistence.data_loading.is_running:
        fields.update(_loading_facts(persistence.data_loading, now_ms))
    return fields


def _loading_facts(loading: DataLoading, now_ms: int) -> dict[str, object]:
    done, total = loading.loader.done_bytes, loading.loader.total_bytes
    elapsed_s = (now_ms - loading.started_ms) / 1000
    eta_s = int(elapsed_s * (total - done) / done) if done else 1
    return {
        "loading_start_time": loading.start_ms // 1000,
        "loading_total_bytes": total,
        "loading_loaded_bytes": done,
        "loading_loaded_perc": f"{100 * done / total if total else 100:.2f}",
        "loading_eta_seconds": eta_s,
    }


def _status(ok: bool) -> str:
    return "ok" if ok else "err"
