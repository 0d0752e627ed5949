"""FAILOVER: this primary and one of its replicas change their roles.

1. `waiting-for-sync`: writes are put off until the replica has applied the last frame; with
   `replicas-durable`, until it has that frame on its disk.
2. `failover-in-progress`: this server follows the replica, and asks it with PSYNC to become the
   primary. When the replica accepts, writes continue and are refused here (READONLY).

Nothing is lost, because no frame is made between the replica's last acknowledgement and its
promotion. With FORCE, step 2 follows at the timeout in any case.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.errors import CommandError
from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.execution.executor import Executor
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.handover import Handover
from millstream.server.replication.link_totals import LinkTotals
from millstream.server.replication.link_words import RETRY
from millstream.server.replication.standing import Standing

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed

log = logging.getLogger("millstream.replication")

NONE = "no-failover"
WAITING = "waiting-for-sync"
IN_PROGRESS = "failover-in-progress"
_PAUSE = "failover"


class Failover:
    """At most one at a time; `state` is what INFO shows. `follow(host, port, forced)` makes this
    server a replica of one that is to take over, `on_abandoned(was_replica)` a primary again."""

    def __init__(
        self,
        config: Config,
        machine: Machine,
        persistence: Persistence,
        executor: Executor,
        feeds: Feeds,
        standing: Standing,
        handover: Handover,
        *,
        totals: LinkTotals,
        follow: Callable[[str, int, bool], None],
        on_abandoned: Callable[[bool], None],
    ) -> None:
        self.config = config
        self.machine = machine
        self.persistence = persistence
        self.executor = executor
        self.feeds = feeds
        self.standing = standing
        self.handover = handover
        self.totals = totals
        self.follow = follow
        self.on_abandoned = on_abandoned
        self.state = NONE
        # None: the first replica that has everything.
        self._target: tuple[str, int] | None = None
        self._is_forced = False
        self._attempt = 0  # of which a timer is

    @property
    def is_under_way(self) -> bool:
        return self.state != NONE

    # FAILOVER

    def begin(self, target: tuple[str, int] | None, forced: bool, timeout_ms: int) -> None:
        """CommandError, in Redis' words, when it is impossible. `timeout_ms` 0: no limit."""
        if self.is_under_way:
            raise CommandError("ERR FAILOVER already in progress.")
        if self.standing.is_replica:
            raise CommandError("ERR FAILOVER is not valid when server is a replica.")
        if self.handover.is_under_way:
            raise CommandError(
                "ERR FAILOVER is not possible: a replica of this server is being promoted, or was."
            )
        if not len(self.feeds):
            raise CommandError("ERR FAILOVER requires connected replicas.")
        if forced and not (timeout_ms and target):
            raise CommandError(
                "ERR FAILOVER with force option requires both a timeout and target HOST and IP."
            )
        if target is not None:
            self._check(target)
        self._target, self._is_forced = target, forced
        self.state = WAITING
        self._attempt += 1
        self.executor.pauses.pause_writes(_PAUSE)
        if timeout_ms:
            self.machine.scheduler.call_later(timeout_ms / 1000, self._time_out, self._attempt)
        log.warning("a failover begins: writes are held back until a replica has all frames")
        self.machine.scheduler.call_soon(self.check_acknowledged)  # after the requests of this tick

    def _check(self, target: tuple[str, int]) -> None:
        feed = self.feeds.at(*target)
        if feed is None:
            raise CommandError("ERR FAILOVER target HOST and PORT is not a replica.")
        if not feed.is_online:
            raise CommandError("ERR FAILOVER target replica is not online.")

    def abort(self) -> None:
        """FAILOVER ABORT. CommandError when there is none."""
        if not self.is_under_way:
            raise CommandError("ERR No failover in progress.")
        self.give_up("it was aborted with FAILOVER ABORT")

    # Steps

    def check_acknowledged(self) -> None:
        """A replica has acknowledged something."""
        if self.state != WAITING:
            return
        self.persistence.commits.flush_tick()
        last_seq = self.persistence.commits.last_seq
        for feed in self._candidates():
            if self._has_all(feed, last_seq):
                self._proceed(feed)
                return

    def _has_all(self, feed: Feed, last_seq: int) -> bool:
        """True if the replica may become the primary. With replicas-durable it has the frames on
        its disk: it may be lost as soon as it is the primary, and come back."""
        if self.config.replicas_durable and feed.synced_seq < last_seq:
            return False
        return feed.acked_seq >= last_seq

    def _candidates(self) -> list[Feed]:
        if self._target is None:
            return [feed for feed in self.feeds if feed.is_online]
        feed = self.feeds.at(*self._target)
        return [feed] if feed is not None and feed.is_online else []

    def check_candidates(self) -> None:
        """Once a second: without a replica there is nothing to wait for."""
        if self.state == WAITING and not self._is_forced and not self._candidates():
            self.give_up("the replica is no longer online")

    def _proceed(self, feed: Feed) -> None:
        log.warning("the replica %s has all frames: it becomes the primary", feed.address)
        self._follow(feed.host, feed.port, forced=False)

    def _follow(self, host: str, port: int, forced: bool) -> None:
        self.state = IN_PROGRESS
        self.follow(host, port, forced)

    def _time_out(self, attempt: int) -> None:
        if self.state != WAITING or attempt != self._attempt:
            return
        if self._is_forced and self._target is not None:
            log.warning("the failover is forced: the replica may lack frames of this server")
            self._follow(*self._target, forced=True)
        else:
            self.give_up("no replica had all frames in time")

    def replica_promoted(self) -> None:
        """REPLICAOF NO ONE was sent to a replica: another one may not become a primary, too."""
        if self.state == WAITING:
            self.give_up("a replica is promoted in another way")

    def accepted(self) -> None:
        """The replica has answered as a primary."""
        if self.state == IN_PROGRESS:
            log.warning("the failover is complete")
            self._end()

    def refused(self, text: str) -> bool:
        """The replica has refused; whether that ends a failover. It does not if the replica is or
        may be the primary already: there would be two."""
        if self.state != IN_PROGRESS or text.startswith((RETRY, "LOADING", "BUSY")):
            return False
        self.give_up(f"the replica refuses: {text}")
        return True

    def give_up(self, reason: str) -> None:
        """This server is the primary as before."""
        self.totals.last_error = f"the failover was abandoned: {reason}"
        log.warning("%s", self.totals.last_error)
        was_replica = self.state == IN_PROGRESS
        self._end()
        self.on_abandoned(was_replica)

    def _end(self) -> None:
        self.state = NONE
        self._target = None
        self.executor.pauses.resume_writes(_PAUSE)
