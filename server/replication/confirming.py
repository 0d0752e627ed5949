"""Confirming replies in a shard: those that a member sends, and the requests that it refuses.

A reply is confirmed when no election loses what it shows. With N >= 1 (`durable`), that is when N
other members have the frame on their disks, in the term of the primary and with its first frame.
With N = 0, the primary confirms while it has its lease. The replicas hold their replies, too: the
primary tells them the number of the last frame that is confirmed.

Requests are refused with CLUSTERDOWN before they run while this server may not confirm; the reply
of a request that has run is held. With N >= 1, a primary without members that acknowledge serves
reads as long as it has its lease, if all of its frames are confirmed: another primary, elected
meanwhile, has everything that these reads show.

If reads are allowed anyway (cluster-allow-reads-when-down), they run, and their replies are not
held. Those of earlier writes still are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field

from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.executor import Executor
from millstream.server.execution.slot_check import DOWN, DOWN_TO_WRITES
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.standing import Standing
from millstream.server.replication.write_refusals import READONLY, HoldPoint

log = logging.getLogger("millstream.replication")

ALL_FRAMES = 2**62  # a number above that of any frame


class Lease:
    """The hold of a primary without members that confirm: replies are sent before `until_ms` on the
    clock of leases."""

    def __init__(self, lease_ms: Callable[[], int]) -> None:
        self.until_ms = 0
        self.shows_unconfirmed = False
        self._lease_ms = lease_ms

    @property
    def is_valid(self) -> bool:
        return self._lease_ms() < self.until_ms

    @property
    def seq(self) -> int:
        """The last frame that replies may show now; read before each send."""
        return ALL_FRAMES if self.is_valid else 0


class Suspension:
    """A time for which this process or this machine did not run, so long that its members may have
    elected another primary: what they had sent before says nothing about that. `look` is called a
    few times in the node timeout. `is_over` is false until enough members have linked again."""

    def __init__(self, lease_ms: Callable[[], int], node_timeout_ms: Callable[[], int]) -> None:
        self._lease_ms = lease_ms
        self._node_timeout_ms = node_timeout_ms
        self.begin()

    def begin(self) -> None:
        """This server becomes the primary."""
        self._looked_ms = self._lease_ms()
        self.is_over = True

    def look(self) -> bool:
        """True if one has ended just now."""
        before_ms, self._looked_ms = self._looked_ms, self._lease_ms()
        if self._looked_ms - before_ms < self._node_timeout_ms():
            return False
        self.is_over = False
        return True


class MemberHold:
    """The hold of a primary with members that confirm."""

    def __init__(self, confirming: Confirming) -> None:
        self._confirming = confirming
        self.shows_unconfirmed = False

    @property
    def seq(self) -> int:
        """The last frame that replies may show now; read before each send."""
        confirming = self._confirming
        confirming.look_at_time()
        if confirming.serves_reads:  # only
            is_shown = confirming.lease.is_valid
        else:
            is_shown = confirming.suspension.is_over
        return confirming.hold_point.seq if is_shown else 0


@dataclass(eq=False, repr=False)
class Confirming:
    """`durable`: the number of other members that must have a frame; None: no order has arrived.
    `is_leading`: this server is the primary of a term, whose first frame is written. `lease_ms` is
    a clock that also runs while the machine is suspended. `is_down`: requests are refused, but
    not reads if `serves_reads`, because this primary has its lease, and members that do not
    acknowledge."""

    machine: Machine
    persistence: Persistence
    executor: Executor
    feeds: Feeds
    standing: Standing
    hold_point: HoldPoint
    node_timeout_ms: Callable[[], int]
    lease_ms: Callable[[], int]
    _: KW_ONLY
    durable: int | None = field(default=None, init=False)
    is_leading: bool = field(default=False, init=False)
    has_left: bool = field(default=False, init=False)  # its shard: it serves nothing
    requires_lease: bool = field(default=False, init=False)  # also without other members
    serves_reads: bool = field(default=False, init=False)
    is_down: bool = field(default=False, init=False)
    _told_seq: int = field(default=0, init=False)  # the last confirmed frame of the primary
    _stored_ms: int = field(default=0, init=False)  # when the journal of a primary last worked

    def __post_init__(self) -> None:
        self.lease = Lease(self.lease_ms)
        self.suspension = Suspension(self.lease_ms, self.node_timeout_ms)
        self._member_hold = MemberHold(self)
        self._ends_links = False  # soon
        self._allows_reads = False
        self._is_to_show = False  # soon
        self.when_reads_are_shown: Callable[[], object] = lambda: None
        self.when_confirmed: Callable[[], object] = lambda: None  # more frames
        self._limit_seq = ALL_FRAMES

    # Orders

    def set_size(self, durable: int, members: frozenset[str]) -> None:
        """`members` are the others, so far as this server knows them."""
        self.durable = self.feeds.durable = durable
        self.feeds.members = members
        self.feeds.source.needs_disk = durable > 0

    def prepare(self) -> None:
        """This server becomes the primary. Frames of earlier terms are confirmed with its first
        frame only."""
        self.has_left = False
        self.hold_point.least = ALL_FRAMES

    def begin(self, first_seq: int) -> None:
        """The first frame of the term is written."""
        self.is_leading = True
        self._limit_seq = ALL_FRAMES
        self.suspension.begin()
        self._stored_ms = self.machine.steady_clock()
        self.hold_point.least = first_seq
        self.feeds.source.confirmed_seq = self.hold_point.seq if self.durable else 0
        self.update()

    def end(self) -> None:
        """This server is not the primary any more, or follows another one."""
        self.is_leading = False
        self.serves_reads = False
        self._told_seq = 0
        self.feeds.source.term = self.feeds.source.confirmed_seq = 0
        self.hold_point.least = self.lease.until_ms = 0

    def leave(self) -> None:
        """This server is no member of its shard any more, so no reply here is ever confirmed. The
        connections with held replies end. New replies show no data and do not wait."""
        self.executor.close_held()
        self.has_left = True
        self.update()

    def extend_lease(self, until_ms: int) -> None:
        self.lease.until_ms = until_ms
        if self.durable == 0:
            self.update()
            self.executor.outbox.durable(self.persistence.commits.durable_seq)
        elif self.is_down:
            self.update()

    def limit(self, seq: int) -> bool:
        """Confirm no frame after this one until `end_limit`. False without members that confirm:
        then nothing is limited."""
        is_limited = self.is_leading and bool(self.durable)
        if is_limited:
            self._limit_seq = seq
        return is_limited

    def end_limit(self) -> None:
        self._limit_seq = ALL_FRAMES
        if self.is_leading:
            self._release()

    def allow_reads(self, are_allowed: bool) -> None:
        """Let reads run while this server may not confirm, or refuse them."""
        if are_allowed is not self._allows_reads:
            self._allows_reads = are_allowed
            self.update()

    # What may be confirmed

    @property
    def members(self) -> int:
        """The number of other members with a recent acknowledgement in this term."""
        return self.feeds.good_count(least_synced_seq=0, max_lag_ms=self.node_timeout_ms())

    def may_confirm(self) -> bool:
        """True if requests may run: their replies are probably sent soon."""
        if not self.is_leading or self.durable is None:
            return False
        if self.durable:
            has_first = self.hold_point.seq >= self.hold_point.least
            is_stored = self.persistence.commits.on_disk_seq >= 0
            has_members = self.members >= self.durable and self.suspension.is_over
            return has_first and is_stored and has_members
        return not self._needs_lease or self.lease.is_valid

    def _may_read(self) -> bool:
        """True if reads may run that no member confirms: they show only what is confirmed."""
        last_seq = self.persistence.commits.last_seq
        has_all = self.hold_point.seq >= max(self.hold_point.least, last_seq)
        return bool(self.durable) and has_all and self.lease.is_valid

    @property
    def _needs_lease(self) -> bool:
        """True if there may be other members, none of which has to confirm."""
        return self.durable == 0 and bool(self.requires_lease or self.feeds.members)

    def look_at_time(self) -> None:
        """End the links after a suspension: members with a later primary do not link again."""
        if self.is_leading and self.durable and self.suspension.look() and not self._ends_links:
            self._ends_links = True
            self.machine.scheduler.call_soon(self._end_links)

    def _end_links(self) -> None:
        self._ends_links = False
        if self.is_leading:
            for feed in self.feeds:
                feed.drop("this server did not run for a while, and asks its members again")
            self.update()

    def _look_at_members(self) -> None:
        """Continue after a suspension, if enough members have linked since."""
        if self._ends_links or self.suspension.is_over:
            return
        if self.durable is not None and self.members >= self.durable:
            self.suspension.is_over = True
            self.executor.outbox.durable(self.persistence.commits.durable_seq)

    def _lacks_confirmations(self) -> bool:
        """On a replica: true if a reply could have to wait until there is a primary."""
        link, receiver = self.standing.link, self.standing.receiver
        if self.has_left or self.durable is None or link is None or receiver.is_wrong:
            return True
        last_seq = self.persistence.commits.last_seq
        return self.durable > 0 and self.hold_point.seq < last_seq and not link.is_connected

    # The results

    def update(self) -> None:
        """Refuse what the role forbids at present, and hold what is not confirmed."""
        self._take_told()
        self.look_at_time()
        outbox = self.executor.outbox
        is_down = not self.may_confirm() if self.is_leading else self._lacks_confirmations()
        before = outbox.hold_point, self.serves_reads
        self.serves_reads = self.is_leading and is_down and self._may_read()
        if before[1] and is_down and not self.serves_reads:
            self.suspension.is_over = False  # reads that ran before wait for members
        outbox.hold_point = self._hold()
        if before != (outbox.hold_point, self.serves_reads):
            outbox.durable(self.persistence.commits.durable_seq)
        admission = self.executor.admission
        shows_all = self._shows_all(is_down)
        refusal = (DOWN_TO_WRITES if shows_all else DOWN) if is_down else None
        stale = None if self.serves_reads or shows_all else refusal
        admission.set_role(refusal if self.is_leading else READONLY, stale)
        admission.set_lack_of_replicas(None)
        if (is_down, self.serves_reads) != (self.is_down, before[1]):
            self.is_down = is_down
            self._report()
        if self.is_leading and self.durable:
            self._release()  # the journal here may have been the last disk
            self.feeds.pump_if_any()
            self._look_at_journal()

    def _shows_all(self, is_down: bool) -> bool:
        """True if reads run that may show what is not confirmed. They begin to do so soon, when the
        replies of all writes that have run are held."""
        is_wrong = self.has_left or self.standing.receiver.is_wrong
        is_allowed = is_down and self._allows_reads and not is_wrong
        if not is_allowed:
            self._show_all(False)
        elif not self.hold_point.shows_unconfirmed and not self._is_to_show:
            self._is_to_show = True
            self.machine.scheduler.call_soon(self._begin_to_show)
        return self.hold_point.shows_unconfirmed

    def _begin_to_show(self) -> None:
        self._is_to_show = False
        self.executor.end_tick()
        self.executor.outbox.flush()
        if self.is_down and self._allows_reads:
            self._show_all(True)
            self.when_reads_are_shown()
            self.update()

    def _show_all(self, is_shown: bool) -> None:
        for hold in (self.hold_point, self.lease, self._member_hold):
            hold.shows_unconfirmed = is_shown

    def _look_at_journal(self) -> None:
        """A primary whose journal has failed confirms nothing, so it falls silent after the node
        timeout: another member takes over."""
        now_ms = self.machine.steady_clock()
        if self.persistence.commits.on_disk_seq >= 0:
            self._stored_ms = now_ms
        elif now_ms - self._stored_ms > self.node_timeout_ms():
            self.feeds.drop_all("the journal of this server does not work")

    def _hold(self) -> HoldPoint | MemberHold | Lease | None:
        if self.has_left:
            return None
        if self.durable is None or self.durable > 0:
            return self._member_hold if self.is_leading and self.durable else self.hold_point
        return self.lease if self.is_leading and self._needs_lease else None

    def _report(self) -> None:
        if self.is_leading and self.is_down:
            log.warning(
                "%s are refused with CLUSTERDOWN: this server may not confirm (members that must"
                " acknowledge: %d, that do: %d)",
                "writes" if self.serves_reads else "requests", self.durable, self.members,
            )  # fmt: skip
        elif self.is_leading:
            log.warning("requests are accepted: this server may confirm")
            self.executor.check_due()

    def acknowledged(self) -> None:
        """A replica has acknowledged something."""
        if not self.is_leading:
            return
        self.look_at_time()
        if self.durable:
            self._look_at_members()
            self._release()
        if self.is_down:
            self.update()

    def _release(self) -> None:
        """Send the replies that are confirmed now, and tell the replicas. The disk here counts in
        addition to those of the members, so a journal that has failed confirms nothing."""
        if not self.durable:
            return
        limit_seq = min(self.persistence.commits.on_disk_seq, self._limit_seq)
        if self.hold_point.reach(min(self.feeds.nth_synced(self.durable), limit_seq)):
            self.feeds.source.confirmed_seq = self.hold_point.seq
            self.executor.outbox.durable(self.persistence.commits.durable_seq)
            self.feeds.tell_confirmed()
            self.when_confirmed()

    def confirmed(self, seq: int) -> None:
        """On a replica: its primary says that the frames up to this one are confirmed. They are
        not those here while a full sync replaces the data."""
        self._told_seq = seq
        self._take_told()

    def _take_told(self) -> None:
        link = self.standing.link
        if link is not None and link.is_connected and self.hold_point.reach(self._told_seq):
            self.executor.outbox.durable(self.persistence.commits.durable_seq)
