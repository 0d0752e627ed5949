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
from typing import TYPE_CHECKING

from millstream.errors import CommandError

if TYPE_CHECKING:
    from millstream.server.replication.following import Following
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")

# Of the primary. A working one sends a beat each second.
SILENCE_MS = 3000
# From the request to the promotion, at most.
WAIT_MAX_MS = 10_000
# For so long the primary confirms nothing after the request, if it hears nothing more.
PROMOTING_MS = 15_000
_CHECK_MS = 500
_LATE_MS = 1000  # a check that is later: this server was suspended

assert WAIT_MAX_MS + 2 * (_CHECK_MS + _LATE_MS) < PROMOTING_MS


class Promotion:
    """Of this server; at most one at a time. `was_complete`: the last one had everything that the
    primary had confirmed."""

    def __init__(self, role: Replication) -> None:
        self.was_complete = False
        self._role = role
        self._node = role.node
        self._following: Following | None = None
        self._began_ms = 0
        self._due_ms = 0  # when the next check is due
        self._has_arrived = False
        self._was_marked = False
        self._may_connect = False
        self._replicaof = ""  # the directive, in case the promotion is refused

    @property
    def is_under_way(self) -> bool:
        return self._following is not None

    def begin(self, following: Following, replicaof: str) -> None:
        """The link is up. If a promotion is under way already, it continues."""
        if self._following is following:
            return
        self._following, self._replicaof = following, replicaof
        self._may_connect = True
        self._was_marked = following.is_of_handover
        following.mark(is_of_handover=False)
        self.was_complete = False
        log.warning("this server is being promoted: it asks its primary for the last frames")
        self._ask(following)

    def end(self) -> None:
        """The role has changed, or is not to change any more."""
        following, self._following = self._following, None
        if following is None:
            return
        if self._role.following is following:
            following.say_promoting(is_over=True)
            following.mark(self._was_marked)
        self._node.check_waits()

    # What happens on the link

    def linked(self) -> None:
        """The link is up again."""
        if self._following is not None:
            self._ask(self._following)

    def link_lost(self) -> None:
        """Try once to connect again: the primary may work."""
        following = self._following
        if following is None or self._has_arrived:
            return
        if self._may_connect and not following.is_distrusted:
            self._may_connect = False
            self._node.loop.call_soon(self._role.connect, following)
        else:
            self._node.loop.call_soon(self._finish, following, "the link was lost")

    def last_arrived(self, is_of_primary: bool) -> None:
        """The record LAST; False: from a server that is a replica itself, whose primary may have
        confirmed more."""
        following = self._following
        if following is None:
            return
        if self._is_old():
            self._ask(following)
        elif is_of_primary:
            self._has_arrived = True
            self._node.loop.call_soon(self.check_stored)  # the link is in the middle of its input
        else:
            self._node.loop.call_soon(self._finish, following, "it is a replica itself")

    def check_stored(self) -> None:
        """More may be on the disk. Without the frames there, a promoted server that loses its power
        would lose what others had confirmed."""
        following, frames = self._following, self._node.persistence
        if following is None or not self._has_arrived or self._is_old():
            return
        following.applier.apply_all()
        if self._following is not following:
            return
        stored_seq = frames.on_disk_seq  # -1: the journal has failed
        if not self._node.config.appendonly or stored_seq >= frames.last_seq:
            if not self._was_marked or self._role.acceptance.is_stored:
                self._finish(following, "")
        elif stored_seq >= 0:
            frames.sync_soon()

    # Time

    def _ask(self, following: Following) -> None:
        """Ask the primary for its last frames; it confirms nothing from now on."""
        self._began_ms = self._node.steady_ms()
        self._has_arrived = False
        following.say_promoting()
        self._check_later(following)

    def _is_old(self) -> bool:
        """Whether the request was so long ago that the primary may have confirmed more since."""
        return self._node.steady_ms() - self._began_ms > WAIT_MAX_MS

    def _check_later(self, following: Following) -> None:
        self._due_ms = self._node.steady_ms() + _CHECK_MS
        self._node.loop.call_later(_CHECK_MS / 1000, self._check, following, self._due_ms)

    def _check(self, following: Following, due_ms: int) -> None:
        """Wait while the primary sends something, for WAIT_MAX_MS at most."""
        if self._following is not following or self._due_ms != due_ms:
            return
        self.check_stored()  # a journal that had failed may work again
        now_ms = self._node.steady_ms()
        if self._following is not following:
            return
        if now_ms - due_ms > _LATE_MS:
            self._ask(following)  # what was sent meanwhile is not read yet, or is old
        elif now_ms - following.heard_ms >= SILENCE_MS and not self._has_arrived:
            self._finish(following, "it is silent")
        elif now_ms - self._began_ms >= WAIT_MAX_MS:
            disk = "they could not be stored in time"
            self._finish(following, disk if self._has_arrived else "it did not send them in time")
        else:
            self._check_later(following)

    def _finish(self, following: Following, why_incomplete: str) -> None:
        if self._following is not following:
            return
        self.was_complete = not why_incomplete
        if why_incomplete:
            log.warning(
                "the last frames of the primary %s:%d may be missing: %s",
                following.host, following.port, why_incomplete,
            )  # fmt: skip
        try:
            self._role.follow_no_primary()
            self._role.announce(following)
        except CommandError as error:
            self._role.remain_replica(self._replicaof, error)
        finally:
            self.end()
