"""The records of a cluster whose etcd was lost, or was restored from an old backup, from what its
nodes know.

Each node has what it has seen last in etcd on its disk (`seen_store`), and it leads or follows a
term only when the record of the term is there. So the newest record of a shard that the asked nodes
know is the newest of all that matter, if one of these holds:

* Its primary still confirms. An election would have needed promises of M - N members, and each
  change of the members is made by the primary.
* All of its members answer. In each later term, a write was confirmed by a primary and N others,
  and one of them at least is among these members. (Without N, it is the primary alone; a node that
  joined and was elected before any other member had seen it has no data.)

Members other than the primary may be missing if their data is lost, which only the operator knows:
N of them, or any number without N, where a failover may lose writes anyway. M - N answers are
needed in any case, as for an election: together they have all that was confirmed. A shard without
slots has nothing to lose: all of its members may be lost.

The new records have higher terms than all that were seen, promised or journaled. With N, they name
no primary: the members elect it. Without N, nothing but the lease keeps two primaries apart, and
the member with the most data is named, once no other one serves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from millstream.commands.admin.cluster_peers import LastFrame
from millstream.errors import counted
from millstream.server.cluster.cluster_view import ClusterView, view_of
from millstream.server.cluster.election import needed_promises
from millstream.server.cluster.membership import is_earlier_record
from millstream.server.cluster.slot_moves.move_rules import OWNED, UNDECIDED, are_moves_older
from millstream.server.cluster.store.records import (
    CONFIG,
    MAP,
    MOVE,
    SHARD,
    USERS,
    VERSION,
    Format,
    ShardRecord,
    SlotRanges,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare, Contents

# A member that was taken for lost may have led later terms, also after another recovery: none of
# them is used again.
TERM_GAP = CHOICES = 1000


class Unrecoverable(Exception):
    """The records cannot be written. The text says why, and what to do."""


class ExpectedSize(NamedTuple):
    """The number of shards, and of each shard the number of its members and of those that confirm,
    as the operator has given it; None: not given."""

    shards: int | None = None
    members: int | None = None
    durable: int | None = None

    def check(self, found: Mapping[str, ShardRecord]) -> None:
        """Unrecoverable if the shards that the nodes know are different."""
        if self.shards not in (None, len(found)):
            raise Unrecoverable(
                f"the cluster has {counted(len(found), 'shard')}, and not {self.shards}: leave out "
                "--shards"
            )
        for name, record in found.items():
            for option, expected, known in (
                ("--members", self.members, record.size),
                ("--durable", self.durable, record.durable),
            ):
                if expected not in (None, known):
                    raise Unrecoverable(
                        f"shard {name} has {option} {known}, and not {expected}: leave out {option}"
                    )


class NodeAnswer(NamedTuple):
    """The knowledge of a node: the contents of etcd that it has seen last (None: none), the
    greatest term that it has promised, the last frame on its disk (None: the data is not known well
    enough), the term in which it is the primary (0: none), the number of members that confirm then,
    and the greatest epoch of a map after which its data has got or lost slots."""

    node: str
    address: str
    seen: Contents | None
    promised: int
    last: LastFrame | None
    leads: int
    confirming: int
    epoch: int = 0


class Recovery(NamedTuple):
    """The transaction that writes the records, and these."""

    compares: list[Compare]
    changes: list[Change]
    shards: dict[str, ShardRecord]


def _refuse_strangers(lost: Collection[str], known: Sequence[ClusterView]) -> None:
    members: set[str] = set()
    for view in known:
        members.update(*(found.record.members for found in view.shards.values()))
        members.update(*(found.record for found in view.changes.values()))
    for node in lost:
        if node not in members:
            raise Unrecoverable(f"{node} is not the ID of a member: --lost needs the whole ID")


def recover(
    answers: Sequence[NodeAnswer], stored: Contents, lost: Collection[str] = (), chosen: int = 0
) -> Recovery:
    """`stored` is what etcd has now, and `lost` are the members whose data is lost. `chosen` is a
    random number below CHOICES. Unrecoverable if something that was confirmed could be lost."""
    _refuse_copies(answers)
    views = {one.node: view_of(one.seen) for one in answers if one.seen is not None}
    if not views:
        raise Unrecoverable("none of these nodes has seen this cluster in etcd")
    known = [*views.values(), *([view_of(stored)] if CONFIG in stored.values else [])]
    if len(known) > len(views) and not any(
        _is_newer(answer, views.get(answer.node), known[-1]) for answer in answers
    ):
        raise Unrecoverable("etcd has all that these nodes have seen: nothing is to be recovered")
    found = {one.node: one for one in answers if one.node in views and one.last is not None}
    newest = _newest_map(known)
    for one in answers:
        if one.epoch > newest.epoch:
            raise Unrecoverable(
                f"the data of {one.address} is that after a move of slots to the map with epoch "
                f"{one.epoch}, and no node knows that map, only the one with epoch {newest.epoch}. "
                "Ask more nodes"
            )
    _refuse_two_lines(known, newest)
    names = sorted({name for view in known for name in view.shards})
    owners = {row[2] for row in newest.ranges}
    missing = owners - set(names)
    if missing:
        raise Unrecoverable(f"no node knows the members of the shards {', '.join(missing)}")
    shards = {
        name: _ShardRecovery(name, found, known, lost, has_slots=name in owners).record(chosen)
        for name in names
    }
    _refuse_strangers(lost, known)
    users = _users_in(answers, stored)
    changes = [
        Change(CONFIG, encode(Format(VERSION))),
        Change(MAP, encode(newest._replace(epoch=newest.epoch + 1))),
        *(Change(SHARD + name, encode(record)) for name, record in shards.items()),
        *([Change(USERS, users)] if users is not None else []),
        *(Change(name, None) for name in stored.values if name.startswith(MOVE)),
    ]
    versions = {name: value.version for name, value in stored.values.items()}
    compares = [Compare(change.name, versions.get(change.name, 0)) for change in changes]
    return Recovery(compares, changes, shards)


def _refuse_copies(answers: Sequence[NodeAnswer]) -> None:
    addresses: dict[str, str] = {}
    for one in answers:
        other = addresses.setdefault(one.node, one.address)
        if other != one.address:
            raise Unrecoverable(
                f"{other} and {one.address} are the same node {one.node}: one of the data "
                "directories is a copy of the other one. Stop the copy"
            )


def _is_newer(answer: NodeAnswer, seen: ClusterView | None, stored: ClusterView) -> bool:
    """True if a node knows something later than the store."""
    if seen is not None and (seen.map.epoch > stored.map.epoch or are_moves_older(stored, seen)):
        return True
    shards = {} if seen is None else seen.shards
    if any(
        is_earlier_record(found.record, stored.shards.get(name)) for name, found in shards.items()
    ):
        return True
    own = stored.shard_of(answer.node)
    last_term = 0 if answer.last is None else answer.last.term
    return own is not None and last_term > stored.shards[own].record.term


def _newest_map(views: Sequence[ClusterView]) -> SlotRanges:
    newest = max((view.map for view in views), key=lambda one: one.epoch)
    if any(view.map.epoch == newest.epoch and view.map != newest for view in views):
        raise Unrecoverable(f"the nodes know two maps of the slots with epoch {newest.epoch}")
    return newest


def _refuse_two_lines(views: Sequence[ClusterView], newest: SlotRanges) -> None:
    """The epochs of two lines of etcd that have parted do not say which map is the later one."""
    owned = {move for view in views for move, one in view.moves.items() if one.record.step in OWNED}
    for view in views:
        for move, one in view.moves.items():
            if view.map == newest and move in owned and one.record.step not in OWNED:
                raise Unrecoverable(
                    f"the move {move} has ended, but not in the state with epoch {newest.epoch} of "
                    "the map: an etcd that was restored from a backup was used. Restore a backup "
                    "of the cluster, or start with the nodes that know one of the states"
                )


def _users_in(answers: Sequence[NodeAnswer], stored: Contents) -> bytes | None:
    """Those of the node that has seen the latest state."""
    seen = [one.seen for one in answers if one.seen is not None]
    for contents in (*sorted(seen, key=_age, reverse=True), stored):
        if USERS in contents.values:
            return contents.values[USERS].data
    return None


def _age(contents: Contents) -> tuple[int, int, int]:
    """Greater for what is later: a restored etcd counts revisions from an earlier one on."""
    view = view_of(contents)
    terms = sum(found.record.term for found in view.shards.values())
    return view.map.epoch, terms, contents.revision


class _ShardRecovery:
    """The newest record of a shard, and whether it is that. `answers` are those of nodes by ID."""

    def __init__(
        self,
        name: str,
        answers: Mapping[str, NodeAnswer],
        views: Sequence[ClusterView],
        lost: Collection[str],
        *,
        has_slots: bool,
    ) -> None:
        self._name = name
        self._has_slots = has_slots
        found = [view.shards[name].record for view in views if name in view.shards]
        self._newest = newest = max(found, key=lambda record: record.term)
        if any(one.term == newest.term and one != newest for one in found):
            raise self._refusal(
                f"the nodes know two states of it in term {newest.term}: an etcd that was restored "
                "from a backup was used. Restore a backup of the cluster, or start with the nodes "
                "that know one of the states"
            )
        orders = [
            view.changes[name].record
            for view in views
            if name in view.changes and view.shards[name].record.term == newest.term
        ]
        joining = {order.add for order in orders if order.add}
        self._addresses = {
            node: f"{one.record.host}:{one.record.port or one.record.tls_port}"
            for view in views
            for node, one in view.nodes.items()
        }
        everyone = {node for record in found for node in record.members} | joining
        self._answers = {node: one for node, one in answers.items() if node in everyone}
        self._needed = {*newest.members, *joining}
        self._lost = set(lost)
        # The map may be a later one if slots were moving there, and its primary is lost.
        last_epoch = max(view.map.epoch for view in views)
        self._arriving = sorted(
            move
            for view in views
            if view.map.epoch == last_epoch
            for move, one in view.moves.items()
            if one.record.target == name and one.record.step in UNDECIDED
        )
        self._candidate_terms = [
            view.candidates[name].record.term for view in views if name in view.candidates
        ]

    def _refusal(self, text: str) -> Unrecoverable:
        return Unrecoverable(f"shard {self._name}: {text}")

    def record(self, chosen: int) -> ShardRecord:
        """The new record. Unrecoverable if it could lose something that was confirmed."""
        newest = self._newest
        for node, answer in self._answers.items():
            assert answer.last is not None
            if answer.last.term > newest.term:
                raise self._refusal(
                    f"the node {self._shown(node)} has data of term {answer.last.term}, and no "
                    f"node knows its members, only those of term {newest.term}. Ask more nodes"
                )
        self._require_certain()
        terms = [newest.term, *self._candidate_terms]
        for answer in self._answers.values():
            assert answer.last is not None
            terms += [answer.promised, answer.last.term]
        primary = "" if newest.durable else self._best()
        return newest._replace(term=max(terms) + TERM_GAP * (1 + chosen), primary=primary)

    def _require_certain(self) -> None:
        newest = self._newest
        had_data = self._has_slots or self._arriving or self._answers
        if not had_data and self._needed <= self._lost:
            return  # for example after `millstream cluster drain`
        answering = [node for node in newest.members if node in self._answers]
        needed = min(needed_promises(newest.size, newest.durable), len(newest.members))
        if len(answering) < needed and newest.durable:
            raise self._refusal(
                f"{needed} of its members have to answer, and {len(answering)} do. "
                + self._absent_text(set(newest.members) - self._answers.keys())
            )
        if newest.members and not answering:
            raise self._refusal("none of its members answers. " + self._absent_text(newest.members))
        if self._is_served():
            return
        absent = self._needed - self._answers.keys()
        unknown = absent - self._lost
        if unknown:
            raise self._refusal(
                f"these nodes do not prove that term {newest.term} is its newest one. "
                + self._absent_text(unknown)
                + ", or name those whose data is lost with --lost"
            )
        if absent and self._arriving:
            raise self._refusal(
                f"the move {self._arriving[0]} brought slots to it, and only its primary knows "
                "whether they are there. " + self._absent_text(absent)
            )
        lost = [node for node in absent if node in newest.members]
        if newest.durable and len(lost) > newest.durable:
            raise self._refusal(
                f"{len(lost)} of its members are lost, and it may lose {newest.durable} without "
                "losing data. Restore a backup"
            )

    def _is_served(self) -> bool:
        """True if the primary of the newest record confirms, with N members."""
        newest = self._newest
        answer = self._answers.get(newest.primary)
        return (
            newest.durable > 0
            and answer is not None
            and answer.leads == newest.term
            and answer.confirming >= newest.durable
        )

    def _best(self) -> str:
        """Without N: the member with the most data."""
        members = self._newest.members
        answers = {node: one for node, one in self._answers.items() if node in members}

        def worth(node: str) -> tuple[int, int, bool]:
            last = answers[node].last
            assert last is not None
            return last.term, last.number, node == self._newest.primary

        best = max(answers, key=worth, default="")
        for node, answer in answers.items():
            if answer.leads and node != best:
                raise self._refusal(
                    f"the node {self._shown(node)} serves as its primary until its lease ends, and "
                    f"{self._shown(best)} has more data. Try again"
                )
        return best

    def _absent_text(self, nodes: Collection[str]) -> str:
        return "Ask also " + ", ".join(map(self._shown, sorted(nodes)))

    def _shown(self, node: str) -> str:
        address = self._answers[node].address if node in self._answers else ""
        address = address or self._addresses.get(node, "")
        return f"{node} ({address})" if address else node


def rows_of(shards: Mapping[str, ShardRecord]) -> Iterator[str]:
    """A line for each shard."""
    for name, record in shards.items():
        primary = record.primary or "its members elect the primary"
        members = f"{len(record.members)} of {record.size} members"
        yield f"shard {name}: term {record.term}, {members}, {primary}"
