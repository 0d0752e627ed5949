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
from millstream.server.cluster.candidate import Candidate
from millstream.server.cluster.cluster_view import ClusterView, Found, addresses_after
from millstream.server.cluster.election import needs_lease
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
    LEASE,
    SHARD,
    Holder,
    NodeRecord,
    ShardRecord,
    encode,
)
from millstream.server.cluster.store.store import Change, Commit, Compare

log = logging.getLogger("millstream.cluster")

SILENCE_MS = 8000  # more than the time between two reads of all contents


class Part(Enum):
    RESTING = auto()
    FOLLOWING = auto()
    LEADING = auto()


@dataclass(eq=False, repr=False)
class Member:
    """`actions` are the orders that the caller has to carry out, and to remove. `view` is what the
    store said last, and `shard` the name of the own shard in it; "" without one. `is_store_old`:
    the store has an older state than this node has seen, for example that of a backup, and is
    ignored: `ignored` has it. `gaps` counts the times at which it did not see what the store has.
    `followed` is the last order to follow a primary. `candidate` asks for elections. `changed_ms`:
    when the term or the part changed. `known` has the nodes that the store has, and the members
    whose lease has ended. `is_announced`: the store has had the address of this node. Before,
    another one may have the same ID, so this one takes no part. `seen` is what the store had when
    this node ran last, and `is_recalled`: it is the view now. `is_kept`: what the store has would
    be seen again. `moves` decides about moves of slots. `stopped` are transactions that do not
    begin, for tests.
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
        self.ignored: ClusterView | None = None
        self.gaps = 0
        self._store_ms = 0  # when the store was heard
        self.is_announced = False
        self.is_recalled = False
        self.is_kept = True
        self.candidate = Candidate()
        self.changed_ms = 0
        self.led_term = 0
        self.writing: Purpose | None = None
        self._is_outdated = False  # the view: a transaction has ended since
        self.known: dict[str, NodeRecord] = {}
        self.followed: Follow | None = None
        self.ordered_members: tuple[str, ...] = ()
        self.moves: MoveJudge | None = None
        self.stopped: Collection[Purpose] = ()
        self._reshaping = Reshaping()
        self._next_order_ms = 0
        # The key of the primary with its lease: as this node has ordered it, and as it is there.
        self._ordered_hold: tuple[Holder, int] | None = None
        self._hold: tuple[Holder, int] | None = None

    # Events

    def take(self, view: ClusterView, now_ms: int) -> None:
        """The store has these contents now. `is_kept` is to be set after it."""
        self._note_silence(now_ms)
        self._store_ms = now_ms
        self.is_reachable, self.is_lost = True, False
        self._is_outdated = self.is_kept = False
        self._note_age(self._is_old(view))
        self.ignored = view if self.is_store_old else None
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
        self.note_gap()

    def note_gap(self) -> None:
        """The store was not followed for a moment, and may have been restored meanwhile."""
        self.gaps += 1

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

    def _note_silence(self, now_ms: int) -> None:
        """This process may have been suspended, or a watch silent."""
        if now_ms - self._store_ms > SILENCE_MS:
            self._store_ms = now_ms
            self.note_gap()

    def written(self, purpose: Purpose, commit: Commit | None, now_ms: int) -> None:
        """The outcome of a transaction; None: it is unknown. The contents after it follow."""
        self.writing = None
        self._is_outdated = True
        if commit is None:
            self.note_gap()
        is_done = commit is not None and commit.done
        if purpose is Purpose.STAND and is_done:
            assert commit is not None
            self.candidate.begin(self, commit.revision, now_ms)
            self.look(now_ms)
        elif purpose is Purpose.CHOOSE:
            self.candidate.chosen()
        elif purpose is Purpose.HOLD and is_done:
            self._hold = self._ordered_hold  # this node may have another lease by now
        self.actions.append(ReadAgain())

    def promised(self, node: str, term: int, standing: LastFrame | None, now_ms: int) -> None:
        """The answer of a member to the request of its promise; None: it has refused, or has not
        answered."""
        if self.candidate.has_election:
            self.candidate.promised(node, term, standing)
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
        self.candidate.asked_term = max(self.candidate.asked_term, term)
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
        self.candidate.reason = reason
        self.look(now_ms)

    def order_failed(self, now_ms: int) -> None:
        """The last order to lead or to follow was not carried out: it is repeated later."""
        self._change_part(Part.RESTING, now_ms)
        self._next_order_ms = now_ms + self.node_timeout_ms // 4
        self.candidate.wait_until(self._next_order_ms)

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
    def is_following(self) -> bool:
        return self.part is Part.FOLLOWING

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
        if self.moves is not None and self.moves.is_older(view):
            return True
        own = view.shard_of(self.id)
        return own is not None and view.shards[own].record.term < self._last_term()

    def _note_age(self, is_store_old: bool) -> None:
        if is_store_old and not self.is_store_old:
            log.error(
                "etcd has an older state of the cluster than this node has seen: it was restored "
                "from a backup, and is ignored"
            )
        self.is_store_old = is_store_old

    def _note_term(self, before: ShardRecord | None, view: ClusterView, now_ms: int) -> None:
        record = self.record
        if record is None:
            return
        is_new = before is None or before.term != record.term
        if is_new:
            self.changed_ms = now_ms
        self.candidate.note_holders(view.holders, self.shard, is_new_term=is_new)

    # Time

    def look(self, now_ms: int) -> None:
        """Do what is due: when anything has changed, and a few times a second."""
        if self.is_reachable:
            self.actions += self.lease.look(now_ms)
        if self.view is None:
            return
        self._take_part(now_ms)
        self.candidate.look(self, now_ms)
        if self.may_write and self.is_leading:
            self._hold_lease(self.view)
        self._reshaping.look(self, now_ms)
        if self.moves is not None:
            self._note_silence(now_ms)
            self.moves.look(self, now_ms)

    @property
    def may_write(self) -> bool:
        """True if a transaction can begin; there is one at a time."""
        return self.has_store and not self.is_store_old

    @property
    def has_store(self) -> bool:
        """The same, also if the store has an older state."""
        is_current = self.is_reachable and not self._is_outdated
        return is_current and self.lease.id != 0 and self.writing is None

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
            self.changed_ms = now_ms
            self.candidate.note_lead()
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
        self.changed_ms = now_ms


def is_earlier_record(known: ShardRecord, found: Found[ShardRecord] | None) -> bool:
    """True if this is an earlier record than the known one, or has continued from an earlier one:
    each change of a record is a new term."""
    if found is None or found.record.term < known.term:
        return known.term > 0
    return found.record.term == known.term and found.record != known


def _is_earlier(view: ClusterView, seen: ClusterView) -> bool:
    """True if a view has an earlier state than a seen one."""
    return (
        view.map.epoch < seen.map.epoch
        or any(
            is_earlier_record(known.record, view.shards.get(n)) for n, known in seen.shards.items()
        )
        or are_moves_older(view, seen)
    )
