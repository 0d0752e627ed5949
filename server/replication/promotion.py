"""REPLICAOF NO ONE while the link to the primary is up: first the primary's last frames arrive.

1. The replica tells its primary that it is being promoted (`REPLCONF promoting 1`). The primary
   refuses writes from then on (`Handover`).
2. The primary sends its last frames, and then the record LAST.
3. The replica applies and stores them, becomes the primary, and tells the old one (`REPLCONF
   promoted`, repeated by an `Announcement`), which follows it.

So this server has every frame that the primary has confirmed, and the primary confirms nothing that
this server lacks. A primary that is silent is not waited for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.errors import CommandError
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import Machine
from millstream.server.replication.accepting_primary import Acceptance
from millstream.server.replication.history import Histories
from millstream.server.replication.standing import Late, Standing

if TYPE_CHECKING:
    from millstream.server.replication.announcement import Announcement
    from millstream.server.replication.link import Link

log = logging.getLogger("millstream.replication")

# Of the primary. A working one sends a beat each second.
SILENCE_MS = 3000
# From the request to the promotion, at most.
WAIT_MAX_MS = 10_000
# The time for which the primary confirms nothing after the request, without a further message.
PROMOTING_MS = 15_000
_CHECK_MS = 500
_LATE_MS = 1000  # a check that is later: this server was suspended

assert WAIT_MAX_MS + 2 * (_CHECK_MS + _LATE_MS) < PROMOTING_MS


class Promotion:
    """Of this server; at most one at a time. `was_complete`: the last one had everything that the
    primary had confirmed.

    `become_primary` changes the role, `on_refused(replicaof, error)` is called when that is
    impossible, `on_end` when the promotion has ended in any way.
    """

    def __init__(
        self,
        machine: Machine,
        persistence: Persistence,
        histories: Histories,
        acceptance: Acceptance,
        standing: Standing,
        late: Late,
        *,
        become_primary: Callable[[], None],
        on_refused: Callable[[str, CommandError], None],
        on_end: Callable[[], None],
    ) -> None:
        self.machine = machine
        self.persistence = persistence
        self.histories = histories
        self.acceptance = acceptance
        self.standing = standing
        self._late = late
        self.become_primary = become_primary
        self.on_refused = on_refused
        self.on_end = on_end
        self.was_complete = False
        self._link: Link | None = None
        self._began_ms = 0
        self._due_ms = 0  # when the next check is due
        self._has_arrived = False
        self._was_marked = False
        self._may_connect = False
        self._announcement: Announcement | None = None
        self._replicaof = ""  # the directive, in case it is refused

    @property
    def is_under_way(self) -> bool:
        return self._link is not None

    def begin(self, link: Link, replicaof: str) -> None:
        """The link is up. If a promotion is under way already, it continues."""
        if self._link is link:
            return
        self._link, self._replicaof = link, replicaof
        self._may_connect = True
        self._was_marked = link.is_of_handover
        link.mark(is_of_handover=False)
        self.was_complete = False
        log.warning("this server is being promoted: it asks its primary for the last frames")
        self._ask(link)

    def end(self) -> None:
        """The role has changed, or is not to change any more."""
        link, self._link = self._link, None
        if link is None:
            return
        if self.standing.link is link:
            link.say_promoting(is_over=True)
            link.mark(self._was_marked)
        self.on_end()

    def stop(self) -> None:
        """This server follows another primary, or stops."""
        self.end()
        if self._announcement is not None:
            self._announcement.stop()

    def announce(self, host: str, port: int) -> None:
        """Tell the old primary, unless this server follows it already."""
        if not self.standing.is_replica:
            from millstream.server.replication.announcement import Announcement

            self.histories.require_line()  # it divides later frames from old ones
            self._announcement = Announcement(
                host, port, self._late.connector, self.machine, self.persistence, self._announced
            )

    def _announced(self) -> None:
        self._announcement = None

    def tick_second(self) -> None:
        if self._announcement is not None:
            self._announcement.tick_second()

    # Events on the link

    def linked(self) -> None:
        """The link is up again."""
        if self._link is not None:
            self._ask(self._link)

    def link_lost(self) -> None:
        """Try once to connect again: the primary may work."""
        link = self._link
        if link is None or self._has_arrived:
            return
        if self._may_connect and not self.standing.receiver.is_wrong:
            self._may_connect = False
            self.machine.scheduler.call_soon(link.connect)
        else:
            self.machine.scheduler.call_soon(self._finish, link, "the link was lost")

    def last_arrived(self, is_of_primary: bool) -> None:
        """The record LAST; False: from a server that is a replica itself, whose primary may have
        confirmed more."""
        link = self._link
        if link is None:
            return
        if self._is_old():
            self._ask(link)
        elif is_of_primary:
            self._has_arrived = True  # the link is in the middle of its input
            self.machine.scheduler.call_soon(self.check_stored)
        else:
            self.machine.scheduler.call_soon(self._finish, link, "it is a replica itself")

    def check_stored(self) -> None:
        """More may be on the disk. Without the frames there, a promoted server that loses its power
        would lose what others had confirmed."""
        link, commits = self._link, self.persistence.commits
        if link is None or not self._has_arrived or self._is_old():
            return
        self.standing.receiver.apply_all()
        if self._link is not link:
            return
        stored_seq = commits.on_disk_seq  # -1: the journal has failed
        if not self.persistence.appendonly or stored_seq >= commits.last_seq:
            if not self._was_marked or self.acceptance.is_stored:
                self._finish(link, "")
        elif stored_seq >= 0:
            commits.sync_soon()

    # Time

    def _ask(self, link: Link) -> None:
        """Ask the primary for its last frames; it confirms nothing from now on."""
        self._began_ms = self.machine.steady_clock()
        self._has_arrived = False
        link.say_promoting()
        self._check_later(link)

    def _is_old(self) -> bool:
        """True if the request was so long ago that the primary may have confirmed more since."""
        return self.machine.steady_clock() - self._began_ms > WAIT_MAX_MS

    def _check_later(self, link: Link) -> None:
        self._due_ms = self.machine.steady_clock() + _CHECK_MS
        self.machine.scheduler.call_later(_CHECK_MS / 1000, self._check, link, self._due_ms)

    def _check(self, link: Link, due_ms: int) -> None:
        """Wait while the primary sends something, for WAIT_MAX_MS at most."""
        if self._link is not link or self._due_ms != due_ms:
            return
        self.check_stored()  # a journal that had failed may work again
        now_ms = self.machine.steady_clock()
        if self._link is not link:
            return
        if now_ms - due_ms > _LATE_MS:
            self._ask(link)  # frames sent meanwhile are not read yet, or are old
        elif now_ms - link.heard_ms >= SILENCE_MS and not self._has_arrived:
            self._finish(link, "it is silent")
        elif now_ms - self._began_ms >= WAIT_MAX_MS:
            disk = "they could not be stored in time"
            self._finish(link, disk if self._has_arrived else "it did not send them in time")
        else:
            self._check_later(link)

    def _finish(self, link: Link, why_incomplete: str) -> None:
        if self._link is not link:
            return
        self.was_complete = not why_incomplete
        if why_incomplete:
            log.warning(
                "the last frames of the primary %s may be missing: %s", link.address, why_incomplete
            )
        try:
            self.become_primary()
            self.announce(link.host, link.port)
        except CommandError as error:
            self.on_refused(self._replicaof, error)
        finally:
            self.end()
