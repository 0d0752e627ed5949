"""The role of this server, primary or replica of another server, and how it changes.

As a primary it feeds replicas. As a replica it follows a primary, refuses writes and fires no
timers, and may feed replicas of its own. Both in one object, because a server changes its role
while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from millstream.commands.admin.replication import Acknowledged
from millstream.errors import CommandError
from millstream.server.config.directives import Config
from millstream.server.config.replica_directives import parse_address
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine, TaskWorker
from millstream.server.execution.executor import Executor
from millstream.server.replication.accepting_primary import FOLLOWED, Acceptance
from millstream.server.replication.failover import Failover
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.handover import Handover, Relay
from millstream.server.replication.history import Histories
from millstream.server.replication.link_hooks import LinkHooks
from millstream.server.replication.link_totals import LinkTotals
from millstream.server.replication.promotion import WAIT_MAX_MS, Promotion
from millstream.server.replication.redis_feeds import RedisFeeds
from millstream.server.replication.replication_info import ReplicationInfo
from millstream.server.replication.resync import Resync
from millstream.server.replication.standing import Late, Standing
from millstream.server.replication.upstream import Upstream
from millstream.server.replication.write_refusals import Restrictions
from millstream.storage.keyspace.keyspace import Keyspace

# These are loaded with the first order to follow another server.
if TYPE_CHECKING:
    from millstream.server.replication.link import Link
    from millstream.server.replication.receiver import Receiver
    from millstream.server.replication.terms import Terms

log = logging.getLogger("millstream.replication")

FORCE_UNBLOCKED = (
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
)
WRONG_DATA = (
    "ERR the data in memory may be wrong or incomplete; the log says why. Restart this server: it"
    " loads what is on its disk. Then send REPLICAOF NO ONE again"
)
NO_JOURNAL = (
    "ERR this server has appendonly off: it could not feed its old primary, which would follow it."
    " Send CONFIG SET appendonly yes first, or REPLICAOF NO ONE INDEPENDENT to make it a second"
    " primary"
)
_NICENESS = 5


class Role:
    """Builds the parts of replication, and passes events on to them.

    `clients` are those of the server. `new_id` makes 40 random hexadecimal digits.
    `continue_clock` continues the steady clock after the latest time in the data, and restarts the
    times to live of groups and the leases. `deliver` passes a message of the primary's channels to
    the subscribers here. `check_waits` ends the waits for what is on the disk, or on replicas.
    """

    def __init__(
        self, config: Config, machine: Machine, keyspace: Keyspace, persistence: Persistence,
        executor: Executor, late: Late, *, clients: Mapping[int, Any], new_id: Callable[[], str],
        continue_clock: Callable[[], None], deliver: Callable[..., None],
        check_waits: Callable[[], None],
    ) -> None:  # fmt: skip
        self.config, self.machine, self.late = config, machine, late
        self.keyspace, self.persistence, self.executor = keyspace, persistence, executor
        self.clients, self.new_id, self.continue_clock = clients, new_id, continue_clock
        self.deliver, self.check_waits = deliver, check_waits
        self._loop = machine.scheduler
        self._worker = machine.new_worker("millstream-replicas", _NICENESS)
        self._orders = 0  # to change the role; one that is put off does nothing after another
        self.totals = LinkTotals()
        self._is_stopping = False
        self.terms: Terms | None = None
        self.histories = Histories(keyspace, persistence, executor, new_id)
        self.upstream = Upstream(new_id())
        self.acceptance = Acceptance(machine, persistence, self._acceptance_stored)
        self.standing = Standing(lambda: new_receiver(self, self._worker))
        self.feeds = Feeds(config, machine, persistence, executor, self._worker)
        self.redis_feeds = RedisFeeds(
            config, machine, persistence, executor, self.standing, late, new_id
        )
        self._build_parts()
        self.link_hooks = LinkHooks(
            on_change=self.restrictions.update,
            on_linked=self.promotion.linked,
            on_lost=self._link_lost,
            on_taken_over=self.failover.accepted,
            on_refused=self.failover.refused,
            on_last=self._last_arrived,
            on_message=self._received_message,
        )

    def _build_parts(self) -> None:
        """The parts that change the role, then those that answer."""
        config, machine, persistence = self.config, self.machine, self.persistence
        standing, feeds = self.standing, self.feeds
        self.relay = Relay(
            machine, persistence, standing, self.upstream, lambda: self.promotion.is_under_way
        )
        self.handover = Handover(
            config, machine, persistence, self.histories, self.acceptance, standing, self.relay,
            on_promotion=lambda: self.failover.replica_promoted(),
            on_change=self._handover_changed, follow_promoted=self._follow_promoted,
        )  # fmt: skip
        self.restrictions = Restrictions(
            config, persistence, self.executor, feeds, standing, self.handover
        )
        self.failover = Failover(
            config, machine, persistence, self.executor, feeds, standing, self.handover,
            totals=self.totals, follow=self._follow_for_failover,
            on_abandoned=self._failover_abandoned,
        )  # fmt: skip
        self.promotion = Promotion(
            machine, persistence, self.histories, self.acceptance, standing, self.late,
            become_primary=self.follow_no_primary, on_refused=self._remain_replica,
            on_end=self.check_waits,
        )  # fmt: skip

        # The parts that answer replicas, INFO and ROLE.
        self.resync = Resync(
            config, machine, persistence, self.histories, feeds, standing, self.handover,
            redis_feeds=self.redis_feeds,
            take_over=self._take_over, resume=self._resume, upstream_ids=self.upstream_ids,
            databases=len(self.keyspace.databases),
        )  # fmt: skip
        info = ReplicationInfo(
            config, machine, persistence, self.executor.outbox, feeds, self.redis_feeds, standing,
            histories=self.histories, totals=self.totals, failover=self.failover,
            handover=self.handover, promotion=self.promotion, restrictions=self.restrictions,
        )  # fmt: skip
        self.info, self.role_reply = info.section, info.role_reply
        self.introduce, self.psync = self.resync.introduce, self.resync.psync
        self.is_redis, self.sync = self.resync.is_redis, self.resync.sync
        self.synced_on, self.ask_positions = self.feeds.synced_on, self.redis_feeds.ask

    @property
    def receiver(self) -> Receiver:
        return self.standing.receiver

    def join_shard(
        self, node: str, node_timeout_ms: Callable[[], int], lease_ms: Callable[[], int]
    ) -> Terms:
        """Before the start: this server is a member of a shard, with this ID. The result decides
        from now on whether it is a primary or a replica. `lease_ms` is a clock that also runs while
        the machine is suspended."""
        from millstream.server.replication.terms import Terms  # only members of shards load it

        self.terms = Terms(self, self.late.connector, node, node_timeout_ms, lease_ms)
        return self.terms

    def start(self) -> None:
        """The data is loaded."""
        primary = parse_address(self.config.replicaof)
        promoted = self.acceptance.marked(FOLLOWED)
        if self.terms is not None:
            self.terms.start()
        elif primary is not None:
            self._follow(*primary)
        elif promoted is not None:
            log.warning(
                "this server had handed over to %s:%d and follows it. REPLICAOF NO ONE makes it a "
                "primary, CONFIG REWRITE adds replicaof to the configuration file",
                *promoted,
            )
            self._follow(*promoted, is_of_handover=True).was_restarted()
        else:
            self.histories.begin()
            self.handover.restore()
        self.restrictions.reports = True
        self.restrictions.update()

    def stop(self) -> None:
        self._is_stopping = True
        self.restrictions.reports = False
        self.promotion.stop()
        if self.link is not None:
            self.link.stop()
        self.redis_feeds.stop()
        self._worker.stop()

    def tick_second(self) -> None:
        self.acceptance.tick_second()
        if self.link is not None:
            self.link.tick_second()
            self.keyspace.deferred.clear()  # a promotion notes all moments again
        self.promotion.tick_second()
        self.handover.tick_second()
        self.resync.tick_second()
        self.feeds.tick_second(self.machine.clock(), self.is_replica, self.upstream_ids())
        self.redis_feeds.tick_second()
        self.failover.check_candidates()
        self.restrictions.update()
        self.check_waits()

    def durable(self, seq: int) -> None:
        """The replies up to this frame were sent: replicas may get it, too."""
        self.feeds.pump_if_any()
        self.redis_feeds.durable()

    def synced(self) -> None:
        """More of the journal is on the disk."""
        self._acceptance_stored()

    def _acceptance_stored(self) -> None:
        if self.link is not None:
            self.link.acknowledge()
        self.promotion.check_stored()
        self.check_waits()

    def journal_switched(self) -> None:
        """appendonly was switched on or off."""
        if self.persistence.loading or self.is_replica:
            return
        if not self.persistence.appendonly:
            self.redis_feeds.end_stream("this server has appendonly off now")
        if self.histories.journal_switched():
            self.data_changed()

    def client_gone(self, client: Any) -> None:
        self.resync.forget(client)
        self.redis_feeds.remove(client)
        if client.id in self.feeds.by_client:
            if not self._is_stopping:  # all clients are closed
                log.warning("the replica %s has disconnected", client.feed.address)
            self.feeds.remove(client)
            self.restrictions.count_good_replicas()

    def data_changed(self) -> None:
        """The data has changed without a frame: no number identifies it any more."""
        self.histories.forget()
        reason = "the data here has changed without a frame that describes it"
        self.feeds.drop_all(reason)
        self.redis_feeds.end_stream(reason)
        if self.is_replica:
            self.receiver.doubt()
        else:
            self.histories.begin()

    # The role for others

    @property
    def link(self) -> Link | None:
        """The link to the primary; None on a primary."""
        return self.standing.link

    @property
    def is_replica(self) -> bool:
        return self.standing.is_replica

    @property
    def is_promoting(self) -> bool:
        """True if this server becomes a primary when the last frames of its primary are here."""
        return self.promotion.is_under_way

    def primary_clients(self) -> list[Any]:
        """The link to the primary, as CLIENT LIST shows it; at most one."""
        client = None if self.link is None else self.link.client
        return [] if client is None else [client]

    def lagging(self) -> int:
        """The number of replicas that have not applied everything yet."""
        return 0 if self.is_replica else self.feeds.lagging()

    def upstream_ids(self) -> bytes:
        """The IDs of servers for a replica. A server that is being promoted is the first one: its
        primary may follow it already."""
        return self.upstream.told(self.is_replica and not self.is_promoting)

    # REPLICAOF host port

    def follow(self, host: str, port: int) -> str:
        """REPLICAOF host port; Redis' reply. In a transaction the role changes after it, but the
        directive at once, so that CONFIG REWRITE writes it."""
        self._refuse_during_failover()
        self._orders += 1
        if not self.executor.context.may_block:
            self.config.choose_primary(f"{host} {port}")
            self._loop.call_soon(self._follow_later, self._orders, host, port)
            return "OK"
        return self._follow_unless_current(host, port)

    def _follow_later(self, order: int, host: str, port: int) -> None:
        if order == self._orders and not self.failover.is_under_way:
            self._follow_unless_current(host, port)

    def _follow_unless_current(self, host: str, port: int) -> str:
        link = self.link
        if link is not None and (link.host, link.port) == (host, port):
            self.promotion.end()
            link.order_again()
            return "OK Already connected to specified master"
        feed = self.feeds.at(host, port)
        if link is None and feed is not None and feed.is_online:
            # It has no data of its own: the two change their roles.
            self.handover.clear()  # this order is newer
            self.failover.begin((host, port), forced=False, timeout_ms=WAIT_MAX_MS)
        else:
            self._follow(host, port)
        return "OK"

    def _refuse_during_failover(self) -> None:
        if self.failover.is_under_way:
            raise CommandError("ERR REPLICAOF not allowed while failing over.")

    def _follow(self, host: str, port: int, is_of_handover: bool = False) -> Link:
        link = self.take_link(host, port, is_of_handover)
        self.config.choose_primary(f"{host} {port}")
        # At start it is what the configuration says.
        level = logging.WARNING if self.restrictions.reports else logging.INFO
        log.log(level, "this server follows %s", link.address)
        self._loop.call_soon(link.connect)
        return link

    def take_link(self, host: str, port: int, is_of_handover: bool = False) -> Link:
        """Become a replica of the server at this address. The link does not connect yet."""
        from millstream.server.replication.link import Link

        self.persistence.commits.flush_tick()
        was_primary = self.link is None
        self.promotion.stop()
        if self.link is not None:
            self.link.stop()
        self.histories.end()
        self.standing.becomes_primary = False
        self.upstream.forget()
        link = self.standing.link = Link(
            host, port,
            self.late.connector, self.machine, self.receiver, self.persistence, self.histories,
            hooks=self.link_hooks, acceptance=self.acceptance, upstream=self.upstream,
            totals=self.totals, converter=self.late.converter, is_of_handover=is_of_handover,
        )  # fmt: skip
        self.handover.clear()
        if is_of_handover:
            link.note_accepted()
        elif not link.is_accepted:
            self.acceptance.note("")
        self.restrictions.update()
        if was_primary:
            self._end_primary()
        self.feeds.drop_all("this server follows another primary now")
        self.redis_feeds.end_stream("this server follows another primary now")
        self.feeds.keep_backlog()
        self.executor.recheck_limits()
        return link

    def _follow_promoted(self, host: str, port: int) -> None:
        """A replica with all frames from here was promoted: follow it."""
        self._follow(host, port, is_of_handover=True)

    def _end_primary(self) -> None:
        """End the waits of clients, and drop the replies that were not sent yet."""
        self.executor.close_held()
        for client in list(self.clients.values()):
            self.executor.end_wait(client, FORCE_UNBLOCKED, close=True)

    # REPLICAOF NO ONE

    def no_primary(self, is_independent: bool) -> None:
        """REPLICAOF NO ONE. If the link to the primary is up, the role changes when the primary's
        last frames are here (`promotion`); in a transaction, after it. With INDEPENDENT it changes
        at once, and the primary is not told. CommandError during a failover, if the data here may
        be wrong, or if the primary could not follow this server."""
        self._refuse_during_failover()
        if self._has_primary_of_ours() and not is_independent and not self.persistence.appendonly:
            raise CommandError(NO_JOURNAL)
        self._orders += 1
        replicaof = self.config.replicaof
        if self.executor.context.may_block:
            self._begin_promotion(replicaof, is_independent)
            return
        self._refuse_wrong_data()
        self.config.choose_primary("")  # at once, so that CONFIG REWRITE writes it
        self._loop.call_soon(self._begin_promotion_later, self._orders, replicaof, is_independent)

    def _has_primary_of_ours(self) -> bool:
        """True if the link to another millstream server is up, which hands over."""
        link = self.link
        return link is not None and link.has_primary_of_ours

    def _begin_promotion_later(self, order: int, replicaof: str, is_independent: bool) -> None:
        if order != self._orders:
            return
        try:
            self._begin_promotion(replicaof, is_independent)
        except CommandError as error:
            self._remain_replica(replicaof, error)

    def _remain_replica(self, replicaof: str, error: CommandError) -> None:
        """A promotion was refused after its command was answered: restore the directive."""
        self.config.choose_primary(replicaof)
        log.error("this server remains a replica: %s", error.message)

    def _begin_promotion(self, replicaof: str, is_independent: bool) -> None:
        self._apply_arrived()
        link = self.link
        if link is not None and self._has_primary_of_ours() and not is_independent:
            self.promotion.begin(link, replicaof)
            return
        if link is not None and self.promotion.is_under_way:
            link.say_promoting(is_over=True)
        self.follow_no_primary(is_independent)

    def _apply_arrived(self) -> None:
        """Apply what has arrived. CommandError if that takes longer, or the data here may be
        wrong."""
        self.receiver.apply_all()
        if self.link is not None and self.link.redis is not None:
            self.link.redis.apply_all()
        self._refuse_wrong_data()

    def _refuse_wrong_data(self) -> None:
        if self.is_replica and self.receiver.is_wrong:
            raise CommandError(WRONG_DATA)

    def follow_no_primary(self, is_independent: bool = False) -> None:
        """Become a primary, with everything that has arrived; `is_independent`: without a word to
        the old primary. CommandError if the data in memory is not that on the disk: a frame could
        not be applied, or a full sync has failed at its end."""
        self._apply_arrived()
        if self.terms is None:
            self.config.choose_primary("")
        link = self.link
        if link is None:
            self.handover.clear()
            return
        self.standing.link = None
        self.upstream.forget()
        if not is_independent:
            link.say_promoted()
        link.stop()
        log.warning("this server is the primary now")
        if not self.persistence.appendonly:
            log.warning("it has appendonly off: no server can be its replica")
        link.log_missing()
        if self.receiver.is_changing:
            self.standing.becomes_primary = True
        else:
            self._promote()
        self.promotion.end()

    def _promote(self) -> None:
        self.standing.becomes_primary = False
        self.receiver.follow_clock(0)
        self.acceptance.note("")
        self.restrictions.begin_primary()
        self.histories.begin()
        self.continue_clock()
        self.restrictions.update()
        self.executor.check_due()
        if self.terms is not None:
            self.terms.has_begun()

    # FAILOVER, and a handover

    def _follow_for_failover(self, host: str, port: int, forced: bool) -> None:
        """Become a replica of a replica, which is to become the primary; with `forced` even if it
        lacks frames."""
        self._follow(host, port).ask_to_take_over(forced)

    def _failover_abandoned(self, was_replica: bool) -> None:
        self.config.choose_primary("")  # REPLICAOF in a transaction may have set it
        if was_replica:
            self.follow_no_primary()

    def _take_over(self, name: bytes) -> None:
        """The primary of this server, whose newest line is `name`, asks it to become the primary
        (FAILOVER). CommandError if it is a primary, or follows another one."""
        if not self.is_replica:
            raise CommandError("ERR PSYNC FAILOVER can't be sent to a master.")
        if not self.histories.newest or self.histories.newest.encode() != name:
            raise CommandError("ERR PSYNC FAILOVER replid must match my replid.")
        log.warning("a failover was requested by the primary")
        self.follow_no_primary()

    def _handover_changed(self) -> None:
        self.restrictions.update()
        self.executor.recheck_limits()

    def _resume(self) -> None:
        """The server that this one follows after its promotion is a replica of this one again."""
        assert self.link is not None
        log.warning("the promoted server %s follows this server again", self.link.address)
        self.follow_no_primary(is_independent=True)

    # The data of a replica

    def _link_lost(self) -> None:
        self.promotion.link_lost()
        self.relay.link_lost()
        self.restrictions.update()

    def _last_arrived(self, is_of_primary: bool) -> None:
        self.promotion.last_arrived(is_of_primary)
        self.relay.last_arrived(is_of_primary)

    def _received_message(self, channel: bytes, message: bytes, is_shard: bool) -> None:
        """The message goes to the subscribers here, and to the replicas of this server."""
        self.deliver(channel, message, is_shard=is_shard)
        self.feeds.publish(channel, message, self.persistence.commits.last_seq, is_shard=is_shard)

    def data_replaced(self) -> None:
        """The frames here were replaced or cut back: the replicas of this server ask again."""
        self.restrictions.hold_point.seq = 0
        self.feeds.drop_all("the data of this server was replaced")
        self.feeds.keep_backlog()

    def change_ended(self, is_whole: bool) -> None:
        """A full sync or rewind has ended, perhaps after a promotion."""
        if self.is_replica:
            self.restrictions.update()
        elif not is_whole and self.executor.loading:
            log.critical("the data could not be loaded: restart this server")
        elif self.standing.becomes_primary:
            self._promote()

    # The side of a primary

    def publish(self, channel: bytes, message: bytes, *, is_shard: bool = False) -> None:
        """Pass a message to the replicas, after the data that the publisher may have seen."""
        if self.feeds.by_client and not self.is_replica:
            shown_seq = self.persistence.commits.last_seq + bool(len(self.executor.effects))
            self.feeds.publish(channel, message, shown_seq, is_shard=is_shard)

    def applied_on(self, seq: int) -> int:
        """The number of replicas that have applied this frame, with those that are a Redis."""
        return self.feeds.applied_on(seq) + self.redis_feeds.applied_on(seq)

    def acknowledge_offset(self, client: Any, offset: int) -> None:
        """A Redis has applied its stream of commands up to this offset."""
        self.redis_feeds.acknowledge(client, offset)
        self.check_waits()

    def acknowledge(self, client: Any, told: Acknowledged) -> None:
        feed = self.feeds.by_client.get(client.id)
        if feed is not None and told.term == self.feeds.source.term:
            now_ms = self.machine.steady_clock()
            feed.acknowledge(told.applied, told.synced, told.frame_bytes, now_ms)
            self.check_waits()
            if self.failover.is_under_way:
                self._loop.call_soon(self.failover.check_acknowledged)
            self.restrictions.replica_acknowledged()


def new_receiver(role: Role, worker: TaskWorker) -> Receiver:
    """The data of a replica, loaded with the first order to follow another server."""
    from millstream.server.replication.receiver import Receiver

    return Receiver(
        role.config, role.machine, role.keyspace, role.persistence, role.executor, worker,
        on_published=role.data_replaced, on_changed=role.change_ended,
    )  # fmt: skip
