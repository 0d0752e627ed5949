"""The elections that a member of a shard asks for, without I/O: when one is due, and its
transactions.

| transaction | when | then |
|---|---|---|
| STAND | an election is due | the members are asked for promises (`election`) |
| CHOOSE | enough have promised | the chosen member leads the new term |
| GIVE_UP | the shard has changed, or too few have promised in time | another attempt, later |

A node that is the primary in the store and cannot lead that term stands for election at once: it
was restarted, or has promised a higher term. A member that has promised a higher term than that of
the store can follow a primary only in a higher one still.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from millstream.commands.admin.cluster_peers import LastFrame, Reason
from millstream.server.cluster.cluster_view import ClusterView, Found
from millstream.server.cluster.election import (
    ANSWERS_MS,
    Election,
    needed_promises,
    needs_lease,
)
from millstream.server.cluster.member_actions import Action, Address, Data, Purpose
from millstream.server.cluster.member_lease import MemberLease
from millstream.server.cluster.store.records import (
    ELECTION,
    LEASE,
    SHARD,
    Holder,
    NodeRecord,
    ShardRecord,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare

log = logging.getLogger("millstream.cluster")


class ShardMember(Protocol):
    """The member that asks (`membership.Member`). `changed_ms`: when its term or part changed."""

    id: str
    data: Data
    lease: MemberLease
    node_timeout_ms: int
    view: ClusterView | None
    shard: str
    led_term: int
    changed_ms: int
    is_announced: bool
    known: dict[str, NodeRecord]
    actions: list[Action]

    @property
    def record(self) -> ShardRecord | None: ...
    @property
    def is_leading(self) -> bool: ...
    @property
    def is_following(self) -> bool: ...
    @property
    def may_write(self) -> bool: ...
    def address_of(self, node: str) -> Address | None: ...
    def write(self, purpose: Purpose, compares: list[Compare], changes: list[Change]) -> None: ...


class Candidacy(NamedTuple):
    """An election that this node has asked for, with the versions that its end has to find."""

    election: Election
    version: int
    shard: Found[ShardRecord]


class Candidate:
    """`elections` counts those that this node has asked for. `asked_term` is the highest term that
    another member has asked for. `reason` is SILENCE unless an operator wants this node to be the
    primary."""

    def __init__(self) -> None:
        self.elections = 0
        self.asked_term = 0
        self.reason = Reason.SILENCE
        self._candidacy: Candidacy | None = None
        self._standing_for: tuple[int, Found[ShardRecord]] | None = None  # until it is written
        self._next_try_ms = 0
        self._heard_ms = 0  # when the followed primary was heard
        self._is_lease_seen = False  # that of the primary, in this term

    @property
    def has_election(self) -> bool:
        """True while promises for an election of this node are collected."""
        return self._candidacy is not None

    # Events

    def note_holders(self, holders: Mapping[str, object], shard: str, *, is_new_term: bool) -> None:
        """The store has these primaries with their leases."""
        self._is_lease_seen = shard in holders or (self._is_lease_seen and not is_new_term)

    def note_lead(self) -> None:
        """This node begins to lead a term."""
        self.asked_term, self.reason = 0, Reason.SILENCE

    def wait_until(self, next_try_ms: int) -> None:
        """Ask for no election before."""
        self._next_try_ms = next_try_ms

    def chosen(self) -> None:
        """The transaction that names the new primary has ended."""
        self._candidacy = None

    def promised(self, node: str, term: int, standing: LastFrame | None) -> None:
        """The answer of a member; None: it has refused, or has not answered."""
        if self._candidacy is not None:
            self._candidacy.election.promised(node, term, standing)

    # Time

    def look(self, member: ShardMember, now_ms: int) -> None:
        """Do what is due."""
        view, candidacy = member.view, self._candidacy
        assert view is not None
        if candidacy is None:
            if member.may_write and self._is_due(member, view, now_ms):
                self._stand(member, view)
            elif member.may_write:
                _withdraw(member, view)
            return
        found = view.shards.get(member.shard)
        is_late = now_ms - candidacy.election.begun_ms > member.node_timeout_ms
        if found is None or found.version != candidacy.shard.version or is_late:
            self._give_up(member, candidacy, now_ms)
            return
        chosen = candidacy.election.look(now_ms)
        if chosen is not None and member.may_write:
            _choose(member, view, candidacy, chosen)

    def _is_due(self, member: ShardMember, view: ClusterView, now_ms: int) -> bool:
        record = member.record
        if record is None or now_ms < self._next_try_ms or not member.lease.is_valid(now_ms):
            return False
        if not member.is_announced:
            return False
        if record.primary == member.id and member.is_leading:
            self.reason = Reason.SILENCE
            # A member has promised a higher term, and can follow only one that is higher still.
            return self.asked_term > member.led_term + 1
        if _is_known(member, view, record):
            return False
        if self.reason is not Reason.SILENCE or record.primary == member.id:
            return True
        is_late = now_ms - member.changed_ms >= member.node_timeout_ms
        if not record.primary:
            return len(record.members) >= max(1, needed_promises(record.size, record.durable))
        if member.data.promised > record.term and is_late:
            return True  # it cannot follow the primary, which learns that from the request
        if needs_lease(record):
            return member.shard not in view.holders and (self._is_lease_seen or is_late)
        return self._is_primary_silent(member, view, record, now_ms)

    def _is_primary_silent(
        self, member: ShardMember, view: ClusterView, record: ShardRecord, now_ms: int
    ) -> bool:
        """True if the primary was stopped, or was not heard for the node timeout."""
        silence_ms = member.data.silence_ms() if member.is_following else None
        if silence_ms is None and record.primary not in view.nodes:
            return True  # it has ended its lease and its links
        if silence_ms is not None:
            self._heard_ms = max(self._heard_ms, now_ms - silence_ms)
        return now_ms - max(self._heard_ms, member.changed_ms) >= member.node_timeout_ms

    # Transactions

    def _stand(self, member: ShardMember, view: ClusterView) -> None:
        """Ask for an election. The store has one candidate at a time, which only saves work."""
        found, other = view.shards[member.shard], view.candidates.get(member.shard)
        known = [found.record.term, member.data.promised, self.asked_term]
        term = max(*known, other.record.term if other is not None else 0) + 1
        self.elections += 1
        self._standing_for = term, found
        name = ELECTION + member.shard
        compares = [
            Compare(SHARD + member.shard, found.version),
            Compare(name, 0 if other is None else other.version),
        ]
        change = Change(name, encode(Holder(member.id, term)), member.lease.id)
        member.write(Purpose.STAND, compares, [change])

    def begin(self, member: ShardMember, version: int, now_ms: int) -> None:
        """The store has this node as the candidate, in this version."""
        assert self._standing_for is not None
        term, found = self._standing_for
        record = found.record
        log.warning(
            "an election of shard %s begins: this node asks for term %d", member.shard, term
        )
        addresses = {one: member.address_of(one) or ("", 0) for one in record.members}
        needed = needed_promises(record.size, record.durable)
        is_forced = self.reason is Reason.FORCE and record.primary != member.id
        if is_forced and 0 < needed < len(addresses):
            addresses.pop(record.primary, None)  # it may have frames that no other member has
        is_ordered = self.reason is not Reason.SILENCE
        near = frozenset() if is_ordered else _in_zone_of(record.primary, member.known)
        election = Election(
            member.id, term, needed, addresses,
            self.reason, record.primary, near,
            now_ms, min(ANSWERS_MS, member.node_timeout_ms // 2), member.actions.append,
        )  # fmt: skip
        self.reason = Reason.SILENCE
        self._candidacy = Candidacy(election, version, found)

    def _give_up(self, member: ShardMember, candidacy: Candidacy, now_ms: int) -> None:
        """End an election: the shard has changed, or too few members have promised in time."""
        if member.may_write:
            self._candidacy = None
            self._next_try_ms = now_ms + member.node_timeout_ms // 4
            _remove_election(member, candidacy.version)


def _is_known(member: ShardMember, view: ClusterView, record: ShardRecord) -> bool:
    """True if another member has asked for an election of this shard, and lives. One that has left
    cannot end its election."""
    found = view.candidates.get(member.shard)
    return (
        found is not None
        and found.record.node in set(record.members) - {member.id}
        and found.record.term > record.term
    )


def _in_zone_of(primary: str, known: Mapping[str, NodeRecord]) -> frozenset[str]:
    """The nodes in the same zone as this one, if it has named one."""
    found = known.get(primary)
    zone = "" if found is None else found.zone
    return frozenset(node for node, one in known.items() if zone and one.zone == zone)


def _choose(member: ShardMember, view: ClusterView, candidacy: Candidacy, chosen: str) -> None:
    """Write the new primary, if neither the shard nor the election has changed. Without N, the
    lease of the old primary must have ended, or that one must have promised."""
    election, found = candidacy.election, candidacy.shard
    record = found.record._replace(term=election.term, primary=chosen)
    shard, own, lease = (kind + member.shard for kind in (SHARD, ELECTION, LEASE))
    compares = [Compare(shard, found.version), Compare(own, candidacy.version)]
    changes = [Change(shard, encode(record)), Change(own, None)]
    if needs_lease(record):
        held = view.holders.get(member.shard)
        has_promised = held is not None and held.record.node in election.promises
        compares.append(Compare(lease, held.version if held and has_promised else 0))
        changes += [Change(lease, None)] if has_promised else []
    member.write(Purpose.CHOOSE, compares, changes)


def _withdraw(member: ShardMember, view: ClusterView) -> None:
    """Remove an election of this node that is over: the removal was lost, or the process."""
    found = view.candidates.get(member.shard)
    if found is not None and found.record.node == member.id:
        _remove_election(member, found.version)


def _remove_election(member: ShardMember, version: int) -> None:
    name = ELECTION + member.shard
    member.write(Purpose.GIVE_UP, [Compare(name, version)], [Change(name, None)])
