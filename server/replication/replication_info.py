"""Replication in INFO and ROLE, with Redis' names.

Offsets count bytes, because alerts and exporters for Redis expect that: 20 bytes and the payload of
every frame so far, the same on all servers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.monitor.info_lines import Lines
from millstream.server.protocol.outbox import Outbox
from millstream.server.replication.failover import Failover
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.handover import Handover
from millstream.server.replication.history import NO_HISTORY, Histories
from millstream.server.replication.link_totals import LinkTotals
from millstream.server.replication.promotion import Promotion
from millstream.server.replication.redis_feeds import RedisFeeds
from millstream.server.replication.standing import Standing
from millstream.server.replication.write_refusals import Restrictions

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.link import Link
    from millstream.server.replication.redis_feed import RedisFeed
    from millstream.server.replication.redis_link import RedisLink

_FRAMES = Lines(
    "master_failover_state:%s",
    "master_replid:%s",
    "master_replid2:%s",
    "master_repl_offset:%d",
    "second_repl_offset:%d",
    "repl_backlog_active:%d",
    "repl_backlog_size:%d",
    "repl_backlog_first_byte_offset:%d",
    "repl_backlog_histlen:%d",
    "repl_frame:%d",
    "repl_durable_frame:%d",
    "repl_safe_frame:%d",
    "hold_bytes:%d",
    "hold_age_ms:%d",
    "promotion_in_progress:%d",
    "superseded_by:%s",
)
_SOURCE = Lines(
    "master_kind:%s",
    "master_version:%s",
    "source_replid:%s",
    "source_offset:%d",
    "source_spool_bytes:%d",
    "source_commands:%d",
    "source_ignored:%d",
    "source_ignored_names:%s",
    "source_dropped_strings:%d",
    "source_full_syncs:%d",
)
_NAMES_SHOWN = 10
_ERRORS = Lines(
    "repl_connection_errors:%d",
    "repl_link_errors:%d",
    "repl_refusals:%d",
    "repl_failed_syncs:%d",
    "repl_kept_data:%d",
    "repl_last_error:%s",
)


class ReplicationInfo:
    """Reads the parts of replication; changes nothing."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        persistence: Persistence,
        outbox: Outbox,
        feeds: Feeds,
        redis_feeds: RedisFeeds,
        standing: Standing,
        *,
        histories: Histories,
        totals: LinkTotals,
        failover: Failover,
        handover: Handover,
        promotion: Promotion,
        restrictions: Restrictions,
    ) -> None:
        self.config = config
        self.machine = machine
        self.persistence = persistence
        self.outbox = outbox
        self.feeds = feeds
        self.redis_feeds = redis_feeds
        self.standing = standing
        self.histories = histories
        self.totals = totals
        self.failover = failover
        self.handover = handover
        self.promotion = promotion
        self.restrictions = restrictions

    def role_reply(self) -> list[Any]:
        """The reply to ROLE."""
        offset, link = self.persistence.commits.frame_bytes, self.standing.link
        if link is not None:
            offset = _applied_bytes(link, offset)
            return [b"slave", link.host.encode(), link.port, link.state.encode(), offset]
        return [
            b"master",
            offset,
            [
                [feed.host.encode(), b"%d" % feed.port, b"%d" % feed.frame_bytes]
                for feed in self.feeds
                if feed.is_online
            ]
            + [
                [feed.host.encode(), b"%d" % feed.port, b"%d" % feed.acked.frame_bytes]
                for feed in self.redis_feeds.staying
                if feed.is_online
            ],
        ]

    def section(self) -> str:
        """INFO replication."""
        link, totals, replicas = self.standing.link, self.totals, len(self.feeds)
        text = f"role:{'master' if link is None else 'slave'}\r\n"
        if link is not None:
            text += self._primary_lines(link)
        text += f"connected_slaves:{replicas}\r\n"
        if self.config.min_replicas_to_write or self.config.replicas_durable:
            text += f"min_slaves_good_slaves:{self.feeds.good_count()}\r\n"
        for number, feed in enumerate(self.feeds):
            text += f"slave{number}:{self._feed_fact(feed)}\r\n"
        text += self._redis_lines()
        error = totals.last_error
        error_lines = _ERRORS.text(
            totals.connection_errors,
            totals.link_errors,
            totals.refusals,
            totals.failed_syncs,
            totals.kept_data,
            error and " ".join(error.replace(",", ";").split()),
        )
        return f"{text}{self._frame_lines()}{error_lines}"

    def _frame_lines(self) -> str:
        """The line of history, the backlog, the frames so far, the replies that wait for the disk
        here, or for replicas, whether this server or one of its replicas is being promoted, and the
        promoted server that lacks frames of this one."""
        commits, backlog = self.persistence.commits, self.feeds.backlog
        newest, before = self.histories.shown
        size_bytes = 0 if backlog is None else backlog.size_bytes
        first_byte = 0 if backlog is None else commits.frame_bytes - size_bytes + 1
        is_promoting = self.promotion.is_under_way or self.handover.is_waiting
        return _FRAMES.text(
            self.failover.state,
            newest,
            before,
            commits.frame_bytes,
            self._second_offset(newest, before),
            backlog is not None,
            self.config.repl_backlog_size,
            first_byte,
            size_bytes,
            commits.last_seq,
            commits.durable_seq,
            self.restrictions.safe_seq,
            self.outbox.held_bytes,
            self.outbox.hold_age_ms(self.machine.steady_clock()),
            is_promoting,
            self.handover.superseded_by,
        )

    def _second_offset(self, newest: str, before: str) -> int:
        """The offset of the first byte that does not belong to the line before the newest one; -1
        if there is no such line, or if an older version has written the base."""
        commits = self.persistence.commits
        if before == NO_HISTORY:
            return -1
        if self.histories.newest != newest:  # it has no frame yet
            return commits.frame_bytes + 1
        return commits.bytes_before_line + 1 if commits.bytes_before_line >= 0 else -1

    def _feed_fact(self, feed: Feed) -> str:
        lag_s = (self.machine.steady_clock() - feed.acked_ms) // 1000
        return (
            f"ip={feed.host},port={feed.port},state={feed.state},offset={feed.frame_bytes}"
            f",lag={lag_s},frame={feed.acked_seq},synced={feed.synced_seq}"
        )

    def _redis_lines(self) -> str:
        """The Redis servers that follow this one. They are no `slave0`: Sentinel, which reads that,
        must not promote them."""
        stream = self.redis_feeds.stream
        if stream is None:
            return ""
        following = self.redis_feeds.staying
        text = (
            f"redis_replicas:{len(following)}\r\n"
            f"redis_replid:{stream.replid}\r\n"
            f"redis_offset:{stream.end.offset}\r\n"
            f"redis_backlog_histlen:{stream.backlog_bytes}\r\n"
        )
        for number, feed in enumerate(following):
            text += f"redis_replica{number}:{self._redis_fact(feed)}\r\n"
        return text

    def _redis_fact(self, feed: RedisFeed) -> str:
        lag_s = (self.machine.steady_clock() - feed.acked_ms) // 1000
        return (
            f"ip={feed.host},port={feed.port},state={feed.state},offset={feed.acked.offset}"
            f",lag={lag_s},frame={feed.acked.seq}"
        )

    def _primary_lines(self, link: Link) -> str:
        from millstream.server.replication.link import State
        from millstream.server.replication.replacement import DataReplacement

        now_ms = self.machine.steady_clock()
        applied_bytes = _applied_bytes(link, self.persistence.commits.frame_bytes)
        silent_s = (now_ms - link.heard_ms) // 1000
        change = self.standing.receiver.change
        text = (
            f"master_host:{link.host}\r\n"
            f"master_port:{link.port}\r\n"
            f"master_link_status:{'up' if link.is_connected else 'down'}\r\n"
            f"master_last_io_seconds_ago:{silent_s if link.is_connected else -1}\r\n"
            f"master_sync_in_progress:{int(link.state is State.SYNC)}\r\n"
            f"slave_read_repl_offset:{applied_bytes}\r\n"
            f"slave_repl_offset:{applied_bytes}\r\n"
        )
        if isinstance(change, DataReplacement):
            total, read = change.total_bytes, change.received_bytes
            text += (
                f"master_sync_total_bytes:{total}\r\n"
                f"master_sync_read_bytes:{read}\r\n"
                f"master_sync_left_bytes:{total - read}\r\n"
                f"master_sync_perc:{100 * read / total if total else 100:.2f}\r\n"
                f"master_sync_last_io_seconds_ago:{silent_s}\r\n"
            )
        if not link.is_connected:
            down_s = (now_ms - link.down_since_ms) // 1000
            text += f"master_link_down_since_seconds:{down_s}\r\n"
        text += self._source_lines(link.redis)
        return text + (
            f"slave_priority:{self._shown_priority(link)}\r\n"
            "slave_read_only:1\r\n"
            f"replica_announced:{int(self.config.replica_announced)}\r\n"
            f"master_clock_offset_ms:{link.clock_offset_ms}\r\n"
        )

    def _shown_priority(self, link: Link) -> int:
        """The priority for Sentinel: 0 while the data here may belong to a dead line of history, or
        is not complete."""
        is_whole = not (self.standing.receiver.is_changing or self.standing.receiver.is_wrong)
        is_ours = link.redis is None  # the Sentinel of a Redis must not promote this server
        return self.config.replica_priority if link.is_accepted and is_whole and is_ours else 0

    @staticmethod
    def _source_lines(redis: RedisLink | None) -> str:
        """The kind of the primary, and the progress in the stream of a Redis."""
        if redis is None:
            return "master_kind:millstream\r\n"
        following, obeyed = redis.following, redis.following.obeyed
        names = obeyed.ignored.most_common(_NAMES_SHOWN)
        return _SOURCE.text(
            redis.kind,
            redis.version,
            following.replid,
            following.offset,
            following.spool_bytes,
            obeyed.commands,
            obeyed.ignored.total(),
            " ".join(f"{name}={count}" for name, count in names),
            following.dropped_strings,
            following.full_syncs,
        )


def _applied_bytes(link: Link, frame_bytes: int) -> int:
    """The bytes of the primary's stream that are applied: frames, or the commands of a Redis."""
    return frame_bytes if link.redis is None else link.redis.following.offset
