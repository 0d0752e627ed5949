"""INFO persistence, with Redis' names and order."""

from __future__ import annotations

from millstream.server.durability.data_loading import DataLoading
from millstream.server.durability.persistence import Persistence
from millstream.server.monitor.info_lines import Lines


def persistence_section(
    persistence: Persistence, dirty: int, queue_stalls: int, last_backup_s: int, now_ms: int
) -> str:
    """INFO persistence. `dirty` counts all changes so far, `queue_stalls` how often requests have
    waited for the journal; `last_backup_s` is the Unix time of the last backup, and `now_ms`
    the present time of the steady clock."""
    text = _loading(persistence.data_loading, now_ms)
    text += _snapshot_lines(persistence, dirty, now_ms)
    text += f"last_backup_time:{last_backup_s}\r\n"
    if persistence.appendonly:
        text += _JOURNAL.text(
            persistence.current_bytes(),
            persistence.base_bytes,
            persistence.commits.queued_bytes,
            queue_stalls,
        )
    return text


_JOURNAL = Lines(
    "aof_current_size:%d",
    "aof_base_size:%d",
    "aof_pending_rewrite:0",
    "aof_buffer_length:%d",
    "aof_pending_bio_fsync:0",
    "aof_delayed_fsync:0",
    "journal_queue_stalls:%d",
)
_SNAPSHOTS = Lines(
    "rdb_bgsave_in_progress:%d",
    "rdb_last_save_time:%d",
    "rdb_last_bgsave_status:%s",
    "rdb_last_bgsave_time_sec:%d",
    "rdb_current_bgsave_time_sec:%d",
    "rdb_saves:%d",
    "rdb_last_cow_size:0",
    "rdb_last_load_keys_expired:0",
    "rdb_last_load_keys_loaded:%d",
    "aof_enabled:%d",
    "aof_rewrite_in_progress:%d",
    "aof_rewrite_scheduled:%d",
    "aof_last_rewrite_time_sec:%d",
    "aof_current_rewrite_time_sec:%d",
    "aof_last_bgrewrite_status:%s",
    "aof_rewrites:%d",
    "aof_last_write_status:%s",
    "aof_last_cow_size:0",
    "module_fork_in_progress:0",
    "module_fork_last_cow_size:0",
)


def _snapshot_lines(persistence: Persistence, dirty: int, now_ms: int) -> str:
    snapshots = persistence.snapshots
    save, rewrite = snapshots.tallies["save"], snapshots.tallies["rewrite"]
    job = snapshots.job
    kind = job.kind if job is not None else None
    running_s = (now_ms - job.started_ms) // 1000 if job is not None else -1
    lines = _SNAPSHOTS.text(
        kind == "save",
        snapshots.last_save_s,
        _status(save.ok),
        save.last_s,
        running_s if kind == "save" else -1,
        save.count,
        persistence.data_loading.keys,
        persistence.appendonly,
        kind == "rewrite",
        snapshots.scheduled == "rewrite",
        rewrite.last_s,
        running_s if kind == "rewrite" else -1,
        _status(rewrite.ok),
        rewrite.count,
        _status(not persistence.refusal.is_by_journal),
    )
    changes = dirty - snapshots.save_points.changes_at_save
    return f"rdb_changes_since_last_save:{changes}\r\n{lines}"


def _loading(loading: DataLoading, now_ms: int) -> str:
    text = (
        f"loading:{int(loading.is_running)}\r\n"
        "async_loading:0\r\n"
        "current_cow_peak:0\r\n"
        "current_cow_size:0\r\n"
        "current_cow_size_age:0\r\n"
        "current_fork_perc:0.00\r\n"
    )
    return text + _loading_lines(loading, now_ms) if loading.is_running else text


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
