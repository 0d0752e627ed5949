"""Refusals of this server because of its role, and the replies that wait for replicas.

A replica refuses writes, and without a link perhaps reads, too. A primary refuses writes while it
has too few good replicas; with replicas-durable its replies wait until enough of them have a frame
on their disks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.server.execution.executor import Executor
from millstream.server.replication.feeds import Feeds
from millstream.server.replication.handover import Handover
from millstream.server.replication.standing import Standing

log = logging.getLogger("millstream.replication")

READONLY = "READONLY You can't write against a read only replica."
MASTERDOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
NOREPLICAS = "NOREPLICAS Not enough good replicas to write."


class HoldPoint:
    """The frames that replicas have made durable, for replies that wait for replicas. `seq` is
    the last frame that enough replicas have on their disks. It never goes back: frames
    stay on the disks of replicas that disconnect. In a shard, frames before `least`, the first one
    of the primary's term, do not count alone: another election may lose them. While
    `shows_unconfirmed`, new replies do not wait: writes are refused (`confirming`)."""

    def __init__(self) -> None:
        self.seq = 0
        self.least = 0
        self.shows_unconfirmed = False

    def reach(self, seq: int) -> bool:
        """Advance to a frame; return whether that allows more replies to be sent."""
        if seq <= self.seq or seq < self.least:
            return False
        self.seq = seq
        return True


if TYPE_CHECKING:

    class Confirming(Protocol):
        """The restrictions of a member of a shard (`confirming`)."""

        def update(self) -> None: ...
        def acknowledged(self) -> None:
            """A replica has acknowledged something."""


class Restrictions:
    """`update` sets them on the executor and the outbox, from the role as it is now. `confirming`
    does that in place of this object for a member of a shard."""

    def __init__(
        self,
        config: Config,
        persistence: Persistence,
        executor: Executor,
        feeds: Feeds,
        standing: Standing,
        handover: Handover,
    ) -> None:
        self.config = config
        self.persistence = persistence
        self.executor = executor
        self.feeds = feeds
        self.standing = standing
        self.handover = handover
        self.hold_point = HoldPoint()
        self._held_for = 0  # the number of replicas for which replies wait
        # The log names refusals of a primary: not before its role is known, and not while it stops.
        self.reports = False
        self._reported_lack = False
        self.confirming: Confirming | None = None

    def update(self) -> None:
        """Refuse the commands that the role forbids at present."""
        if self.confirming is not None:
            self.confirming.update()
            return
        link = self.standing.link
        is_down = link is not None and not link.is_connected
        is_stale = is_down and not self.config.replica_serve_stale_data
        is_wrong = link is not None and self.standing.receiver.is_wrong
        stale = MASTERDOWN if is_stale or is_wrong else None
        self.executor.admission.set_role(self._refusal(), stale)
        self.count_good_replicas()

    def _refusal(self) -> str | None:
        """The reason to refuse writes: on a replica, a server that was promoted while its data is
        replaced, and a primary that knows of another one."""
        if self.standing.is_replica or self.standing.becomes_primary:
            return READONLY
        return self.handover.refusal()

    def begin_primary(self) -> None:
        """This server becomes a primary: no replica has confirmed any of its frames. Replies that
        waited only for the disk here are sent, also if the loop is about to be told of a sync:
        Sentinel waits for the reply to its transaction before it gives this server replicas."""
        if self.confirming is not None:
            return
        outbox = self.executor.outbox
        if outbox.hold_point is None:
            outbox.durable(self.persistence.commits.on_disk_seq)
        self.hold_point.seq = 0

    def count_good_replicas(self) -> None:
        """Refuse writes while there are too few, and hold replies for as many as are wanted."""
        if self.confirming is not None:
            self.confirming.update()
            return
        config, outbox = self.config, self.executor.outbox
        is_replica = self.standing.is_replica
        durable = 0 if is_replica else config.replicas_durable
        if durable != self._held_for:
            self._held_for = durable
            if not self.handover.is_under_way:
                self.hold_point.seq = 0
            outbox.hold_point = self.hold_point if durable else None
        if not is_replica:
            self.release_replies()
        feeds, wanted = self.feeds, 0 if is_replica else config.min_replicas_to_write
        lacks = feeds.good_count() < wanted or feeds.good_count(least_synced_seq=0) < durable
        if is_replica:
            self._reported_lack = False
        elif self.reports and lacks != self._reported_lack:
            self._report(lacks, max(wanted, durable))
        self.executor.admission.set_lack_of_replicas(NOREPLICAS if lacks else None)

    def _report(self, lacks: bool, wanted: int) -> None:
        self._reported_lack = lacks
        if lacks:
            log.warning(
                "writes are refused with NOREPLICAS: too few replicas are connected and acknowledge"
                " what they get (wanted: %d, online: %d)",
                wanted, sum(feed.is_online for feed in self.feeds),
            )  # fmt: skip
        else:
            log.warning("writes are accepted: they are not refused for lack of replicas any more")

    def replica_acknowledged(self) -> None:
        """A replica may have become good, or have more on its disk than before."""
        if self.confirming is not None:
            self.confirming.acknowledged()
            return
        if self.config.replicas_durable and not self.standing.is_replica:
            self.release_replies()
        if self.executor.admission.lacks_replicas is not None:
            self.count_good_replicas()

    def release_replies(self) -> None:
        """Release the replies that waited for replicas' disks, as far as these are now."""
        wanted = self.config.replicas_durable
        if wanted and self.handover.is_under_way:
            return
        if (wanted and self.hold_point.reach(self.feeds.nth_synced(wanted))) or not wanted:
            self.executor.outbox.durable(self.persistence.commits.durable_seq)
            self.feeds.pump_if_any()

    @property
    def safe_seq(self) -> int:
        """The last frame that replies may show."""
        durable_seq: int = self.persistence.commits.durable_seq
        hold_point = self.executor.outbox.hold_point
        return durable_seq if hold_point is None else min(durable_seq, hold_point.seq)
