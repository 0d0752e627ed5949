"""The other nodes of a cluster on many machines: their connections, and what they ask.

A connection between nodes begins with the secret that all nodes have.
"""

from __future__ import annotations

import hmac

from millstream.commands.admin.cluster_peers import LastFrame
from millstream.commands.runtime.context import Session
from millstream.errors import CommandError, shown
from millstream.server.replication.terms import Terms

WRONG_SECRET = "ERR the secret is not that of this cluster"


class Peers:
    """`shard` is the name of the one of which this server is a member."""

    def __init__(self, secret: bytes, shard: str, terms: Terms) -> None:
        if not secret:
            raise ValueError("an empty secret would admit everybody")
        self.shard = shard
        self._secret = secret
        self._terms = terms
        self._admitted: set[int] = set()  # IDs of clients

    def admit(self, session: Session, secret: bytes) -> None:
        if not hmac.compare_digest(secret, self._secret):
            raise CommandError(WRONG_SECRET)
        self._admitted.add(session.id)

    def knows(self, session: Session) -> bool:
        return session.id in self._admitted

    def forget(self, session: Session) -> None:
        """A client has disconnected."""
        self._admitted.discard(session.id)

    def promise(self, shard: bytes, term: int) -> None:
        if shard != self.shard.encode():
            raise CommandError(f"ERR this server is no member of shard {shown(shard)}")
        self._terms.promise(term)

    @property
    def is_promise_stored(self) -> bool:
        return self._terms.is_promise_stored

    def standing(self) -> LastFrame:
        return self._terms.standing()
