"""What this server refuses at present because of its role, and which replies wait for replicas.

A replica refuses writes, and without a link perhaps reads, too. A primary refuses writes while it
has too few good replicas; with replicas-durable its replies wait until enough of them have a frame
on their disks.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.server.execution.hold_point import HoldPoint

if TYPE_CHECKING:
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")

READONLY = "READONLY You can't write against a read only replica."
MASTERDOWN = "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
NOREPLICAS = "NOREPLICAS Not enough good replicas to write."


class Restrictions:
    """`update` sets them on the executor and the outbox, from the role as it is now."""

    def __init__(self, role: Replication) -> None:
        self.hold_point = HoldPoint()
        self._role = role
        self._node = role.node
        self._held_for = 0  # the number of replicas for which replies wait

    def update(self) -> None:
        """Refuse what has to be refused at present."""
        role, executor, config = self._role, self._node.executor, self._node.config
        following = role.following
        executor.read_only = self._refusal()
        is_down = following is not None and not following.is_connected
        is_stale = is_down and not config.replica_serve_stale_data
        is_distrusted = following is not None and following.is_distrusted
        executor.admission.stale = MASTERDOWN if is_stale or is_distrusted else None
        self.count_good_replicas()

    def _refusal(self) -> str | None:
        """Why writes are refused: by a replica, a server that was promoted while its data is being
        replaced, and a primary that knows of another one."""
        if self._role.following is not None or self._role.promotes_when_loaded:
            return READONLY
        return self._role.handover.refusal()

    def begin_primary(self) -> None:
        """This server becomes a primary: no replica has confirmed any of its frames. Replies that
        waited only for the disk here are sent, also if the loop is about to be told of a sync:
        Sentinel waits for the reply to its transaction before it gives this server replicas."""
        outbox = self._node.executor.outbox
        if outbox.hold_point is None:
            outbox.durable(self._node.persistence.on_disk_seq)
        self.hold_point.seq = 0

    def count_good_replicas(self) -> None:
        """Refuse writes while there are too few, and hold replies for as many as are wanted."""
        config, outbox = self._node.config, self._node.executor.outbox
        is_replica = self._role.following is not None
        durable = 0 if is_replica else config.replicas_durable
        if durable != self._held_for:
            self._held_for = durable
            if not self._role.handover.is_under_way:
                self.hold_point.seq = 0
            outbox.hold_point = self.hold_point if durable else None
        if not is_replica:
            self.release_replies()
        feeds, wanted = self._role.feeds, 0 if is_replica else config.min_replicas_to_write
        lacks = feeds.good_count() < wanted or feeds.good_count(least_synced_seq=0) < durable
        if not is_replica and lacks != (self._node.executor.lacks_replicas is not None):
            self._report(lacks, max(wanted, durable))
        self._node.executor.lacks_replicas = NOREPLICAS if lacks else None

    def _report(self, lacks: bool, wanted: int) -> None:
        if lacks:
            log.warning(
                "writes are refused with NOREPLICAS: too few replicas are connected and acknowledge"
                " what they get (wanted: %d, online: %d)",
                wanted, sum(feed.is_online for feed in self._role.feeds),
            )  # fmt: skip
        else:
            log.warning("writes are accepted: they are not refused for lack of replicas any more")

    def replica_acknowledged(self) -> None:
        """A replica may have become good, or have more on its disk than before."""
        if self._node.config.replicas_durable and self._role.following is None:
            self.release_replies()
        if self._node.executor.lacks_replicas is not None:
            self.count_good_replicas()

    def release_replies(self) -> None:
        """Release the replies that waited for replicas' disks, as far as these are now."""
        wanted = self._node.config.replicas_durable
        if wanted and self._role.handover.is_under_way:
            return
        if (wanted and self.hold_point.reach(self._role.feeds.nth_synced(wanted))) or not wanted:
            self.on_durable(self._node.persistence.durable_seq)

    def on_durable(self, seq: int) -> None:
        """The journal is durable up to this frame: release the replies that may show it."""
        outbox = self._node.executor.outbox
        outbox.durable(seq if outbox.hold_point is None else min(seq, self.hold_point.seq))
        if self._role.feeds.by_client:
            self._role.feeds.pump_soon()

    @property
    def safe_seq(self) -> int:
        """The last frame that replies may show."""
        durable_seq = self._node.persistence.durable_seq
        held = self._node.executor.outbox.hold_point is not None
        return min(durable_seq, self.hold_point.seq) if held else durable_seq
