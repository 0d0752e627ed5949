"""A replica with replicas of its own passes their promotions on to its primary.

If such a replica is promoted (REPLICAOF NO ONE), this server does not confirm writes: its primary
does. So this server asks it for its last frames, and reports the promotion. This server remains a
replica.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from millstream.server.replication.records import encode_last

if TYPE_CHECKING:
    from millstream.server.replication.feed import Feed
    from millstream.server.replication.role import Replication

log = logging.getLogger("millstream.replication")


class Relay:
    """For the replicas of this server that are being promoted."""

    def __init__(self, role: Replication) -> None:
        self._role = role
        self._node = role.node
        self._feeds: dict[str, Feed] = {}  # by address; those that wait for the record LAST
        self._asked: set[str] = set()  # addresses; the primary has sent its last frames for them

    def begin(self, feed: Feed) -> None:
        """The replica is being promoted. It gets what is here if there is no primary to ask:
        without a link, and in a ring of servers, where the request would go round for ever."""
        following = self._role.following
        self._feeds[feed.address] = feed
        is_in_ring = bool(self._role.upstream.ring) or self._role.is_promoting
        if following is not None and following.is_connected and not is_in_ring:
            following.say_promoting()
        else:
            self._send_last(is_of_primary=False)

    def last_arrived(self, is_of_primary: bool) -> None:
        """The record LAST of the primary, after its last frames."""
        if self._feeds:
            self._node.loop.call_soon(self._send_last, is_of_primary)  # this is in the input

    def link_lost(self) -> None:
        self._node.loop.call_soon(self._send_last, False)

    def _send_last(self, is_of_primary: bool) -> None:
        if self._role.following is not None:
            self._role.following.applier.apply_all()
        feeds, self._feeds = self._feeds, {}
        if is_of_primary:
            self._asked.update(feeds)
        for feed in feeds.values():
            feed.send_last(encode_last(is_primary=is_of_primary), self._node.persistence.last_seq)

    def promoted(self, host: str, port: int, has_all: bool) -> None:
        """The replica is a primary."""
        following, address = self._role.following, f"{host}:{port}"
        if address not in self._asked or following is None:
            return
        self._asked.discard(address)
        log.warning("the replica %s was promoted: the primary has to know", address)
        if has_all:
            following.say_successor(host, port)

    def abandon(self, address: str) -> None:
        """The replica with this address remains a replica, or is one again."""
        if self._feeds.pop(address, None) is None and address not in self._asked:
            return
        self._asked.discard(address)
        if self._role.following is not None:
            self._role.following.say_promoting(is_over=True)

    def clear(self) -> None:
        """This server has another role."""
        self._feeds.clear()
        self._asked.clear()
