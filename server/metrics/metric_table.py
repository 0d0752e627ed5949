"""The table of all metrics: name, type, meaning, and for most the field of INFO.

The names that begin with `redis_` are those of redis_exporter 1.45, so that its dashboards work.
Where a newer version of it has more for streams, its names are used, too. docs/metrics.md is made
from this table.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.server.metrics.text import Family

GAUGE, COUNTER, HISTOGRAM, SUMMARY = "gauge", "counter", "histogram", "summary"


class InfoRow(NamedTuple):
    """A field of INFO as a metric; the value is divided by `divisor`."""

    section: str
    field: str
    name: str
    kind: str = GAUGE
    divisor: int = 1


INFO_ROWS = (
    InfoRow("server", "process_id", "redis_process_id"),
    InfoRow("server", "uptime_in_seconds", "redis_uptime_in_seconds"),
    InfoRow("server", "io_threads_active", "redis_io_threads_active"),
    InfoRow("server", "config_last_reload_status", "millstream_config_last_reload_successful"),
    InfoRow("server", "config_last_reload_time",
            "millstream_config_last_reload_timestamp_seconds"),
    InfoRow("server", "lame_duck", "millstream_lame_duck"),
    InfoRow("server", "clock_jumps", "millstream_clock_jumps_total", COUNTER),
    InfoRow("server", "clock_last_jump_ms", "millstream_clock_last_jump_seconds", GAUGE, 1000),
    InfoRow("clients", "connected_clients", "redis_connected_clients"),
    InfoRow("clients", "cluster_connections", "redis_cluster_connections"),
    InfoRow("clients", "blocked_clients", "redis_blocked_clients"),
    InfoRow("clients", "tracking_clients", "redis_tracking_clients"),
    InfoRow("clients", "clients_in_timeout_table", "redis_clients_in_timeout_table"),
    InfoRow("clients", "pubsub_clients", "redis_pubsub_clients"),
    InfoRow("clients", "watching_clients", "redis_watching_clients"),
    InfoRow("clients", "total_watched_keys", "redis_total_watched_keys"),
    InfoRow("clients", "total_blocking_keys", "redis_total_blocking_keys"),
    InfoRow("clients", "total_blocking_keys_on_nokey", "redis_total_blocking_keys_on_nokey"),
    InfoRow("clients", "paused_timeout_milliseconds", "millstream_pause_left_seconds", GAUGE, 1000),
    InfoRow("clients", "client_recent_max_input_buffer",
            "redis_client_recent_max_input_buffer_bytes"),
    InfoRow("clients", "client_recent_max_output_buffer",
            "redis_client_recent_max_output_buffer_bytes"),
    InfoRow("memory", "used_memory", "redis_memory_used_bytes"),
    InfoRow("memory", "used_memory_rss", "redis_memory_used_rss_bytes"),
    InfoRow("memory", "used_memory_peak", "redis_memory_used_peak_bytes"),
    InfoRow("memory", "used_memory_overhead", "redis_memory_used_overhead_bytes"),
    InfoRow("memory", "used_memory_startup", "redis_memory_used_startup_bytes"),
    InfoRow("memory", "used_memory_dataset", "redis_memory_used_dataset_bytes"),
    InfoRow("memory", "used_memory_lua", "redis_memory_used_lua_bytes"),
    InfoRow("memory", "used_memory_scripts", "redis_memory_used_scripts_bytes"),
    InfoRow("memory", "number_of_cached_scripts", "redis_number_of_cached_scripts"),
    InfoRow("memory", "maxmemory", "redis_memory_max_bytes"),
    InfoRow("memory", "allocator_allocated", "redis_allocator_allocated_bytes"),
    InfoRow("memory", "allocator_active", "redis_allocator_active_bytes"),
    InfoRow("memory", "allocator_resident", "redis_allocator_resident_bytes"),
    InfoRow("memory", "allocator_frag_ratio", "redis_allocator_frag_ratio"),
    InfoRow("memory", "allocator_frag_bytes", "redis_allocator_frag_bytes"),
    InfoRow("memory", "allocator_rss_ratio", "redis_allocator_rss_ratio"),
    InfoRow("memory", "allocator_rss_bytes", "redis_allocator_rss_bytes"),
    InfoRow("memory", "mem_fragmentation_ratio", "redis_mem_fragmentation_ratio"),
    InfoRow("memory", "mem_fragmentation_bytes", "redis_mem_fragmentation_bytes"),
    InfoRow("memory", "mem_not_counted_for_evict", "redis_mem_not_counted_for_eviction_bytes"),
    InfoRow("memory", "mem_clients_slaves", "redis_mem_clients_slaves"),
    InfoRow("memory", "mem_clients_normal", "redis_mem_clients_normal"),
    InfoRow("memory", "lazyfree_pending_objects", "redis_lazyfree_pending_objects"),
    InfoRow("memory", "total_system_memory", "redis_total_system_memory_bytes"),
    InfoRow("memory", "rss_overhead_ratio", "redis_rss_overhead_ratio"),
    InfoRow("memory", "rss_overhead_bytes", "redis_rss_overhead_bytes"),
    InfoRow("memory", "mem_replication_backlog", "redis_mem_replication_backlog_bytes"),
    InfoRow("memory", "mem_aof_buffer", "redis_mem_aof_buffer_bytes"),
    InfoRow("memory", "active_defrag_running", "redis_active_defrag_running"),
    InfoRow("persistence", "loading", "redis_loading_dump_file"),
    InfoRow("persistence", "rdb_changes_since_last_save", "redis_rdb_changes_since_last_save"),
    InfoRow("persistence", "rdb_bgsave_in_progress", "redis_rdb_bgsave_in_progress"),
    InfoRow("persistence", "rdb_last_save_time", "redis_rdb_last_save_timestamp_seconds"),
    InfoRow("persistence", "rdb_last_bgsave_status", "redis_rdb_last_bgsave_status"),
    InfoRow("persistence", "rdb_last_bgsave_time_sec", "redis_rdb_last_bgsave_duration_sec"),
    InfoRow("persistence", "rdb_current_bgsave_time_sec", "redis_rdb_current_bgsave_duration_sec"),
    InfoRow("persistence", "rdb_last_cow_size", "redis_rdb_last_cow_size_bytes"),
    InfoRow("persistence", "aof_enabled", "redis_aof_enabled"),
    InfoRow("persistence", "aof_rewrite_in_progress", "redis_aof_rewrite_in_progress"),
    InfoRow("persistence", "aof_rewrite_scheduled", "redis_aof_rewrite_scheduled"),
    InfoRow("persistence", "aof_last_rewrite_time_sec", "redis_aof_last_rewrite_duration_sec"),
    InfoRow("persistence", "aof_current_rewrite_time_sec",
            "redis_aof_current_rewrite_duration_sec"),
    InfoRow("persistence", "aof_last_cow_size", "redis_aof_last_cow_size_bytes"),
    InfoRow("persistence", "aof_current_size", "redis_aof_current_size_bytes"),
    InfoRow("persistence", "aof_base_size", "redis_aof_base_size_bytes"),
    InfoRow("persistence", "aof_pending_rewrite", "redis_aof_pending_rewrite"),
    InfoRow("persistence", "aof_buffer_length", "redis_aof_buffer_length"),
    InfoRow("persistence", "aof_pending_bio_fsync", "redis_aof_pending_bio_fsync"),
    InfoRow("persistence", "aof_delayed_fsync", "redis_aof_delayed_fsync"),
    InfoRow("persistence", "aof_last_bgrewrite_status", "redis_aof_last_bgrewrite_status"),
    InfoRow("persistence", "aof_last_write_status", "redis_aof_last_write_status"),
    InfoRow("persistence", "rdb_saves", "redis_rdb_saves_total", COUNTER),
    InfoRow("persistence", "aof_rewrites", "redis_aof_rewrites_total", COUNTER),
    InfoRow("persistence", "journal_queue_stalls",
            "millstream_journal_queue_stalls_total", COUNTER),
    InfoRow("persistence", "last_backup_time", "millstream_last_backup_timestamp_seconds"),
    InfoRow("persistence", "rdb_last_load_keys_loaded", "redis_rdb_last_load_keys_loaded"),
    InfoRow("persistence", "loading_total_bytes", "redis_loading_total_bytes"),
    InfoRow("persistence", "loading_loaded_bytes", "redis_loading_loaded_bytes"),
    InfoRow("persistence", "loading_eta_seconds", "redis_loading_eta_seconds"),
    InfoRow("persistence", "module_fork_in_progress", "redis_module_fork_in_progress"),
    InfoRow("persistence", "module_fork_last_cow_size", "redis_module_fork_last_cow_size"),
    InfoRow("stats", "total_connections_received", "redis_connections_received_total", COUNTER),
    InfoRow("stats", "total_commands_processed", "redis_commands_processed_total", COUNTER),
    InfoRow("stats", "rejected_connections", "redis_rejected_connections_total", COUNTER),
    InfoRow("stats", "total_net_input_bytes", "redis_net_input_bytes_total", COUNTER),
    InfoRow("stats", "total_net_output_bytes", "redis_net_output_bytes_total", COUNTER),
    InfoRow("stats", "total_net_repl_input_bytes", "redis_net_repl_input_bytes_total", COUNTER),
    InfoRow("stats", "total_net_repl_output_bytes", "redis_net_repl_output_bytes_total", COUNTER),
    InfoRow("stats", "expired_keys", "redis_expired_keys_total", COUNTER),
    InfoRow("stats", "expired_keys_active", "millstream_expired_keys_active_total", COUNTER),
    InfoRow("stats", "reservations_pending", "millstream_reservations"),
    InfoRow("stats", "reservations_expired", "millstream_reservations_expired_total", COUNTER),
    InfoRow("stats", "expired_stale_perc", "redis_expired_stale_percentage"),
    InfoRow("stats", "expired_time_cap_reached_count", "redis_expired_time_cap_reached_total"),
    InfoRow("stats", "evicted_keys", "redis_evicted_keys_total", COUNTER),
    InfoRow("stats", "evicted_entries", "millstream_evicted_entries_total", COUNTER),
    InfoRow("stats", "evicted_blocks", "millstream_evicted_blocks_total", COUNTER),
    InfoRow("stats", "evicted_clients", "redis_evicted_clients_total", COUNTER),
    InfoRow("stats", "missed_entries", "millstream_missed_entries_total", COUNTER),
    InfoRow("stats", "scheduled_entries", "millstream_scheduled_entries"),
    InfoRow("stats", "scheduled_fired", "millstream_scheduled_fired_total", COUNTER),
    InfoRow("stats", "dead_letters", "millstream_dead_letters_total", COUNTER),
    InfoRow("stats", "dead_letters_pending", "millstream_dead_letters_pending"),
    InfoRow("stats", "entries_lost", "millstream_entries_lost_total", COUNTER),
    InfoRow("stats", "keyspace_hits", "redis_keyspace_hits_total", COUNTER),
    InfoRow("stats", "keyspace_misses", "redis_keyspace_misses_total", COUNTER),
    InfoRow("stats", "pubsub_channels", "redis_pubsub_channels"),
    InfoRow("stats", "pubsub_patterns", "redis_pubsub_patterns"),
    InfoRow("stats", "pubsubshard_channels", "redis_pubsubshard_channels"),
    InfoRow("stats", "latest_fork_usec", "redis_latest_fork_seconds", GAUGE, 1_000_000),
    InfoRow("stats", "migrate_cached_sockets", "redis_migrate_cached_sockets_total"),
    InfoRow("stats", "slave_expires_tracked_keys", "redis_slave_expires_tracked_keys"),
    InfoRow("stats", "active_defrag_hits", "redis_defrag_hits"),
    InfoRow("stats", "active_defrag_misses", "redis_defrag_misses"),
    InfoRow("stats", "active_defrag_key_hits", "redis_defrag_key_hits"),
    InfoRow("stats", "active_defrag_key_misses", "redis_defrag_key_misses"),
    InfoRow("stats", "tracking_total_keys", "redis_tracking_total_keys"),
    InfoRow("stats", "tracking_total_items", "redis_tracking_total_items"),
    InfoRow("stats", "tracking_total_prefixes", "redis_tracking_total_prefixes"),
    InfoRow("stats", "unexpected_error_replies", "redis_unexpected_error_replies", COUNTER),
    InfoRow("stats", "total_error_replies", "redis_total_error_replies", COUNTER),
    InfoRow("stats", "dump_payload_sanitizations", "redis_dump_payload_sanitizations", COUNTER),
    InfoRow("stats", "total_reads_processed", "redis_total_reads_processed", COUNTER),
    InfoRow("stats", "total_writes_processed", "redis_total_writes_processed", COUNTER),
    InfoRow("stats", "io_threaded_reads_processed", "redis_io_threaded_reads_processed", COUNTER),
    InfoRow("stats", "io_threaded_writes_processed", "redis_io_threaded_writes_processed",
            COUNTER),
    InfoRow("stats", "client_output_buffer_limit_disconnections",
            "redis_client_output_buffer_limit_disconnections_total", COUNTER),
    InfoRow("stats", "user_limit_disconnections",
            "millstream_user_limit_disconnections_total", COUNTER),
    InfoRow("stats", "user_limit_refusals", "millstream_user_limit_refusals_total", COUNTER),
    InfoRow("stats", "acl_access_denied_auth", "redis_acl_access_denied_auth_total", COUNTER),
    InfoRow("stats", "acl_access_denied_cmd", "redis_acl_access_denied_cmd_total", COUNTER),
    InfoRow("stats", "acl_access_denied_key", "redis_acl_access_denied_key_total", COUNTER),
    InfoRow("stats", "acl_access_denied_channel", "redis_acl_access_denied_channel_total", COUNTER),
    InfoRow("stats", "tls_handshake_failures", "millstream_tls_handshake_failures_total", COUNTER),
    InfoRow("stats", "sync_full", "redis_replica_resyncs_full"),
    InfoRow("stats", "sync_partial_ok", "redis_replica_partial_resync_accepted"),
    InfoRow("stats", "sync_partial_err", "redis_replica_partial_resync_denied"),
    InfoRow("stats", "sync_rewinds", "millstream_sync_rewinds_total", COUNTER),
    InfoRow("replication", "connected_slaves", "redis_connected_slaves"),
    InfoRow("replication", "slave_priority", "redis_slave_priority"),
    InfoRow("replication", "master_repl_offset", "redis_master_repl_offset"),
    InfoRow("replication", "second_repl_offset", "redis_second_repl_offset"),
    InfoRow("replication", "repl_backlog_active", "redis_repl_backlog_is_active"),
    InfoRow("replication", "repl_backlog_size", "redis_replication_backlog_bytes"),
    InfoRow("replication", "repl_backlog_first_byte_offset",
            "redis_repl_backlog_first_byte_offset"),
    InfoRow("replication", "repl_backlog_histlen", "redis_repl_backlog_history_bytes"),
    InfoRow("replication", "min_slaves_good_slaves", "redis_min_slaves_good_slaves"),
    InfoRow("replication", "repl_connection_errors",
            "millstream_repl_connection_errors_total", COUNTER),
    InfoRow("replication", "repl_link_errors", "millstream_repl_link_errors_total", COUNTER),
    InfoRow("replication", "repl_refusals", "millstream_repl_refusals_total", COUNTER),
    InfoRow("replication", "repl_failed_syncs", "millstream_repl_failed_syncs_total", COUNTER),
    InfoRow("replication", "repl_kept_data", "millstream_repl_kept_data_total", COUNTER),
    InfoRow("replication", "repl_durable_frame", "millstream_durable_frame"),
    InfoRow("replication", "repl_safe_frame", "millstream_safe_frame"),
    InfoRow("replication", "hold_bytes", "millstream_held_reply_bytes"),
    InfoRow("replication", "promotion_in_progress", "millstream_promotion_in_progress"),
    InfoRow("replication", "master_link_down_since_seconds",
            "redis_master_link_down_since_seconds"),
    InfoRow("replication", "master_sync_total_bytes", "redis_master_sync_total_bytes"),
    InfoRow("replication", "master_sync_read_bytes", "redis_master_sync_read_bytes"),
    InfoRow("replication", "master_sync_left_bytes", "redis_master_sync_left_bytes"),
    InfoRow("replication", "master_sync_last_io_seconds_ago",
            "redis_master_sync_last_io_seconds_ago"),
    InfoRow("replication", "replica_announced", "redis_replica_announced"),
    InfoRow("replication", "source_offset", "millstream_source_offset"),
    InfoRow("replication", "source_spool_bytes", "millstream_source_spool_bytes"),
    InfoRow("replication", "source_commands", "millstream_source_commands_total", COUNTER),
    InfoRow("replication", "source_ignored", "millstream_source_ignored_total", COUNTER),
    InfoRow("replication", "source_dropped_strings",
            "millstream_source_dropped_strings_total", COUNTER),
    InfoRow("replication", "source_full_syncs", "millstream_source_full_syncs_total", COUNTER),
    InfoRow("replication", "redis_replicas", "millstream_redis_replicas"),
    InfoRow("replication", "redis_offset", "millstream_redis_offset"),
    InfoRow("replication", "redis_backlog_histlen", "millstream_redis_backlog_bytes"),
    InfoRow("replication", "master_clock_offset_ms",
            "millstream_master_clock_offset_seconds", GAUGE, 1000),
    InfoRow("cpu", "used_cpu_sys", "redis_cpu_sys_seconds_total", COUNTER),
    InfoRow("cpu", "used_cpu_user", "redis_cpu_user_seconds_total", COUNTER),
    InfoRow("cpu", "used_cpu_sys_children", "redis_cpu_sys_children_seconds_total", COUNTER),
    InfoRow("cpu", "used_cpu_user_children", "redis_cpu_user_children_seconds_total", COUNTER),
    InfoRow("cpu", "used_cpu_sys_main_thread", "redis_cpu_sys_main_thread_seconds_total", COUNTER),
    InfoRow("cpu", "used_cpu_user_main_thread", "redis_cpu_user_main_thread_seconds_total",
            COUNTER),
    InfoRow("cluster", "cluster_enabled", "redis_cluster_enabled"),
)  # fmt: skip

# The fields of INFO that are no rows above, by the reason.
INFO_LEFT_OUT = {
    "labels of redis_instance_info, millstream_build_info and redis_slave_info":
        "redis_version redis_build_id redis_mode os run_id tcp_port role maxmemory_policy "
        "millstream_version master_host master_port slave_read_only",
    "texts that do not change while the server runs":
        "redis_git_sha1 redis_git_dirty server arch_bits monotonic_clock python_version "
        "multiplexing_api gcc_version process_supervised executable config_file mem_allocator",
    "texts, whose effects have metrics of their own":
        "paused_reason paused_actions repl_last_error superseded_by master_replid master_replid2 "
        "master_kind master_version source_replid source_ignored_names redis_replid",
    "metrics with other names": "maxclients hold_age_ms repl_frame master_failover_state "
        "master_link_status master_last_io_seconds_ago master_sync_in_progress slave_repl_offset "
        "slave_read_repl_offset mem_total_replication_buffers loading_start_time",
    "computed from other fields":
        "uptime_in_days used_memory_human used_memory_rss_human used_memory_peak_human "
        "used_memory_peak_perc used_memory_dataset_perc total_system_memory_human "
        "used_memory_lua_human used_memory_vm_total_human used_memory_scripts_human "
        "maxmemory_human loading_loaded_perc master_sync_perc instantaneous_ops_per_sec "
        "instantaneous_input_kbps instantaneous_output_kbps instantaneous_input_repl_kbps "
        "instantaneous_output_repl_kbps",
    "clocks and settings": "server_time_usec lru_clock hz configured_hz",
    "always 0, because the feature does not exist here":
        "expired_subkeys expired_subkeys_active evicted_scripts total_eviction_exceeded_time "
        "current_eviction_exceeded_time total_forks total_active_defrag_time "
        "current_active_defrag_time io_threaded_total_prefetch_batches "
        "io_threaded_total_prefetch_entries reply_buffer_shrinks reply_buffer_expands "
        "allocator_muzzy used_memory_vm_eval "
        "used_memory_scripts_eval number_of_functions number_of_libraries "
        "used_memory_vm_functions used_memory_vm_total used_memory_functions "
        "mem_replica_full_sync_buffer mem_cluster_links mem_overhead_db_hashtable_rehashing "
        "lazyfreed_objects async_loading current_cow_peak current_cow_size current_cow_size_age "
        "current_fork_perc rdb_last_load_keys_expired",
}  # fmt: skip

SERVER_FAMILIES = (
    Family("redis_up", GAUGE, "1"),
    Family("redis_instance_info", GAUGE, "Version, role and process as labels"),
    Family("redis_start_time_seconds", GAUGE, "Unix time of the start"),
    Family("redis_config_maxmemory", GAUGE, "The directive maxmemory"),
    Family("redis_config_maxclients", GAUGE, "The directive maxclients"),
    Family("redis_config_io_threads", GAUGE, "The directive io-threads"),
    Family("redis_commands_total", COUNTER, "Calls of a command"),
    Family("redis_commands_duration_seconds_total", COUNTER, "Time in calls of a command"),
    Family("redis_commands_failed_calls_total", COUNTER, "Calls that ended with an error"),
    Family("redis_commands_rejected_calls_total", COUNTER, "Requests that were refused"),
    Family("redis_errors_total", COUNTER, "Error replies by their first word"),
    Family("redis_latency_percentiles_usec", SUMMARY, "Latency of a command in microseconds"),
    Family("redis_latency_spike_last", GAUGE, "Unix time of the last latency spike"),
    Family("redis_latency_spike_duration_seconds", GAUGE, "Length of the last latency spike"),
    Family("redis_slowlog_length", GAUGE, "Entries in the slow log"),
    Family("redis_slowlog_last_id", GAUGE, "Number of the last entry of the slow log"),
    Family("redis_last_slow_execution_duration_seconds", GAUGE, "Time of the last slow command"),
    Family("redis_db_keys", GAUGE, "Keys in a database"),
    Family("redis_db_keys_expiring", GAUGE, "Keys with an expiry in a database"),
    Family("redis_db_avg_ttl_seconds", GAUGE, "Average time to live of keys with an expiry"),
    Family("redis_connected_slave_offset_bytes", GAUGE, "Offset that a replica has confirmed"),
    Family("redis_connected_slave_lag_seconds", GAUGE, "Time since a replica's last message"),
    Family("redis_slave_info", GAUGE, "This server is a replica"),
    Family("redis_slave_repl_offset", GAUGE, "Offset of this replica"),
    Family("redis_master_link_up", GAUGE, "Whether the link to the primary is up"),
    Family("redis_master_last_io_seconds_ago", GAUGE, "Time since the primary's last message"),
    Family("redis_master_sync_in_progress", GAUGE, "Whether a full sync is running"),
)

OWN_FAMILIES = (
    Family("millstream_build_info", GAUGE, "The version as a label"),
    Family("millstream_writes_refused", GAUGE,
           "1 while writes are refused: the disk, the memory, or too few replicas"),
    Family("millstream_loop_delay_seconds", GAUGE,
           "How late the last once-a-second timer of the event loop was"),
    Family("millstream_tick_seconds", HISTOGRAM,
           "Time from a tick's first request to the end of the tick"),
    Family("millstream_reply_hold_seconds", HISTOGRAM,
           "Time for which a tick's replies waited until its changes were durable"),
    Family("millstream_journal_sync_seconds", HISTOGRAM, "Time of a sync of the journal"),
    Family("millstream_journal_size_bytes", GAUGE, "Size of the journal, including the base"),
    Family("millstream_journal_frames_total", COUNTER, "Number of the last frame"),
    Family("millstream_snapshot_running", GAUGE, "Whether a snapshot or rewrite is running"),
    Family("millstream_snapshot_last_seconds", GAUGE,
           "Time that the last snapshot or rewrite took; absent until one has ended"),
    Family("millstream_held_replies", GAUGE,
           "Pieces of output that wait until the changes before them are durable"),
    Family("millstream_held_replies_age_seconds", GAUGE,
           "Time for which the oldest of them has waited; 0 if there is none"),
    Family("millstream_redeliveries_total", COUNTER,
           "Entries that groups delivered again: after their retry time, or claimed"),
    Family("millstream_failover_in_progress", GAUGE, "Whether FAILOVER is running"),
    Family("millstream_config_replicas_required", GAUGE,
           "The larger one of replicas-durable and min-replicas-to-write"),
    Family("millstream_discarded_data_folders", GAUGE,
           "Folders discarded-DATE-TIME with data that a rewind or a full sync removed"),
    Family("millstream_discarded_data_bytes", GAUGE, "Size of the files in them"),
    Family("millstream_discarded_data_timestamp_seconds", GAUGE,
           "Unix time at which the oldest of them was made; absent without one"),
    Family("millstream_tls_certificate_expiry_timestamp_seconds", GAUGE,
           "Unix time at which the certificate of tls-port expires; absent without tls-port"),
    Family("millstream_tls_file_expiry_timestamp_seconds", GAUGE,
           "Unix time at which the first certificate of tls-ca-cert-file or tls-ca-cert-dir, or "
           "the one for the link to a primary, expires (`directive`); absent without TLS"),
    Family("millstream_cluster_epoch", GAUGE,
           "The epoch of the map of slots; absent outside a cluster, as are the following"),
    Family("millstream_cluster_term", GAUGE, "The term of this node's shard"),
    Family("millstream_cluster_nodes", GAUGE, "Nodes by their `health`"),
    Family("millstream_cluster_redirects_total", COUNTER,
           "Requests refused for their slots, by the `kind` of error: moved, crossslot, unserved"),
    Family("millstream_cluster_relay_dropped_total", COUNTER,
           "Messages of PUBLISH that were not sent to another node"),
    Family("millstream_id_lead_seconds", GAUGE,
           "Largest time by which the last ID of a shown stream is ahead of the clock"),
    Family("millstream_metrics_streams_left_out", GAUGE,
           "Streams that match metrics-streams, beyond metrics-streams-max"),
    Family("millstream_metrics_groups_left_out", GAUGE,
           "Groups of the streams shown, beyond ten times metrics-streams-max"),
    Family("millstream_metrics_consumers_left_out", GAUGE,
           "Consumers of the groups shown, beyond a hundred times metrics-streams-max"),
)  # fmt: skip

STREAM_FAMILIES = (
    Family("redis_stream_length", GAUGE, "Entries in a stream"),
    Family("redis_stream_radix_tree_keys", GAUGE, "radix-tree-keys of XINFO STREAM"),
    Family("redis_stream_radix_tree_nodes", GAUGE, "radix-tree-nodes of XINFO STREAM"),
    Family("redis_stream_last_generated_id", GAUGE, "Milliseconds of the last ID"),
    Family("redis_stream_max_deleted_entry_id", GAUGE, "Milliseconds of the largest deleted ID"),
    Family("redis_stream_first_entry_id", GAUGE, "Milliseconds of the first entry's ID"),
    Family("redis_stream_last_entry_id", GAUGE, "Milliseconds of the last entry's ID"),
    Family("redis_stream_groups", GAUGE, "Groups of a stream"),
    Family("millstream_stream_bytes", GAUGE, "Bytes of a stream's blocks"),
    Family("millstream_stream_blocks", GAUGE, "Blocks of a stream"),
    Family("millstream_stream_entries_evicted_total", COUNTER, "Entries evicted by trimming"),
    Family("millstream_stream_entries_deleted_total", COUNTER, "Entries deleted by commands"),
    Family("millstream_stream_first_entry_timestamp_seconds", GAUGE,
           "Unix time in the first entry's ID; absent without entries"),
    Family("millstream_stream_scheduled", GAUGE,
           "Scheduled entries of a stream; absent if it never had one"),
    Family("millstream_stream_scheduled_overdue_seconds", GAUGE,
           "Time since the first scheduled entry was due; 0 if none is. Absent as the one before"),
)  # fmt: skip

GROUP_FAMILIES = (
    Family("redis_stream_group_consumers", GAUGE, "Consumers of a group"),
    Family("redis_stream_group_messages_pending", GAUGE, "Entries pending in a group"),
    Family("redis_stream_group_last_delivered_id", GAUGE, "Milliseconds of a group's offset"),
    Family("redis_stream_group_entries_read", GAUGE,
           "Entries that a group has read; absent if unknown"),
    Family("redis_stream_group_lag", GAUGE,
           "Entries that a group has not read yet; absent if unknown"),
    Family("millstream_group_oldest_unacked_age_seconds", GAUGE,
           "Age, by its ID, of the oldest entry that is pending or not delivered; 0 if none is. "
           "For an ID of the future, the time since a page first showed it as the oldest"),
    Family("millstream_group_entries_missed_total", COUNTER,
           "Entries that were trimmed before a group read them"),
    Family("millstream_group_lost_total", COUNTER,
           "Entries that were evicted while a group held them: not read, or not acknowledged"),
    Family("millstream_group_blocked_readers", GAUGE, "Clients that wait for entries of a group"),
    Family("millstream_group_in_flight", GAUGE,
           "Entries that readers of a group with rules hold"),
    Family("millstream_group_waiting", GAUGE,
           "Entries of a group with rules that were given back and come again after a delay"),
    Family("millstream_group_dead", GAUGE,
           "Entries of a group with rules that have ended and are not copied yet"),
    Family("millstream_group_dead_letters_total", COUNTER,
           "Entries of a group with rules that were copied to its dead letter stream, by reason"),
    Family("millstream_group_parked", GAUGE,
           "Entries of a group with an order that wait for their key"),
    Family("millstream_group_paused", GAUGE, "1 while a group with rules is paused, else 0"),
)  # fmt: skip

CONSUMER_FAMILIES = (
    Family("redis_stream_group_consumer_messages_pending", GAUGE, "Entries pending at a consumer"),
    Family("redis_stream_group_consumer_idle_seconds", GAUGE,
           "Time since a consumer's last request"),
)  # fmt: skip

PROCESS_FAMILIES = (
    Family("process_cpu_seconds_total", COUNTER, "CPU time, user and system"),
    Family("process_resident_memory_bytes", GAUGE, "Resident memory"),
    Family("process_virtual_memory_bytes", GAUGE, "Virtual memory"),
    Family("process_virtual_memory_max_bytes", GAUGE, "Limit of the virtual memory"),
    Family("process_start_time_seconds", GAUGE, "Unix time of the start"),
    Family("process_open_fds", GAUGE, "Open file descriptors"),
    Family("process_max_fds", GAUGE, "Limit of open file descriptors"),
)

GATEWAY_FAMILIES = (
    Family("millstream_gateway_requests_total", COUNTER, "Requests of all clients of the gateway"),
    Family("millstream_gateway_connections", GAUGE, "Clients that are connected to the gateway"),
    Family("millstream_gateway_connections_total", COUNTER, "Clients that it has accepted"),
    Family("millstream_gateway_node_connections", GAUGE,
           "Connections of these clients to nodes, without those of reads that wait"),
    Family("millstream_gateway_unserved_total", COUNTER,
           "Requests that were refused because their node did not run"),
    Family("millstream_gateway_nodes_failed", GAUGE, "Nodes that do not run"),
)  # fmt: skip

INFO_FAMILIES = tuple(
    Family(row.name, row.kind, f"{row.field} of INFO {row.section}") for row in INFO_ROWS
)
SECTIONS = {
    "Streams": STREAM_FAMILIES,
    "Groups": GROUP_FAMILIES,
    "Consumers, with `metrics-consumers yes`": CONSUMER_FAMILIES,
    "The server": OWN_FAMILIES,
    "The server, with the names of redis_exporter": SERVER_FAMILIES,
    "Fields of INFO, with the names of redis_exporter": INFO_FAMILIES,
    "The process": PROCESS_FAMILIES,
    "The gateway of a cluster": GATEWAY_FAMILIES,
}
FAMILIES = {family.name: family for families in SECTIONS.values() for family in families}
