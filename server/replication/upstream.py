"""The servers above this one: its primary, the primary of that one, and so on. Finds rings.

A server has an ID as long as it runs. It tells its replicas the IDs of the servers above them:
first its own, then those that its primary has told it. A server that finds its own ID among them is
part of a ring of servers that follow each other: none of them is a primary, although each link may
work.
"""

from __future__ import annotations

import logging
import re

log = logging.getLogger("millstream.replication")

_ID = re.compile(r"[0-9a-f]{16}")
_IDS_MAX = 64  # a larger ring is not found


class Upstream:
    """`ring` is the sentence about a ring; "" without one. `new_id` are random hexadecimal
    digits."""

    def __init__(self, new_id: str) -> None:
        self.ring = ""
        self._id = new_id[:16]
        self._above: tuple[str, ...] = ()

    def told(self, has_primary: bool) -> bytes:
        """The IDs for a replica. They end with the first one that is there twice."""
        ids = [self._id]
        for one in self._above if has_primary else ():
            ids.append(one)
            if one in ids[:-1] or len(ids) == _IDS_MAX:
                break
        return " ".join(ids).encode()

    def learn(self, ids: tuple[str, ...], primary: str) -> None:
        """The primary at this address has told these IDs. A new ring is logged, and its end."""
        self._above = ids
        ring = self._find_ring(primary)
        if ring == self.ring:
            return
        self.ring = ring
        if ring:
            log.error("%s", ring)
        else:
            log.warning("the servers do not follow each other in a ring any more")

    def forget(self) -> None:
        """This server follows another primary from now on, or none."""
        self._above, self.ring = (), ""

    def _find_ring(self, primary: str) -> str:
        ids = self._above
        if self._id in ids:
            servers = ids.index(self._id) + 1
            if servers == 1:
                return (
                    f"this server follows itself ({primary}), so it has no primary and refuses"
                    " writes. Send it REPLICAOF NO ONE, or the address of another server"
                )
            return (
                f"{servers} servers follow each other in a ring, so none of them is a primary and"
                f" all refuse writes. This server is one of them and follows {primary}. Send"
                " REPLICAOF NO ONE to the one that is to be the primary"
            )
        if len(set(ids)) < len(ids):
            return (
                f"the primary {primary} of this server, or a server above it, is in a ring of"
                " servers that follow each other: none of them is a primary. Send REPLICAOF NO ONE"
                " to the one that is to be the primary"
            )
        return ""


def parse_ids(text: str) -> tuple[str, ...]:
    """The result of `Upstream.told`; ValueError for anything else."""
    ids = tuple(text.split(" "))
    if len(ids) > _IDS_MAX or not all(map(_ID.fullmatch, ids)):
        raise ValueError(f"{text[:80]!r} are not the IDs of servers")
    return ids
