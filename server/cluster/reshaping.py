"""Changes of the members of a shard, which its primary carries out, without I/O.

An operator writes the change (`ShardChange`) into the store. A node that is to join follows the
primary from then on. When it has what the primary had at the beginning, and so have enough of the
members that stay, a member that is to leave does not count any more. When enough of the others have
all frames that were on the disk of the primary by then, and so all that was confirmed, the primary
writes the new members. N + 1 of them have each confirmed frame then, so any M - N of them have it,
too. The new one counts only when it is written: until then the old members may elect a primary.

The new members begin a new term with the same primary: a store that is restored from a backup with
the old members has a lower term, and is ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

from millstream.server.cluster.cluster_view import ClusterView, Found
from millstream.server.cluster.member_actions import Data, Purpose
from millstream.server.cluster.store.records import (
    CHANGE,
    MEMBERS_MAX,
    SHARD,
    ShardChange,
    ShardRecord,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare

log = logging.getLogger("millstream.cluster")

LEFT_OUT_MS = 3000  # the longest time without the member that leaves


class Leader(Protocol):
    """The member that is the primary (`membership.Member`)."""

    id: str
    data: Data
    view: ClusterView | None
    shard: str
    led_term: int
    is_kept: bool

    @property
    def is_leading(self) -> bool: ...
    @property
    def may_write(self) -> bool: ...
    @property
    def ordered_members(self) -> Sequence[str]:
        """Those of the last order to lead."""

    def write(self, purpose: Purpose, compares: list[Compare], changes: list[Change]) -> None: ...


class Reshaping:
    """The change that is under way. `left_out` are the members that do not count meanwhile."""

    def __init__(self) -> None:
        self._known = 0, 0  # the version of the change, and the term
        self._begin()

    def _begin(self) -> None:
        self.left_out: frozenset[str] = frozenset()
        self._needed_frame: int | None = None  # that the others must have
        self._is_ordered = False  # the member that leaves does not count
        self._is_written = False  # the transaction; its outcome may be unknown
        self._since_ms = 0

    def counted(self, members: Sequence[str]) -> tuple[str, ...]:
        return tuple(one for one in members if one not in self.left_out)

    def look(self, leader: Leader, now_ms: int) -> None:
        """Do what is due; the orders of the last look were carried out."""
        view = leader.view
        found = view.changes.get(leader.shard) if leader.is_leading and view is not None else None
        known = (0, 0) if found is None else (found.version, leader.led_term)
        if self._known != known:
            self._known = known
            self._begin()
        if found is None or view is None:
            return
        shard = view.shards[leader.shard]
        if shard.record.term != leader.led_term:
            return
        try:
            wanted = reshaped(shard.record, found.record, view.shards)
        except ValueError as problem:
            self._refuse(leader, found, str(problem))
            return
        is_ready = self._are_ready(leader, shard.record, found.record, now_ms)
        if is_ready and leader.may_write and leader.is_kept:
            text = _described(found.record)
            log.warning("shard %s gets other members: %s", leader.shard, text)
            key = CHANGE + leader.shard
            compares = [Compare(SHARD + leader.shard, shard.version), Compare(key, found.version)]
            changes = [Change(SHARD + leader.shard, encode(wanted)), Change(key, None)]
            self._is_written = True
            leader.write(Purpose.RESHAPE, compares, changes)

    def _are_ready(
        self, leader: Leader, record: ShardRecord, change: ShardChange, now_ms: int
    ) -> bool:
        """True if the change can be written. Once it was, it may be carried out at any time, so the
        member that leaves does not count again: the transaction is repeated until the store has
        the change or a later term."""
        if self._is_written:
            return True
        standing = leader.data.standing()
        if standing is None:
            return False
        if self._needed_frame is None:
            if self.left_out and not self._is_left_out(leader, record):
                return False
            self._needed_frame = standing.number
        if not self._have_enough(leader, record, change, self._needed_frame):
            if self.left_out and now_ms - self._since_ms > LEFT_OUT_MS:
                self._begin()  # it counts again: the shard has to confirm
            return False
        if not change.remove or self.left_out:
            return True
        self._begin()
        self.left_out, self._since_ms = frozenset({change.remove}), now_ms
        return False

    def _have_enough(
        self, leader: Leader, record: ShardRecord, change: ShardChange, frame: int
    ) -> bool:
        """True if enough of the others have this frame: until a member is left out, also the one
        that is to join."""
        others = {*record.members, change.add} - {leader.id, change.remove, ""}
        having = {node for node in others if leader.data.acknowledged_frame(node) >= frame}
        has_joined = not change.add or change.add in having
        return len(having) >= record.durable and (has_joined or bool(self.left_out))

    def _is_left_out(self, leader: Leader, record: ShardRecord) -> bool:
        """True if the order to count only the others was carried out: after the look after it."""
        if tuple(leader.ordered_members) != self.counted(record.members):
            return False
        was_ordered, self._is_ordered = self._is_ordered, True
        return was_ordered

    def _refuse(self, leader: Leader, found: Found[ShardChange], problem: str) -> None:
        if not self._is_written:
            self._begin()
        if leader.may_write:
            log.error("the members of shard %s stay as they are: %s", leader.shard, problem)
            key = CHANGE + leader.shard
            leader.write(Purpose.RESHAPE, [Compare(key, found.version)], [Change(key, None)])


def reshaped(
    record: ShardRecord, change: ShardChange, shards: Mapping[str, Found[ShardRecord]]
) -> ShardRecord:
    """The record of a shard with its new members, in a new term. ValueError if that is
    impossible."""
    add, remove = change.add, change.remove
    if remove and remove not in record.members:
        raise ValueError(f"{remove} is not one of its members")
    if remove and remove == record.primary:
        raise ValueError(f"{remove} is its primary: use CLUSTER FAILOVER at another member first")
    if add and any(add in found.record.members for found in shards.values()):
        raise ValueError(f"{add} is a member of a shard already")
    members = tuple(one for one in record.members if one != remove) + ((add,) if add else ())
    size = record.size - bool(remove)
    size = max(size, len(members)) if add and not remove else size + bool(add)
    if not 1 + record.durable <= size <= MEMBERS_MAX:
        raise ValueError(f"it needs {1 + record.durable} to {MEMBERS_MAX} members")
    return record._replace(term=record.term + 1, members=members, size=size)


def _described(change: ShardChange) -> str:
    parts = [f"{change.remove} leaves"] if change.remove else []
    return ", ".join([*parts, *([f"{change.add} joins"] if change.add else [])])
