"""The role of this server, primary or replica of another server, and how it changes.

As a primary it feeds replicas. As a replica it follows a primary, refuses writes and fires no
timers, and may feed replicas of its own. Both in one object, because a server changes its role
while it runs. Its parts: `resync` answers PSYNC, `restrictions` says what is refused, `following`
is the link to the primary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.errors import CommandError
from millstream.server.config.replica_directives import parse_address
from millstream.server.monitor.info_lines import Part
from millstream.server.replication.acceptance import FOLLOWED, Acceptance
from millstream.server.replication.announcement import Announcement
from millstream.server.replication.failover import Failover
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.following import Following
from millstream.server.replication.handover import Handover
from millstream.server.replication.link import TAKEOVER, TAKEOVER_FORCED, encode_request
from millstream.server.replication.promotion import WAIT_MAX_MS, Promotion
from millstream.server.replication.records import encode_message
from millstream.server.replication.replication_info import NO_HISTORY, replication_parts, role_reply
from millstream.server.replication.restrictions import Restrictions
from millstream.server.replication.resync import Resync
from millstream.server.replication.upstream import Upstream

if TYPE_CHECKING:
    from millstream.commands.admin.replication import Takeover
    from millstream.server.replication.node import Node
    from millstream.server.replication.receiving import Replacement
    from millstream.server.replication.rewinding import Rewinding

log = logging.getLogger("millstream.replication")

FORCE_UNBLOCKED = (
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
)
WRONG_DATA = (
    "ERR the data in memory may be wrong or incomplete; the log says why. Restart this server: it"
    " loads what is on its disk. Then send REPLICAOF NO ONE again"
)
_NICENESS = 5


class Replication:
    """See the module's docstring. `following` is None on a primary."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.following: Following | None = None
        self.feeds = Feeds(node.config, node.persistence, node.executor, node.loop, node.steady_ms)
        self.feeds.check_output = node.executor.outbox.check_output or self.feeds.check_output
        self.worker = self.feeds.worker = node.new_worker("millstream-replicas", _NICENESS)
        node.persistence.on_gap = self.forget_histories
        self.resync = Resync(self)
        self.acceptance = Acceptance(node, self._acceptance_stored)
        self.history = NO_HISTORY
        self.rewinds = 0
        self.change: Replacement | Rewinding | None = None  # of the data here; not ended yet
        self.received_bytes = 0
        self.connection_errors = 0  # connections to the primary that failed or were lost
        self.link_errors = 0  # bytes of the primary that are not allowed
        self.refusals = 0  # errors of the primary
        self.failed_syncs = 0  # full syncs and rewinds that could not be completed
        self.kept_data = 0  # full syncs refused because the primary has less data
        self.last_error = ""
        self.warned_of_clock = False
        self.upstream = Upstream(node.new_history())
        self.handover = Handover(self)
        self.restrictions = Restrictions(self)
        self.failover = Failover(self)
        self.promotion = Promotion(self)
        self.announcement: Announcement | None = None  # of a promotion, to the old primary
        self.promotes_when_loaded = False  # after the running full sync or rewind
        self._orders = 0  # to change the role; one that is put off does nothing after another

    # Life

    def start(self) -> None:
        """The data is loaded."""
        primary = parse_address(self.node.config.replicaof)
        promoted = self.acceptance.marked(FOLLOWED)
        if primary is not None:
            self._follow(*primary)
        elif promoted is not None:
            log.warning(
                "this server had handed over to %s:%d and follows it. REPLICAOF NO ONE makes it a "
                "primary, CONFIG REWRITE adds replicaof to the configuration file",
                *promoted,
            )
            self.follow_promoted(*promoted)
            assert self.following is not None
            self.following.line_before = ""
        else:
            self._begin_history()
            self.handover.restore()
        self.restrictions.update()

    def stop(self) -> None:
        self.promotion.end()
        self._end_announcement()
        if self.following is not None:
            self.following.stop()
        self.worker.stop()

    def tick_second(self) -> None:
        self.acceptance.tick_second()
        if self.following is not None:
            self.following.tick_second()
            self.node.keyspace.deferred.clear()  # a promotion notes all moments again
        if self.announcement is not None:
            self.announcement.tick_second()
        self.handover.tick_second()
        self.resync.tick_second()
        self.feeds.tick_second(self.node.now_ms(), self.is_replica, self.told_upstream())
        self.failover.check_candidates()
        self.restrictions.update()
        self.node.check_waits()

    def on_synced(self) -> None:
        self._acknowledge()
        self.promotion.check_stored()
        self.node.check_waits()

    def _acceptance_stored(self) -> None:
        self._acknowledge()
        self.promotion.check_stored()

    def _acknowledge(self) -> None:
        if self.following is not None:
            self.following.acknowledge()

    def journal_switched(self) -> None:
        """appendonly was switched on or off."""
        frames, keyspace = self.node.persistence, self.node.keyspace
        enabled = self.node.executor.effects.enabled
        if frames.loading or self.following is not None:
            return
        if not enabled and (keyspace.histories or frames.first_effect is not None):
            self.forget_histories()
        elif enabled and self.history == NO_HISTORY:
            self._begin_history()

    def client_gone(self, client: Any) -> None:
        self.resync.forget(client)
        if client.feed is not None:
            log.warning("the replica %s has disconnected", client.feed.address)
            self.feeds.remove(client)
            self.restrictions.count_good_replicas()

    # Histories

    def _begin_history(self) -> None:
        """The next frame made here begins a line of history. Without a journal there is none: the
        data changes without frames."""
        frames = self.node.persistence
        if not self.node.executor.effects.enabled:
            self.node.keyspace.histories = ()
            self.history = NO_HISTORY
            frames.first_effect = None
            return
        self.history = self.node.new_history()
        frames.first_effect = self._first_effect

    def _first_effect(self, seq: int) -> bytes:
        self.node.keyspace.begin_history(self.history, seq)
        return encode_request([b"HISTORY", self.history.encode(), b"%d" % seq])

    @property
    def newest_line(self) -> str:
        """The ID of the newest line of history in the data; "" if there is none."""
        lines = self.node.keyspace.histories
        return lines[-1][0] if lines else ""

    def forget_histories(self) -> None:
        """The data has changed without a frame: no number identifies it any more."""
        self.node.keyspace.histories = ()
        self.feeds.drop_all("the data here has changed without a frame that describes it")
        if self.following is None:
            self._begin_history()
        else:
            self.following.wants_all = True

    # What others see of the role

    @property
    def _is_changing(self) -> bool:
        """Whether the data on the disk is other data already than that in memory."""
        return self.change is not None and self.change.is_published

    def shown_priority(self) -> int:
        """The priority for Sentinel: 0 while the data here may belong to a dead line of history, or
        is not complete."""
        following, priority = self.following, self.node.config.replica_priority
        if following is None:
            return priority
        is_whole = not (self._is_changing or following.is_distrusted)
        return priority if following.accepted and is_whole else 0

    def info(self) -> list[Part]:
        """INFO replication."""
        return replication_parts(self)

    def primary_clients(self) -> list[Any]:
        """The link to the primary, as CLIENT LIST shows it; at most one."""
        client = None if self.following is None else self.following.client
        return [] if client is None else [client]

    def role_reply(self) -> list[Any]:
        return role_reply(self)

    @property
    def backlog_bytes(self) -> int:
        """Memory for frames that replicas may need."""
        return self.feeds.ring.size_bytes if self.feeds.ring is not None else 0

    @property
    def is_replica(self) -> bool:
        return self.following is not None

    @property
    def is_promoting(self) -> bool:
        """Whether this server becomes a primary when the last frames of its primary are here."""
        return self.promotion.is_under_way

    def lagging(self) -> int:
        """The number of replicas that have not applied everything yet."""
        if self.following is not None:
            return 0
        last_seq = self.node.persistence.last_seq
        return sum(1 for feed in self.feeds if feed.is_online and feed.acked_seq < last_seq)

    def applied_on(self, seq: int) -> int:
        return self.feeds.applied_on(seq)

    def synced_on(self, seq: int) -> int:
        return self.feeds.synced_on(seq)

    def told_upstream(self) -> bytes:
        """The IDs of servers for a replica. A server that is being promoted is the first one: its
        primary may follow it already."""
        return self.upstream.told(self.is_replica and not self.is_promoting)

    # Changing the role

    def follow(self, host: str, port: int) -> str:
        """REPLICAOF host port; Redis' reply. In a transaction the role changes after it, but the
        directive at once, so that CONFIG REWRITE writes it."""
        self._refuse_during_failover()
        self._orders += 1
        if not self.node.executor.context.may_block:
            self.node.config.replicaof = f"{host} {port}"
            self.node.loop.call_soon(self._follow_later, self._orders, host, port)
            return "OK"
        return self._follow_unless_current(host, port)

    def _follow_later(self, order: int, host: str, port: int) -> None:
        if order == self._orders and not self.failover.is_under_way:
            self._follow_unless_current(host, port)

    def _follow_unless_current(self, host: str, port: int) -> str:
        now = self.following
        if now is not None and (now.host, now.port) == (host, port):
            self.promotion.end()
            now.may_replace_more = True
            now.may_resume = False
            now.retry_soon()
            return "OK Already connected to specified master"
        if now is None and self._is_online_replica(host, port):
            self.handover.clear()  # this order is newer
            self.failover.begin((host, port), forced=False, timeout_ms=WAIT_MAX_MS)
        else:
            self._follow(host, port)
        return "OK"

    def _is_online_replica(self, host: str, port: int) -> bool:
        """Whether the server to follow is a replica of this primary. It has no data of its own:
        the two change their roles."""
        feed = self.feeds.at(host, port)
        return feed is not None and feed.is_online

    def _refuse_during_failover(self) -> None:
        if self.failover.is_under_way:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")

    def follow_for_failover(self, host: str, port: int, forced: bool) -> None:
        """Become a replica of a replica, which is to become the primary; with `forced` even if it
        lacks frames."""
        self._follow(host, port)
        assert self.following is not None
        self.following.takeover = TAKEOVER_FORCED if forced else TAKEOVER

    def _follow(self, host: str, port: int, is_of_handover: bool = False) -> None:
        node = self.node
        node.persistence.flush_tick()
        was_primary = self.following is None
        self.promotion.end()
        self._end_announcement()
        if self.following is not None:
            self.following.stop()
        node.persistence.first_effect = None
        self.promotes_when_loaded = False
        was_distrusted = self.following is not None and self.following.is_distrusted
        self.upstream.forget()
        self.following = Following(self, host, port, is_of_handover)
        if was_distrusted:
            self.following.distrust_all()
        self.handover.clear()
        if is_of_handover:
            self.following.note_accepted()
        elif not self.following.accepted:
            self.acceptance.note("")
        self.restrictions.update()
        if was_primary:
            self._end_primary()
        self.feeds.drop_all("this server follows another primary now")
        self.feeds.keep_ring()
        node.executor.recheck_limits()
        node.config.replicaof = f"{host} {port}"
        log.warning("this server follows %s:%d", host, port)
        node.loop.call_soon(self.connect, self.following)

    def follow_promoted(self, host: str, port: int) -> None:
        """A replica with all frames from here was promoted: follow it."""
        self._follow(host, port, is_of_handover=True)

    def resume(self) -> None:
        """The server that this one follows after its promotion is a replica of this one again."""
        following = self.following
        assert following is not None
        log.warning(
            "the promoted server %s:%d follows this server again", following.host, following.port
        )
        self.follow_no_primary(is_independent=True)

    def announce(self, following: Following) -> None:
        """This server was promoted: its old primary has to know."""
        if self.following is None:
            self.resync.begin_line()  # it tells what this server sends later from what is old
            self.announcement = Announcement(self, following.host, following.port)

    def announced(self) -> None:
        self.announcement = None

    def _end_announcement(self) -> None:
        if self.announcement is not None:
            self.announcement.stop()

    def connect(self, following: Following) -> None:
        """Connect to the primary now, if it is still this one and there is no connection."""
        if self.following is following and following.state == "connect":
            following.connect()

    def _end_primary(self) -> None:
        """End the waits for what happens here, and drop the replies that were not sent yet."""
        executor = self.node.executor
        executor.close_held()
        for client in list(self.node.clients.values()):
            executor.end_wait(client, FORCE_UNBLOCKED, close=True)

    def no_primary(self, is_independent: bool) -> None:
        """REPLICAOF NO ONE. If the link to the primary is up, the role changes when the primary's
        last frames are here (`promotion`); in a transaction, after it. With INDEPENDENT it changes
        at once, and the primary is not told. CommandError during a failover, or if the data here
        may be wrong."""
        self._refuse_during_failover()
        self._orders += 1
        replicaof = self.node.config.replicaof
        if self.node.executor.context.may_block:
            self._begin_promotion(replicaof, is_independent)
            return
        self._refuse_wrong_data()
        self.node.config.replicaof = ""  # at once, so that CONFIG REWRITE writes it
        self.node.loop.call_soon(
            self._begin_promotion_later, self._orders, replicaof, is_independent
        )

    def _begin_promotion_later(self, order: int, replicaof: str, is_independent: bool) -> None:
        if order != self._orders:
            return
        try:
            self._begin_promotion(replicaof, is_independent)
        except CommandError as error:
            self.remain_replica(replicaof, error)

    def remain_replica(self, replicaof: str, error: CommandError) -> None:
        """A promotion was refused after its command was answered: restore the directive."""
        self.node.config.replicaof = replicaof
        log.error("this server remains a replica: %s", error.message)

    def _begin_promotion(self, replicaof: str, is_independent: bool) -> None:
        self._apply_arrived()
        following = self.following
        if following is not None and following.is_connected and not is_independent:
            self.promotion.begin(following, replicaof)
            return
        if following is not None and self.promotion.is_under_way:
            following.say_promoting(is_over=True)
        self.follow_no_primary(is_independent)

    def _apply_arrived(self) -> None:
        """Apply what has arrived. CommandError if the data here may be wrong."""
        if self.following is not None:
            self.following.applier.apply_all()
        self._refuse_wrong_data()

    def _refuse_wrong_data(self) -> None:
        if self.following is not None and self.following.is_distrusted:
            raise CommandError(WRONG_DATA)

    def follow_no_primary(self, is_independent: bool = False) -> None:
        """Become a primary, with everything that has arrived; `is_independent`: without a word to
        the old primary. CommandError if the data in memory is not that on the disk: a frame could
        not be applied, or a full sync has failed at its end."""
        self._apply_arrived()
        self.node.config.replicaof = ""
        following = self.following
        if following is None:
            self.handover.clear()
            return
        self.following = None
        self.upstream.forget()
        if not is_independent:
            following.say_promoted()
        following.stop()
        self._report_promotion(following)
        if self._is_changing:
            self.promotes_when_loaded = True
        else:
            self._promote()
        self.promotion.end()

    def _report_promotion(self, following: Following) -> None:
        missing = following.last_beat_seq - self.node.persistence.last_seq
        log.warning("this server is the primary now")
        if missing > 0:
            log.warning(
                "%d frames of the old primary %s:%d had not arrived at its last beat",
                missing, following.host, following.port,
            )  # fmt: skip

    def data_replaced(self) -> None:
        """The frames here were replaced or cut back: the replicas of this server ask again."""
        self.feeds.drop_all("the data of this server was replaced")
        self.feeds.keep_ring()

    def replaced_late(self, is_whole: bool) -> None:
        """A full sync or rewind has ended that was under way when this server was promoted, or
        directed to another primary."""
        if self.following is not None:
            if not is_whole:
                self.following.distrust_all()
        elif not is_whole and self.node.executor.loading:
            log.critical("the data could not be loaded: restart this server")
        elif self.promotes_when_loaded:
            self.promotes_when_loaded = False
            self._promote()

    def _promote(self) -> None:
        node = self.node
        node.executor.primary_ahead_ms = 0
        self.acceptance.note("")
        self.restrictions.begin_primary()
        self._begin_history()
        node.continue_clock()
        self.restrictions.update()
        node.executor.check_due()

    # The side of a primary

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
        """Pass a message to the replicas, after the data that the publisher may have seen."""
        if self.feeds.by_client and self.following is None:
            frames = self.node.persistence
            shown_seq = frames.last_seq + bool(len(self.node.executor.effects))
            self.feeds.publish(encode_message(channel, message, is_shard=is_shard), shown_seq)

    def received_message(self, channel: bytes, message: bytes, *, is_shard: bool) -> None:
        """The primary has sent a message: it goes to the subscribers here, and to the replicas of
        this server."""
        self.node.deliver(channel, message, is_shard=is_shard)
        if self.feeds.by_client:
            record = encode_message(channel, message, is_shard=is_shard)
            self.feeds.publish(record, self.node.persistence.last_seq)

    def introduce(self, client: Any, pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
        """REPLCONF: what a replica says about itself. Returns the answer. CommandError for an
        invalid value."""
        for name, value in pairs:
            word = name.decode("ascii", "replace").lower()
            if client.feed is None and word == "promoted":
                self.resync.announced(client, value)
            elif client.feed is None or word not in ("promoting", "promoted"):
                self.resync.introduce(client, word, value)
            elif word == "promoted":
                self.handover.promoted(client.feed, b"" if value == b"1" else value)
            elif value == b"0":
                self.handover.abandon(client.feed.address)
            else:
                self.handover.begin(client.feed)
        return self.resync.answer_to(client)

    def acknowledge(self, client: Any, applied: int, synced: int, frame_bytes: int) -> None:
        feed = client.feed
        if feed is not None:
            feed.acknowledge(applied, synced, frame_bytes, self.node.steady_ms())
            self.node.check_waits()
            if self.failover.is_under_way:
                self.node.loop.call_soon(self.failover.check_acknowledged)
            self.restrictions.replica_acknowledged()

    def take_over(self, name: bytes) -> None:
        """The primary of this server, whose newest line is `name`, asks it to become the primary
        (FAILOVER). CommandError if it is a primary, or follows another one."""
        if self.following is None:
            raise CommandError("ERR PSYNC FAILOVER can't be sent to a master.")
        lines = self.node.keyspace.histories
        if not lines or lines[-1][0].encode() != name:
            raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
        log.warning("a failover was requested by the primary")
        self.follow_no_primary()

    def psync(self, client: Any, next_seq: int, takeover: Takeover | None) -> None:
        """Answer PSYNC, and send what the replica lacks. CommandError when that is impossible."""
        self.resync.psync(client, next_seq, takeover)
