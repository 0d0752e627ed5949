"""What INFO and ROLE show of replication, with Redis' names.

Offsets count bytes, because alerts and exporters for Redis expect that: 20 bytes and the payload of
every frame so far, the same on all servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.server.replication.receiving import Replacement

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.following import Following
    from millstream.server.replication.role import Replication

Section = dict[str, object]
NO_HISTORY = "0" * 40


def role_reply(role: Replication) -> list[Any]:
    offset = role.node.persistence.frame_bytes
    following = role.following
    if following is not None:
        state = following.state.encode()
        return [b"slave", following.host.encode(), following.port, state, offset]
    return [
        b"master",
        offset,
        [
            [feed.host.encode(), b"%d" % feed.port, b"%d" % feed.frame_bytes]
            for feed in role.feeds
            if feed.is_online
        ],
    ]


def replication_facts(role: Replication) -> Section:
    """INFO replication."""
    following, frames = role.following, role.node.persistence
    fields: Section = {"role": "master" if following is None else "slave"}
    if following is not None:
        fields |= _primary_facts(role, following)
    fields["connected_slaves"] = len(role.feeds)
    if role.node.config.min_replicas_to_write or role.node.config.replicas_durable:
        fields["min_slaves_good_slaves"] = role.feeds.good_count()
    for number, feed in enumerate(role.feeds):
        fields[f"slave{number}"] = _feed_fact(role, feed)
    return {
        **fields,
        "master_failover_state": role.failover.state,
        **_history_facts(role),
        **_backlog_facts(role),
        "repl_frame": frames.last_seq,
        "repl_durable_frame": frames.durable_seq,
        "repl_safe_frame": role.restrictions.safe_seq,
        **_hold_facts(role),
        "repl_connection_errors": role.connection_errors,
        "repl_link_errors": role.link_errors,
        "repl_refusals": role.refusals,
        "repl_failed_syncs": role.failed_syncs,
        "repl_kept_data": role.kept_data,
        "repl_last_error": " ".join(role.last_error.replace(",", ";").split()),
    }


def _hold_facts(role: Replication) -> Section:
    """Replies that wait for the disk here, or for replicas."""
    outbox = role.node.executor.outbox
    since_ms = outbox.held_since_ms
    return {
        "hold_bytes": outbox.held_bytes,
        "hold_age_ms": 0 if since_ms is None else max(role.node.steady_ms() - since_ms, 0),
    }


def _feed_fact(role: Replication, feed: Feed) -> str:
    lag_s = (role.node.steady_ms() - feed.acked_ms) // 1000
    return (
        f"ip={feed.host},port={feed.port},state={feed.state},offset={feed.frame_bytes}"
        f",lag={lag_s},frame={feed.acked_seq},synced={feed.synced_seq}"
    )


def _primary_facts(role: Replication, following: Following) -> Section:
    config, frame_bytes = role.node.config, role.node.persistence.frame_bytes
    now_ms = role.node.steady_ms()
    replacement = following.replacement
    fields: Section = {
        "master_host": following.host,
        "master_port": following.port,
        "master_link_status": "up" if following.is_connected else "down",
        "master_last_io_seconds_ago": (
            (now_ms - following.heard_ms) // 1000 if following.is_connected else -1
        ),
        "master_sync_in_progress": int(following.state == "sync"),
        "slave_read_repl_offset": frame_bytes,
        "slave_repl_offset": frame_bytes,
    }
    if isinstance(replacement, Replacement):
        total, read = replacement.full.size_bytes, replacement.received_bytes
        fields |= {
            "master_sync_total_bytes": total,
            "master_sync_read_bytes": read,
            "master_sync_left_bytes": total - read,
            "master_sync_perc": f"{100 * read / total if total else 100:.2f}",
            "master_sync_last_io_seconds_ago": (now_ms - following.heard_ms) // 1000,
        }
    if not following.is_connected:
        fields["master_link_down_since_seconds"] = (now_ms - following.down_since_ms) // 1000
    return fields | {
        "slave_priority": role.shown_priority(),
        "slave_read_only": 1,
        "replica_announced": int(config.replica_announced),
        "master_clock_offset_ms": following.clock_offset_ms,
    }


def _history_facts(role: Replication) -> Section:
    """The last two lines of history. On a primary, the newest one may have no frame yet."""
    lines = list(role.node.keyspace.histories)
    if role.following is None and (not lines or lines[-1][0] != role.history):
        lines.append((role.history, role.node.persistence.last_seq + 1))
    newest = lines[-1][0] if lines else NO_HISTORY
    before = lines[-2] if len(lines) > 1 else None
    return {
        "master_replid": newest,
        "master_replid2": NO_HISTORY if before is None else before[0],
        "master_repl_offset": role.node.persistence.frame_bytes,
        "second_repl_offset": role.bytes_before_history if newest == role.history else -1,
    }


def _backlog_facts(role: Replication) -> Section:
    ring = role.feeds.ring
    size_bytes = ring.size_bytes if ring is not None else 0
    first = role.node.persistence.frame_bytes - size_bytes + 1
    return {
        "repl_backlog_active": int(ring is not None),
        "repl_backlog_size": role.node.config.repl_backlog_size,
        "repl_backlog_first_byte_offset": first if ring is not None else 0,
        "repl_backlog_histlen": size_bytes,
    }
