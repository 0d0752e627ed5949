"""INFO persistence, with Redis' names and order."""

from __future__ import annotations

from millstream.server.durability.data_loading import DataLoading
from millstream.server.durability.persistence import Persistence


def persistence_section(
    persistence: Persistence, dirty: int, queue_stalls: int, last_backup_s: int, now_ms: int
) -> str:
    """INFO persistence. `dirty` counts all changes so far, `queue_stalls` how often requests have
    waited for the journal; `last_backup_s` is the Unix time of the last backup, and `now_ms`
    the present time of the steady clock."""
    is_loading = persistence.data_loading.is_running
    text = (
        f"loading:{int(is_loading)}\r\n"
        "async_loading:0\r\n"
        "current_cow_peak:0\r\n"
        "current_cow_size:0\r\n"
        "current_cow_size_age:0\r\n"
        "current_fork_perc:0.00\r\n"
    )
    if is_loading:
        text += _loading_lines(persistence.data_loading, now_ms)
    text += _snapshot_lines(persistence, dirty, now_ms)
    text += f"last_backup_time:{last_backup_s}\r\n"
    if persistence.appendonly:
        text += (
            f"aof_current_size:{persistence.current_bytes()}\r\n"
            f"aof_base_size:{persistence.base_bytes}\r\n"
            "aof_pending_rewrite:0\r\n"
            f"aof_buffer_length:{persistence.commits.queued_bytes}\r\n"
            "aof_pending_bio_fsync:0\r\n"
            "aof_delayed_fsync:0\r\n"
            f"journal_queue_stalls:{queue_stalls}\r\n"
        )
    return text


def _snapshot_lines(persistence: Persistence, dirty: int, now_ms: int) -> str:
    snapshots = persistence.snapshots
    save, rewrite = snapshots.tallies["save"], snapshots.tallies["rewrite"]
    job = snapshots.job
    kind = job.kind if job is not None else None
    running_s = (now_ms - job.started_ms) // 1000 if job is not None else -1
    return (
        f"rdb_changes_since_last_save:{dirty - snapshots.save_points.changes_at_save}\r\n"
        f"rdb_bgsave_in_progress:{int(kind == 'save')}\r\n"
        f"rdb_last_save_time:{snapshots.last_save_s}\r\n"
        f"rdb_last_bgsave_status:{_status(save.ok)}\r\n"
        f"rdb_last_bgsave_time_sec:{save.last_s}\r\n"
        f"rdb_current_bgsave_time_sec:{running_s if kind == 'save' else -1}\r\n"
        f"rdb_saves:{save.count}\r\n"
        "rdb_last_cow_size:0\r\n"
        "rdb_last_load_keys_expired:0\r\n"
        f"rdb_last_load_keys_loaded:{persistence.data_loading.keys}\r\n"
        f"aof_enabled:{int(persistence.appendonly)}\r\n"
        f"aof_rewrite_in_progress:{int(kind == 'rewrite')}\r\n"
        f"aof_rewrite_scheduled:{int(snapshots.scheduled == 'rewrite')}\r\n"
        f"aof_last_rewrite_time_sec:{rewrite.last_s}\r\n"
        f"aof_current_rewrite_time_sec:{running_s if kind == 'rewrite' else -1}\r\n"
        f"aof_last_bgrewrite_status:{_status(rewrite.ok)}\r\n"
        f"aof_rewrites:{rewrite.count}\r\n"
        f"aof_last_write_status:{_status(not persistence.refusal.is_by_journal)}\r\n"
        "aof_last_cow_size:0\r\n"
        "module_fork_in_progress:0\r\n"
        "module_fork_last_cow_size:0\r\n"
    )


def _loading_lines(loading: DataLoading, now_ms: int) -> str:
    done, total = loading.loader.done_bytes, loading.loader.total_bytes
    elapsed_s = (now_ms - loading.start_steady_ms) / 1000
    eta_s = int(elapsed_s * (total - done) / done) if done else 1
    return (
        f"loading_start_time:{loading.start_wall_ms // 1000}\r\n"
        f"loading_total_bytes:{total}\r\n"
        f"loading_loaded_bytes:{done}\r\n"
        f"loading_loaded_perc:{100 * done / total if total else 100:.2f}\r\n"
        f"loading_eta_seconds:{eta_s}\r\n"
    )


def _status(ok: bool) -> str:
    return "ok" if ok else "err"
