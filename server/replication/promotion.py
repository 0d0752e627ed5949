"""REPLICAOF NO ONE while the link to the primary is up: first the primary's last frames arrive.

1. The replica tells its primary that it is being promoted. With `replicas-durable`, the primary
   refuses writes from then on, and sends no reply that waits for replicas (`Restrictions`).
2. The primary sends the frames that are durable there, and then the record LAST.
3. The replica applies them, and becomes the primary.

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

_SILENCE_S = 1.5  # of the primary; a working one sends a beat each second
_WAIT_MAX_S = 10  # shorter than the time for which the primary confirms nothing


class Promotion:
    """At most one at a time. `was_complete`: the last one had everything that was confirmed."""

    def __init__(self, role: Replication) -> None:
        self.was_complete = False
        self._role = role
        self._following: Following | None = None
        self._began_ms = 0
        self._replicaof = ""  # the directive, in case the promotion is refused

    @property
    def is_under_way(self) -> bool:
        return self._following is not None

    def begin(self, following: Following, replicaof: str) -> None:
        """The link is up. If a promotion is under way already, it continues."""
        if self._following is following:
            return
        self._following, self._replicaof = following, replicaof
        self.was_complete = False
        self._began_ms = self._role.node.steady_ms()
        log.warning("this server is being promoted: it asks its primary for the last frames")
        following.say_promoting()
        self._role.node.loop.call_later(_SILENCE_S, self._check, following)

    def end(self) -> None:
        """The role has changed, or another primary was chosen."""
        self._following = None
        self._role.node.check_waits()

    def has_all(self) -> None:
        """Every frame that the primary has confirmed has arrived."""
        self._finish_soon("")

    def link_lost(self) -> None:
        self._finish_soon("the link was lost")

    def _check(self, following: Following) -> None:
        """Wait for a primary that sends something, but not for ever."""
        if self._following is not following:
            return
        now_ms = self._role.node.steady_ms()
        is_silent = now_ms - following.heard_ms >= _SILENCE_S * 1000
        if is_silent or now_ms - self._began_ms >= _WAIT_MAX_S * 1000:
            self._finish(following, "it did not say so in time")
        else:
            self._role.node.loop.call_later(_SILENCE_S, self._check, following)

    def _finish_soon(self, why_incomplete: str) -> None:
        """In a turn of its own: the link is in the middle of what it received."""
        if self._following is not None:
            self._role.node.loop.call_soon(self._finish, self._following, why_incomplete)

    def _finish(self, following: Following, why_incomplete: str) -> None:
        if self._following is not following:
            return
        self.was_complete = not why_incomplete
        if why_incomplete:
            log.warning(
                "not all frames of the primary %s:%d may have arrived (%s): this server may lack"
                " frames that were confirmed",
                following.host, following.port, why_incomplete,
            )  # fmt: skip
        try:
            self._role.follow_no_primary()
        except CommandError as error:
            self._role.node.config.replicaof = self._replicaof
            log.error("this server remains a replica: %s", error.message)
            self.end()
