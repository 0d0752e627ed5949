"""What INFO and ROLE show of replication, with Redis' names.

Offsets count bytes, because alerts and exporters for Redis expect that: 20 bytes and the payload of
every frame so far, the same on all servers.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any

from millstream.server.monitor.info_lines import Part, Section, lines, part_of
from millstream.server.replication.receiving import Replacement

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.following import Following
    from millstream.server.replication.role import Replication

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


_ROLE = lines("role")
_CONNECTED = lines("connected_slaves")
_GOOD = lines("min_slaves_good_slaves")
_FRAMES = lines(
    "master_failover_state",
    "master_replid",
    "master_replid2",
    "master_repl_offset",
    "second_repl_offset",
    "repl_backlog_active",
    "repl_backlog_size",
    "repl_backlog_first_byte_offset",
    "repl_backlog_histlen",
    "repl_frame",
    "repl_durable_frame",
    "repl_safe_frame",
    "hold_bytes",
    "hold_age_ms",
    "promotion_in_progress",
    "superseded_by",
)
_ERRORS = lines(
    "repl_connection_errors",
    "repl_link_errors",
    "repl_refusals",
    "repl_failed_syncs",
    "repl_kept_data",
    "repl_last_error",
)


def replication_parts(role: Replication) -> list[Part]:
    """INFO replication."""
    following = role.following
    parts: list[Part] = [(_ROLE, ("master" if following is None else "slave",))]
    if following is not None:
        parts.append(part_of(_primary_facts(role, following)))
    replicas = len(role.feeds)
    parts.append((_CONNECTED, (replicas,)))
    if role.node.config.min_replicas_to_write or role.node.config.replicas_durable:
        parts.append((_GOOD, (role.feeds.good_count(),)))
    if replicas:
        slaves = enumerate(role.feeds)
        parts.append(part_of({f"slave{n}": _feed_fact(role, feed) for n, feed in slaves}))
    parts.append((_FRAMES, _frame_facts(role)))
    errors = (
        role.connection_errors,
        role.link_errors,
        role.refusals,
        role.failed_syncs,
        role.kept_data,
        " ".join(role.last_error.replace(",", ";").split()),
    )
    parts.append((_ERRORS, errors))
    return parts


def _frame_facts(role: Replication) -> tuple[object, ...]:
    """The line of history, the backlog, the frames so far, the replies that wait for the disk here,
    or for replicas, whether this server or one of its replicas is being promoted, and the promoted
    server that lacks frames of this one."""
    node, ring = role.node, role.feeds.ring
    frames, outbox = node.persistence, node.executor.outbox
    newest, before = _last_histories(role)
    size_bytes = 0 if ring is None else ring.size_bytes
    return (
        role.failover.state,
        newest,
        before,
        frames.frame_bytes,
        _second_offset(role, newest, before),
        int(ring is not None),
        node.config.repl_backlog_size,
        0 if ring is None else frames.frame_bytes - size_bytes + 1,
        size_bytes,
        frames.last_seq,
        frames.durable_seq,
        role.restrictions.safe_seq,
        outbox.held_bytes,
        outbox.hold_age_ms(node.steady_ms()),
        int(role.promotion.is_under_way or role.handover.is_waiting),
        role.handover.superseded_by,
    )


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
        total, read = replacement.total_bytes, replacement.received_bytes
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


def _second_offset(role: Replication, newest: str, before: str) -> int:
    """The offset of the first byte that does not belong to the line before the newest one; -1 if
    there is no such line, or if an older version has written the base."""
    frames, lines = role.node.persistence, role.node.keyspace.histories
    if before == NO_HISTORY:
        return -1
    if lines[-1][0] != newest:  # it has no frame yet
        return frames.frame_bytes + 1
    return frames.bytes_before_line + 1 if frames.bytes_before_line >= 0 else -1


def _last_histories(role: Replication) -> tuple[str, str]:
    """The last two lines of history. On a primary, the newest one may have no frame yet."""
    names = [NO_HISTORY, NO_HISTORY]
    names += map(itemgetter(0), role.node.keyspace.histories)
    if role.following is None and names[-1] != role.history:
        names.append(role.history)
    return names[-1], names[-2]
