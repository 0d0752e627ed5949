"""The election of a primary, at the member that asks for it.

The candidate asks the other members for a promise of its term, and itself last: until then it can
still follow the old primary. M - N promises are enough, because each frame that was confirmed is on
N + 1 of the M members, so at least one of those that promised has it. The greatest (term, number)
among them therefore has all that was confirmed, and that member is chosen, not always the
candidate. Of several, it is one in the zone of a lost primary, near its clients, and otherwise the
candidate. Promises are no votes: two candidates may have promises of the same term, and the store
lets one of their transactions through.

Without N, no frame has to be on another member. The candidate then waits for a second, and takes
the best of those that have answered. A member that has never had the data of the shard is not
chosen then: the primary would replace its data with nothing. CLUSTER FAILOVER FORCE allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from millstream.commands.admin.cluster_peers import LastFrame, Reason
from millstream.server.cluster.member_actions import Address, AskPromise
from millstream.server.cluster.store.records import ShardRecord

ASK_AGAIN_MS = 200
HANDOVER_MS = 1000  # until the primary has to have promised after a FAILOVER
ANSWERS_MS = 1000  # without N: the time to wait for the other members


@dataclass(eq=False, repr=False)
class Election:
    """`needed` promises decide it; 0: those that are there after `wait_ms`. `addresses` are those
    of all members, with the candidate. `order` receives the requests. After a FAILOVER, `primary`
    is asked before the others, which follow it until then. `near` are the members in its zone."""

    candidate: str
    term: int
    needed: int
    addresses: dict[str, Address]
    reason: Reason
    primary: str
    near: Collection[str]
    begun_ms: int
    wait_ms: int
    order: Callable[[AskPromise], None]
    promises: dict[str, LastFrame] = field(default_factory=dict, init=False)
    _asked_ms: dict[str, int] = field(default_factory=dict, init=False)

    def promised(self, node: str, term: int, standing: LastFrame | None) -> None:
        """A member has answered; None: it has refused, or could not be reached."""
        if term == self.term and standing is not None and node in self.addresses:
            self.promises[node] = standing

    def look(self, now_ms: int) -> str | None:
        """Ask those that have not promised yet; return the chosen member once it is certain."""
        if self._waits_for_primary(now_ms):
            self._ask(self.primary, now_ms)
            return None
        others = [node for node in self.addresses if node != self.candidate]
        missing = [node for node in others if node not in self.promises]
        if self._is_own_due(len(others), len(missing), now_ms):
            if self.candidate in self.promises and self._may_end():
                return self._best()
            missing.append(self.candidate)
        for node in missing:
            self._ask(node, now_ms)
        return None

    def _waits_for_primary(self, now_ms: int) -> bool:
        """True while only the primary is asked: it stops, so that the candidate has all frames."""
        is_asked = self.reason is Reason.FAILOVER and self.primary in self.addresses
        return (
            is_asked and self.primary not in self.promises and now_ms - self.begun_ms < HANDOVER_MS
        )

    def _is_own_due(self, others: int, missing: int, now_ms: int) -> bool:
        """True if only the promise of the candidate may be missing."""
        if self.needed:
            return others - missing >= self.needed - 1
        return not missing or now_ms - self.begun_ms >= self.wait_ms

    def _may_end(self) -> bool:
        """True if the best member can be the primary. Without N, one that has never had the data
        can be only the first one, or if an operator orders that."""
        is_first = not self.primary or self.reason is Reason.FORCE
        return bool(self.needed or is_first or self.promises[self._best()].term)

    def _ask(self, node: str, now_ms: int) -> None:
        asked_ms = self._asked_ms.get(node)
        if asked_ms is None or now_ms - asked_ms >= ASK_AGAIN_MS:
            self._asked_ms[node] = now_ms
            self.order(AskPromise(node, self.addresses[node], self.term, self.reason))

    def _best(self) -> str:
        """The member with the greatest (term, number); of several, one in the zone of the primary,
        and then the candidate."""

        def rank(node: str) -> tuple[int, int, bool, bool, str]:
            standing = self.promises[node]
            is_near, is_candidate = node in self.near, node == self.candidate
            return standing.term, standing.number, is_near, is_candidate, node

        return max(self.promises, key=rank)


def needed_promises(wanted: int, durable: int) -> int:
    """The number of members that must promise, of a shard with this number of members, where each
    confirmed frame is on this number of them besides the primary; 0: see above."""
    if durable == 0 and wanted > 1:
        return 0
    return wanted - durable


def needs_lease(record: ShardRecord) -> bool:
    """True if only a lease keeps two primaries apart: no frame has to be on another member."""
    return record.durable == 0 and record.size > 1
