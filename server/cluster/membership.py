"""The decisions of a member of a shard, without I/O: which node it follows, and when it is the
primary.

Events come in: the contents of the store, outcomes of transactions, promises of members, and the
time. Orders go out (`member_actions`). The same code decides in a server and in the simulation
(tests/sim/member_world).

| part | meaning | until |
|---|---|---|
| RESTING | it knows no primary that it may follow | there is one, perhaps itself |
| FOLLOWING | it is a replica of the primary of a term | another primary, or a promise |
| LEADING | it is the primary of a term | another primary, or a promise |

The store names another primary, or this node has promised a higher term than that of the store.

A node that is the primary in the store and cannot lead that term stands for election at once: it
was restarted, or has promised a higher term.

If the store does not answer a node that was restarted, and N members have to confirm, the node
takes part with what it has seen last: it leads the same term again, or follows the primary of that
term. Members that have promised a higher term do not confirm then. The primary has all frames that
it had sent, so (term, number) still says what is newer.

A member refuses its promise while it hears the primary, and a primary while its members confirm: a
member that alone has lost its link does not end a primary that works. If it has promised a higher
term before, it cannot follow that primary any more. The primary learns the term from the request,
and stands for a higher one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, auto

from millstream.commands.admin.cluster_peers import LastFrame, Reason
from millstream.server.cluster.cluster_view import ClusterView, Found, addresses_after
from millstream.server.cluster.election import ANSWERS_MS, Election, needed_promises
from millstream.server.cluster.member_actions import (
    Action,
    Address,
    Data,
    Follow,
    Lead,
    Purpose,
    ReadAgain,
    Rest,
    Write,
)
from millstream.server.cluster.member_lease import MemberLease
from millstream.server.cluster.reshaping import Reshaping
from millstream.server.cluster.slot_moves.move_judge import MoveJudge
from millstream.server.cluster.slot_moves.move_rules import are_moves_older
from millstream.server.cluster.store.records import (
    ELECTION,
    LEASE,
    SHARD,
    Holder,
    NodeRecord,
    ShardRecord,
    encode,
)
from millstream.server.cluster.store.store import Change, Commit, Compare

log = logging.getLogger("millstream.cluster")


class Part(Enum):
    RESTING = auto()
    FOLLOWING = auto()
    LEADING = auto()


class Candidacy:
    """An election that this node has asked for, with the versions that its end has to find."""

    def __init__(self, election: Election, version: int, shard: Found[ShardRecord]) -> None:
        self.election = election
        self.version = version
        self.shard = shard


@dataclass(eq=False, repr=False)
class Member:
    """`actions` are the orders that the caller has to carry out, and to remove. `view` is what the
    store said last, and `shard` the name of the own shard in it; "" without one. `is_store_old`:
    the store has an older state than this node has seen, for example that of a backup, and is not
    believed. `elections` counts those that this node has asked for, `followed` is the last order to
    follow a primary. `known` has the nodes that the store has, and the members whose lease has
    ended. `is_announced`: the store has had the address of this node. Before, another one may have
    the same ID, so this one takes no part. `seen` is what the store had when this node ran last,
    and `is_recalled`: it is the view now. `is_kept`: what the store has would be seen again.
    `moves` decides about moves of slots. `stopped` are transactions that do not begin, for tests.
    """

    id: str
    data: Data
    lease: MemberLease
    node_timeout_ms: int
    _: KW_ONLY
    uses_tls: bool = False  # for links (tls-replication)
    actions: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.part = Part.RESTING
        self.view: ClusterView | None = None
        self.seen: ClusterView | None = None
        self.shard = ""
        self.is_reachable = self.is_lost = False  # the store: it answers, it does not answer
        self.is_store_old = False
        self.is_announced = False
        self.is_recalled = False
        self.is_kept = True
        self.elections = 0
        self.led_term = 0
        self.writing: Purpose | None = None
        self._is_outdated = False  # the view: a transaction has ended since
        self.known: dict[str, NodeRecord] = {}
        self.followed: Follow | None = None
        self.ordered_members: tuple[str, ...] = ()
        self.moves: MoveJudge | None = None
        self.stopped: Collection[Purpose] = ()
        self._reshaping = Reshaping()
        self._changed_ms = 0  # when the term or the part changed
        self._heard_ms = 0  # when the followed primary was heard
        self._is_lease_seen = False  # that of the primary, in this term
        self._candidacy: Candidacy | None = None
        self._standing_for: tuple[int, Found[ShardRecord]] | None = None  # until it is written
        self._next_try_ms = self._next_order_ms = 0
        self._asked_term = 0  # the highest one that a member has asked for
        self._reason = Reason.SILENCE  # an operator's order to be the primary is another one
        # The key of the primary with its lease: as this node has ordered it, and as it is there.
        self._ordered_hold: tuple[Holder, int] | None = None
        self._hold: tuple[Holder, int] | None = None

    # Events

    def take(self, view: ClusterView, now_ms: int) -> None:
        """The store has these contents now. `is_kept` is to be set after it."""
        self.is_reachable, self.is_lost = True, False
        self._is_outdated = self.is_kept = False
        self._note_age(self._is_old(view))
        if not self.is_store_old:
            before = self.record
            self.view, self.is_recalled = view, False
            self.shard = view.shard_of(self.id) or ""
            shards = (found.record for found in view.shards.values())
            self.known = addresses_after(self.known, view, shards)
            self._note_term(before, view, now_ms)
        self.look(now_ms)

    def lose(self) -> None:
        """The store cannot be reached."""
        self.is_reachable, self.is_lost = False, True

    def recall(self, own: NodeRecord) -> None:
        """The store does not answer this node, which was restarted and has this address: take part
        with what it has seen, if members have to confirm. These reach it at the address that it
        had, so a copy of its data directory takes no part."""
        seen = self.seen
        if seen is None or (name := seen.shard_of(self.id)) is None:
            return
        found, before = seen.shards[name], seen.nodes.get(self.id)
        record, address = found.record, (own.host, own.port)
        if before is None or (before.record.host, before.record.port) != address:
            return
        if not record.durable:
            return
        order = seen.changes.get(name)
        if order is not None and order.record.remove != record.primary:  # it may have left
            staying = tuple(one for one in record.members if one != order.record.remove)
            record = record._replace(members=staying)
        shards = {**seen.shards, name: found._replace(record=record)}
        self.view = seen._replace(shards=shards, nodes={}, changes={})
        self.shard = self.view.shard_of(self.id) or ""
        self.known.update({node: one.record for node, one in seen.nodes.items()})
        self.is_recalled = self.is_announced = True
        log.warning(
            "etcd does not answer: this node takes part in shard %s as it was in term %d",
            name, record.term,
        )  # fmt: skip

    def written(self, purpose: Purpose, commit: Commit | None, now_ms: int) -> None:
        """The outcome of a transaction; None: it is unknown. The contents after it follow."""
        self.writing = None
        self._is_outdated = True
        is_done = commit is not None and commit.done
        if purpose is Purpose.STAND and is_done:
            assert commit is not None
            self._begin_election(commit.revision, now_ms)
        elif purpose is Purpose.CHOOSE:
            self._candidacy = None
        elif purpose is Purpose.HOLD and is_done:
            self._hold = self._ordered_hold  # this node may have another lease by now
        self.actions.append(ReadAgain())

    def promised(self, node: str, term: int, standing: LastFrame | None, now_ms: int) -> None:
        """The answer of a member to the request of its promise; None: it has refused, or has not
        answered."""
        if self._candidacy is not None:
            self._candidacy.election.promised(node, term, standing)
            self.look(now_ms)

    def refusal_of(self, candidate: str, term: int, reason: Reason, now_ms: int) -> str:
        """The reason to refuse a promise of this term; "" if there is none."""
        record = self.record
        if record is None:
            return "this node is not a member of a shard"
        if not self.is_announced:
            return "etcd has not the address of this node yet"
        if self.is_store_old:
            return "this node knows a later state of etcd"
        known = max(record.term, self._last_term())
        if term <= known or term < self.data.promised:
            return f"this node knows the term {max(known, self.data.promised)}"
        if reason is not Reason.SILENCE or candidate == record.primary:
            return ""
        self._asked_term = max(self._asked_term, term)
        if self.is_leading and self.may_serve(now_ms):
            return "this node is the primary, and can confirm"
        silence_ms = self.data.silence_ms()
        is_heard = silence_ms is not None and silence_ms <= self.node_timeout_ms // 2
        has_lease = self.view is not None and self.shard in self.view.holders
        if self.part is Part.FOLLOWING and is_heard and (has_lease or not needs_lease(record)):
            return "this node hears the primary"
        return ""

    def stand(self, reason: Reason, now_ms: int) -> None:
        """An operator wants this node to be the primary."""
        self._reason = reason
        self.look(now_ms)

    def order_failed(self, now_ms: int) -> None:
        """The last order to lead or to follow was not carried out: it is repeated later."""
        self._change_part(Part.RESTING, now_ms)
        self._next_order_ms = self._next_try_ms = now_ms + self.node_timeout_ms // 4

    # What the server asks

    @property
    def record(self) -> ShardRecord | None:
        """That of the own shard."""
        return self.view.shards[self.shard].record if self.view and self.shard else None

    @property
    def term(self) -> int:
        """The term that this node leads or follows; 0 if there is none."""
        if self.part is Part.LEADING:
            return self.led_term
        return self.followed.term if self.part is Part.FOLLOWING and self.followed else 0

    @property
    def is_leading(self) -> bool:
        return self.part is Part.LEADING and self.data.promised <= self.led_term

    @property
    def is_candidate(self) -> bool:
        return self._candidacy is not None

    def may_confirm(self, now_ms: int) -> bool:
        """True if replies of this node may leave it, as far as the lease decides that. With N, the
        members on whose disks a frame has to be decide it."""
        if self.record is None or not self.is_leading:
            return False
        return not self.needs_lease or now_ms < self.held_until_ms()

    def held_until_ms(self) -> int:
        """Until then, the store has this primary with its lease; 0: it has not."""
        holds = self._hold == (Holder(self.id, self.led_term), self.lease.id)
        return self.lease.until_ms if holds and self.lease.id and self.is_leading else 0

    @property
    def needs_lease(self) -> bool:
        """True if only the lease keeps a second primary away; also while other members are ordered
        for the only one, which may not learn in time that they were written."""
        record = self.record
        if record is None or self.view is None:
            return False
        return needs_lease(record) or (record.durable == 0 and self.shard in self.view.changes)

    def may_serve(self, now_ms: int) -> bool:
        """True if requests may run: this node is the primary, as its lease shows, or its members'
        acknowledgements."""
        record = self.record
        if record is None or not self.may_confirm(now_ms):
            return False
        return (
            record.size == 1
            or now_ms < self.held_until_ms()
            or self.data.confirming_members() >= record.durable > 0
        )

    def is_election_known(self) -> bool:
        """True if another member has asked for an election of this shard, and lives. One that has
        left cannot end its election."""
        found = self.view.candidates.get(self.shard) if self.view else None
        record = self.record
        return (
            found is not None
            and record is not None
            and found.record.node in set(record.members) - {self.id}
            and found.record.term > record.term
        )

    def _last_term(self) -> int:
        """The term of the last frame on the disk."""
        standing = self.data.standing()
        return 0 if standing is None else standing.term

    def address_of(self, node: str) -> Address | None:
        """The address for links to a node; None if it is not known."""
        record = self.known.get(node)
        if record is None:
            return None
        with_tls = self.uses_tls and record.tls_port
        return record.host, record.tls_port if with_tls else record.port

    # The contents of the store

    def _is_old(self, view: ClusterView) -> bool:
        """True if the store has lost terms or steps of moves that this node has seen, or terms that
        it has on its disk."""
        # The recalled view lacks a member that may have left.
        seen = self.seen if self.is_recalled or self.view is None else self.view
        if seen is not None and _is_earlier(view, seen):
            return True
        own = view.shard_of(self.id)
        return own is not None and view.shards[own].record.term < self._last_term()

    def _note_age(self, is_store_old: bool) -> None:
        if is_store_old and not self.is_store_old:
            log.error(
                "etcd has an older state of the cluster than this node has seen: it was restored "
                "from a backup, and is not believed"
            )
        self.is_store_old = is_store_old

    def _note_term(self, before: ShardRecord | None, view: ClusterView, now_ms: int) -> None:
        record = self.record
        if record is None:
            return
        if before is None or before.term != record.term:
            self._changed_ms = now_ms
            self._is_lease_seen = False
        self._is_lease_seen = self._is_lease_seen or self.shard in view.holders

    # Time

    def look(self, now_ms: int) -> None:
        """Do what is due: when anything has changed, and a few times a second."""
        if self.is_reachable:
            self.actions += self.lease.look(now_ms)
        if self.view is None:
            return
        self._take_part(now_ms)
        self._look_at_election(now_ms)
        if self.may_write and self.is_leading:
            self._hold_lease(self.view)
        self._reshaping.look(self, now_ms)
        if self.moves is not None:
            self.moves.look(self, now_ms)

    @property
    def may_write(self) -> bool:
        """True if a transaction can begin; there is one at a time."""
        has_store = self.is_reachable and not self.is_store_old and not self._is_outdated
        return has_store and self.lease.id != 0 and self.writing is None

    def write(self, purpose: Purpose, compares: list[Compare], changes: list[Change]) -> None:
        if purpose not in self.stopped:
            self.writing = purpose
            self.actions.append(Write(purpose, compares, changes))

    def _hold_lease(self, view: ClusterView) -> None:
        """Write that this node is the primary, for as long as its lease lasts. Without N, no
        other node may become the primary meanwhile."""
        found = view.shards[self.shard]
        held = view.holders.get(self.shard)
        own = Holder(self.id, self.led_term)
        if held is not None and (held.record, held.lease) == (own, self.lease.id):
            self._hold = own, held.lease
            return
        is_of_another = held is not None and held.record.node != self.id
        if found.record.term != self.led_term or (is_of_another and needs_lease(found.record)):
            return
        name = LEASE + self.shard
        compares = [
            Compare(SHARD + self.shard, found.version),
            Compare(name, 0 if held is None else held.version),
        ]
        self._ordered_hold = own, self.lease.id
        self.write(Purpose.HOLD, compares, [Change(name, encode(own), self.lease.id)])

    # The part of this node

    def _take_part(self, now_ms: int) -> None:
        if now_ms < self._next_order_ms:
            return
        record = self.record or self._joined_record()
        has_none = record is None or not record.primary or not self.is_announced
        if record is None or has_none or self.data.promised > record.term:
            self._take_rest(now_ms)
        elif record.primary == self.id:
            self._take_lead(record, now_ms)
        else:
            self._follow(record, now_ms)

    def _joined_record(self) -> ShardRecord | None:
        """That of a shard that this node is to join."""
        assert self.view is not None
        for name, found in self.view.changes.items():
            if found.record.add == self.id and name in self.view.shards:
                return self.view.shards[name].record
        return None

    def _take_lead(self, record: ShardRecord, now_ms: int) -> None:
        if self.part is Part.LEADING and self.led_term == record.term:
            if self.ordered_members != self._reshaping.counted(record.members):
                self._order_lead(record)
        elif self.data.standing() and self._may_begin(record):
            self.part, self.led_term = Part.LEADING, record.term
            self._changed_ms = now_ms
            self._asked_term, self._reason = 0, Reason.SILENCE
            log.warning("this node is the primary of shard %s in term %d", self.shard, record.term)
            self._order_lead(record)
        else:
            self._take_rest(now_ms)

    def _may_begin(self, record: ShardRecord) -> bool:
        """True if this primary can lead the term: it has not led it before, or cannot ask the store
        for a higher one."""
        last_term = self._last_term()
        is_next = last_term < record.term or (self.is_recalled and last_term == record.term)
        return is_next and record.term > self.led_term

    def _order_lead(self, record: ShardRecord) -> None:
        self.ordered_members = self._reshaping.counted(record.members)
        self.actions.append(Lead(record.term, self.ordered_members, record.durable))

    def _follow(self, record: ShardRecord, now_ms: int) -> None:
        address = self.address_of(record.primary)
        if address is None:
            self._take_rest(now_ms)
            return
        wanted = Follow(record.primary, address, record.term, record.durable)
        if self.part is not Part.FOLLOWING or self.followed != wanted:
            self._change_part(Part.FOLLOWING, now_ms)
            self.followed = wanted
            self.actions.append(wanted)

    def _take_rest(self, now_ms: int) -> None:
        if self.part is not Part.RESTING:
            self._change_part(Part.RESTING, now_ms)
            record = self.record
            self.actions.append(Rest(0 if record is None else record.term))

    def _change_part(self, part: Part, now_ms: int) -> None:
        self.part = part
        self._changed_ms = now_ms

    # Elections

    def _look_at_election(self, now_ms: int) -> None:
        assert self.view is not None
        candidacy = self._candidacy
        if candidacy is None:
            if self.may_write and self._is_election_due(now_ms):
                self._stand(self.view)
            elif self.may_write:
                self._withdraw(self.view)
            return
        found = self.view.shards.get(self.shard)
        is_late = now_ms - candidacy.election.begun_ms > self.node_timeout_ms
        if found is None or found.version != candidacy.shard.version or is_late:
            self._give_up(candidacy, now_ms)
            return
        chosen = candidacy.election.look(now_ms)
        if chosen is not None and self.may_write:
            self._choose(self.view, candidacy, chosen)

    def _is_election_due(self, now_ms: int) -> bool:
        record = self.record
        assert self.view is not None
        if record is None or now_ms < self._next_try_ms or not self.lease.is_valid(now_ms):
            return False
        if not self.is_announced:
            return False
        if record.primary == self.id and self.is_leading:
            self._reason = Reason.SILENCE
            # A member has promised a higher term, and can follow only one that is higher still.
            return self._asked_term > self.led_term + 1
        if self.is_election_known():
            return False
        if self._reason is not Reason.SILENCE or record.primary == self.id:
            return True
        is_late = now_ms - self._changed_ms >= self.node_timeout_ms
        if not record.primary:
            return len(record.members) >= max(1, needed_promises(record.size, record.durable))
        if self.data.promised > record.term and is_late:
            return True  # it cannot follow the primary, which learns that from the request
        if needs_lease(record):
            return self.shard not in self.view.holders and (self._is_lease_seen or is_late)
        silence_ms = self.data.silence_ms() if self.part is Part.FOLLOWING else None
        if silence_ms is None and record.primary not in self.view.nodes:
            return True  # the primary was stopped: it has ended its lease and its links
        if silence_ms is not None:
            self._heard_ms = max(self._heard_ms, now_ms - silence_ms)
        return now_ms - max(self._heard_ms, self._changed_ms) >= self.node_timeout_ms

    def _stand(self, view: ClusterView) -> None:
        """Ask for an election. The store has one candidate at a time, which only saves work."""
        found, other = view.shards[self.shard], view.candidates.get(self.shard)
        known = [found.record.term, self.data.promised, self._asked_term]
        term = max(*known, other.record.term if other is not None else 0) + 1
        self.elections += 1
        self._standing_for = term, found
        name = ELECTION + self.shard
        compares = [
            Compare(SHARD + self.shard, found.version),
            Compare(name, 0 if other is None else other.version),
        ]
        change = Change(name, encode(Holder(self.id, term)), self.lease.id)
        self.write(Purpose.STAND, compares, [change])

    def _begin_election(self, version: int, now_ms: int) -> None:
        assert self._standing_for is not None
        term, found = self._standing_for
        record = found.record
        log.warning("an election of shard %s begins: this node asks for term %d", self.shard, term)
        addresses = {one: self.address_of(one) or ("", 0) for one in record.members}
        needed = needed_promises(record.size, record.durable)
        is_forced = self._reason is Reason.FORCE and record.primary != self.id
        if is_forced and 0 < needed < len(addresses):
            addresses.pop(record.primary, None)  # it may have frames that no other member has
        near = self._in_zone_of(record.primary) if self._reason is Reason.SILENCE else frozenset()
        election = Election(
            self.id, term, needed, addresses,
            self._reason, record.primary, near,
            now_ms, min(ANSWERS_MS, self.node_timeout_ms // 2), self.actions.append,
        )  # fmt: skip
        self._reason = Reason.SILENCE
        self._candidacy = Candidacy(election, version, found)
        self.look(now_ms)

    def _in_zone_of(self, primary: str) -> frozenset[str]:
        """The nodes in the same zone as this one, if it has named one."""
        found = self.known.get(primary)
        zone = "" if found is None else found.zone
        return frozenset(node for node, one in self.known.items() if zone and one.zone == zone)

    def _choose(self, view: ClusterView, candidacy: Candidacy, chosen: str) -> None:
        """Write the new primary, if neither the shard nor the election has changed. Without N, the
        lease of the old primary must have ended, or that one must have promised."""
        election, found = candidacy.election, candidacy.shard
        record = found.record._replace(term=election.term, primary=chosen)
        shard, own, lease = (kind + self.shard for kind in (SHARD, ELECTION, LEASE))
        compares = [Compare(shard, found.version), Compare(own, candidacy.version)]
        changes = [Change(shard, encode(record)), Change(own, None)]
        if needs_lease(record):
            held = view.holders.get(self.shard)
            has_promised = held is not None and held.record.node in election.promises
            compares.append(Compare(lease, held.version if held and has_promised else 0))
            changes += [Change(lease, None)] if has_promised else []
        self.write(Purpose.CHOOSE, compares, changes)

    def _give_up(self, candidacy: Candidacy, now_ms: int) -> None:
        """End an election: the shard has changed, or too few members have promised in time."""
        if not self.may_write:
            return
        self._candidacy = None
        self._next_try_ms = now_ms + self.node_timeout_ms // 4
        self._remove_election(candidacy.version)

    def _withdraw(self, view: ClusterView) -> None:
        """Remove an election of this node that is over: the removal was lost, or the process."""
        found = view.candidates.get(self.shard)
        if found is not None and found.record.node == self.id:
            self._remove_election(found.version)

    def _remove_election(self, version: int) -> None:
        name = ELECTION + self.shard
        self.write(Purpose.GIVE_UP, [Compare(name, version)], [Change(name, None)])


def is_lost(known: ShardRecord, found: Found[ShardRecord] | None) -> bool:
    """True if this is an earlier record than the known one, or has continued from an earlier one:
    each change of a record is a new term."""
    if found is None or found.record.term < known.term:
        return known.term > 0
    return found.record.term == known.term and found.record != known


def _is_earlier(view: ClusterView, seen: ClusterView) -> bool:
    """True if a view has an earlier state than a seen one."""
    return (
        view.map.epoch < seen.map.epoch
        or any(is_lost(known.record, view.shards.get(n)) for n, known in seen.shards.items())
        or are_moves_older(view, seen)
    )


def needs_lease(record: ShardRecord) -> bool:
    """True if only a lease keeps two primaries apart: no frame has to be on another member."""
    return record.durable == 0 and record.size > 1
