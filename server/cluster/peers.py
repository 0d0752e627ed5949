"""The other nodes of a cluster on many machines: their connections, and what they ask.

A connection between nodes begins with the secret of the cluster (`cluster_secret`).
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection

from millstream.commands.admin.cluster_peers import (
    LastFrame,
    PromiseRequest,
    ReturnRequest,
    SlotTargets,
)
from millstream.commands.runtime.context import Session
from millstream.errors import CommandError
from millstream.server.cluster.rare_warnings import RareWarnings
from millstream.server.replication.terms import Terms

WRONG_SECRET = (
    "ERR the secret is not that of this node: give all nodes of the cluster the same "
    "cluster-secret-file"
)
NO_SECRET = "LOADING this node has not read the secret of its cluster yet"


def _refuse(asked: ReturnRequest) -> None:
    raise CommandError("ERR this node does not know its cluster yet")


class Peers:
    """`secret()` is that of the cluster, b"" while it is not known. `check(asked)` refuses promises
    with CommandError. `describe()` says what this node knows of the cluster. `targets` are the
    links to shards that get slots of this one; None: no slots can move. `give_back(asked)` gives
    slots back to another shard, as `SlotMoving` does."""

    def __init__(
        self,
        secret: Callable[[], bytes],
        check: Callable[[PromiseRequest], object],
        terms: Terms,
        describe: Callable[[], bytes],
        targets: SlotTargets | None,
    ) -> None:
        self.targets = targets
        self._secret = secret
        self._check = check
        self._terms = terms
        self.describe = describe
        self._warnings = RareWarnings()
        self.give_back: Callable[[ReturnRequest], object] = _refuse
        self._admitted: set[int] = set()  # IDs of clients

    def admit(self, session: Session, secret: bytes) -> None:
        own = self._secret()
        if not own:
            raise CommandError(NO_SECRET)
        if not hmac.compare_digest(secret, own):
            self._warnings.warn(
                "secret",
                "a client at %s has sent another secret than that of this node: if it is a node of "
                "the cluster, give all nodes the same cluster-secret-file",
                session.address,
            )
            raise CommandError(WRONG_SECRET)
        self._admitted.add(session.id)

    @property
    def admitted(self) -> Collection[int]:
        """The IDs of the clients that are nodes."""
        return frozenset(self._admitted)

    def knows(self, session: Session) -> bool:
        return session.id in self._admitted

    def forget(self, session: Session) -> None:
        """A client has disconnected."""
        self._admitted.discard(session.id)

    def promise(self, asked: PromiseRequest) -> None:
        if asked.node != self._terms.node:
            raise CommandError(f"ERR this server is another node, {self._terms.node}")
        self._check(asked)
        self._terms.promise(asked.term)

    @property
    def is_promise_stored(self) -> bool:
        return self._terms.is_promise_stored

    def standing(self) -> LastFrame:
        return self._terms.standing()
