"""Replication in INFO and ROLE, with Redis' names.

Offsets count bytes, because alerts and exporters for Redis expect that: 20 bytes and the payload of
every frame so far, the same on all servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.server.monitor.info_lines import Part, Section, lines, part_of
from millstream.server.replication.history import NO_HISTORY
from millstream.server.replication.link import State
from millstream.server.replication.replacement import Replacement

if TYPE_CHECKING:
    from millstream.server.config.directives import Config
    from millstream.server.durability.persistence import Persistence
    from millstream.server.durability.workers import Machine
    from millstream.server.protocol.outbox import Outbox
    from millstream.server.replication.failover import Failover
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.feeds import Feeds
    from millstream.server.replication.handover import Handover
    from millstream.server.replication.history import Histories
    from millstream.server.replication.link import Link, LinkTotals, Standing
    from millstream.server.replication.promotion import Promotion
    from millstream.server.replication.restrictions import Restrictions

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


@dataclass(eq=False)
class ReplicationInfo:
    """Reads the parts of replication; changes nothing."""

    config: Config
    machine: Machine
    persistence: Persistence
    outbox: Outbox
    feeds: Feeds
    standing: Standing
    histories: Histories
    totals: LinkTotals
    failover: Failover
    handover: Handover
    promotion: Promotion
    restrictions: Restrictions

    def role_reply(self) -> list[Any]:
        """The reply to ROLE."""
        offset, link = self.persistence.commits.frame_bytes, self.standing.link
        if link is not None:
            return [b"slave", link.host.encode(), link.port, link.state.encode(), offset]
        return [
            b"master",
            offset,
            [
                [feed.host.encode(), b"%d" % feed.port, b"%d" % feed.frame_bytes]
                for feed in self.feeds
                if feed.is_online
            ],
        ]

    def parts(self) -> list[Part]:
        """INFO replication."""
        link, totals, replicas = self.standing.link, self.totals, len(self.feeds)
        parts: list[Part] = [(_ROLE, ("master" if link is None else "slave",))]
        if link is not None:
            parts.append(part_of(self._primary_facts(link)))
        parts.append((_CONNECTED, (replicas,)))
        if self.config.min_replicas_to_write or self.config.replicas_durable:
            parts.append((_GOOD, (self.feeds.good_count(),)))
        if replicas:
            slaves = enumerate(self.feeds)
            parts.append(part_of({f"slave{n}": self._feed_fact(feed) for n, feed in slaves}))
        parts.append((_FRAMES, self._frame_facts()))
        errors = (
            totals.connection_errors,
            totals.link_errors,
            totals.refusals,
            totals.failed_syncs,
            totals.kept_data,
            " ".join(totals.last_error.replace(",", ";").split()),
        )
        parts.append((_ERRORS, errors))
        return parts

    def _frame_facts(self) -> tuple[object, ...]:
        """The line of history, the backlog, the frames so far, the replies that wait for the disk
        here, or for replicas, whether this server or one of its replicas is being promoted, and the
        promoted server that lacks frames of this one."""
        frames, backlog = self.persistence, self.feeds.backlog
        newest, before = self.histories.shown
        size_bytes = 0 if backlog is None else backlog.size_bytes
        return (
            self.failover.state,
            newest,
            before,
            frames.commits.frame_bytes,
            self._second_offset(newest, before),
            int(backlog is not None),
            self.config.repl_backlog_size,
            0 if backlog is None else frames.commits.frame_bytes - size_bytes + 1,
            size_bytes,
            frames.commits.last_seq,
            frames.commits.durable_seq,
            self.restrictions.safe_seq,
            self.outbox.held_bytes,
            self.outbox.hold_age_ms(self.machine.steady_clock()),
            int(self.promotion.is_under_way or self.handover.is_waiting),
            self.handover.superseded_by,
        )

    def _second_offset(self, newest: str, before: str) -> int:
        """The offset of the first byte that does not belong to the line before the newest one; -1
        if there is no such line, or if an older version has written the base."""
        frames = self.persistence
        if before == NO_HISTORY:
            return -1
        if self.histories.newest != newest:  # it has no frame yet
            return frames.commits.frame_bytes + 1
        return frames.commits.bytes_before_line + 1 if frames.commits.bytes_before_line >= 0 else -1

    def _feed_fact(self, feed: Feed) -> str:
        lag_s = (self.machine.steady_clock() - feed.acked_ms) // 1000
        return (
            f"ip={feed.host},port={feed.port},state={feed.state},offset={feed.frame_bytes}"
            f",lag={lag_s},frame={feed.acked_seq},synced={feed.synced_seq}"
        )

    def _primary_facts(self, link: Link) -> Section:
        frame_bytes, now_ms = self.persistence.commits.frame_bytes, self.machine.steady_clock()
        change = self.standing.receiver.change
        fields: Section = {
            "master_host": link.host,
            "master_port": link.port,
            "master_link_status": "up" if link.is_connected else "down",
            "master_last_io_seconds_ago": (
                (now_ms - link.heard_ms) // 1000 if link.is_connected else -1
            ),
            "master_sync_in_progress": int(link.state is State.SYNC),
            "slave_read_repl_offset": frame_bytes,
            "slave_repl_offset": frame_bytes,
        }
        if isinstance(change, Replacement):
            total, read = change.total_bytes, change.received_bytes
            fields |= {
                "master_sync_total_bytes": total,
                "master_sync_read_bytes": read,
                "master_sync_left_bytes": total - read,
                "master_sync_perc": f"{100 * read / total if total else 100:.2f}",
                "master_sync_last_io_seconds_ago": (now_ms - link.heard_ms) // 1000,
            }
        if not link.is_connected:
            fields["master_link_down_since_seconds"] = (now_ms - link.down_since_ms) // 1000
        return fields | {
            "slave_priority": self._shown_priority(link),
            "slave_read_only": 1,
            "replica_announced": int(self.config.replica_announced),
            "master_clock_offset_ms": link.clock_offset_ms,
        }

    def _shown_priority(self, link: Link) -> int:
        """The priority for Sentinel: 0 while the data here may belong to a dead line of history, or
        is not complete."""
        is_whole = not (self.standing.receiver.is_changing or self.standing.receiver.is_wrong)
        return self.config.replica_priority if link.is_accepted and is_whole else 0
