"""The decisions of a primary about moves of slots to and from its shard, without I/O.

A move is a record in the store. The primary of the shard that gets the slots, the *target*, takes
it from step to step; the data of both shards says what differs from the map meanwhile. Every step
is a transaction that compares the version of the record and those of the shards.

| step | target | source |
|---|---|---|
| planned | begins when the slots are free, and few moves run | |
| copying | copies the slots. When little is missing: handing | |
| handing | asks the source. With everything: moved, and the map | stops to serve the slots |
| moved | serves the slots. Once that is confirmed: done | sends clients to the target |
| done | | frees the data |

From `handing`, the source goes back to copying after a while, and either does after a failover.

Nothing is remembered but times: each look compares the records with the data, which a failover or a
restart leaves as it is. So the primary after it continues.

Two primaries never serve a slot:

* The source stops to serve the slots only in the step `handing` that it has seen, with this version
  (`may_leave`). It serves them again only after it has seen a later version of another step: the
  target, whose transaction compares the version, cannot have them then.
* The transaction also compares both shards, so there was no failover after `handing` was written.
* A store that was restored from a backup may have a step that was already left. So each side has to
  see all of its changes during a hand-over; otherwise the target gives it up, and the source asks
  the target before it serves the slots again (`move_returns`).

A primary that knows only what it has seen before its restart (`is_recalled`) decides nothing. Data
that has left is freed once the map without it would be seen again then (`is_kept`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Protocol

from millstream.commands.admin.cluster_peers import ReturnRequest
from millstream.server.cluster.cluster_view import ClusterView, Found
from millstream.server.cluster.member_actions import Action, Address, Purpose, ReadAgain
from millstream.server.cluster.slot_moves.move_data import Left, MoveData, SourceNode
from millstream.server.cluster.slot_moves.move_returns import Returns
from millstream.server.cluster.slot_moves.move_rules import (
    ENDED,
    OWNED,
    RUNNING_MAX,
    UNDECIDED,
    moved_map,
    overlap,
    owned_by,
    owners_of,
    problem_of,
    running_of,
    shown_slots,
)
from millstream.server.cluster.store.records import (
    BACKUP_LOCK,
    MAP,
    MOVE,
    SHARD,
    TEXT_MAX,
    MoveRecord,
    Step,
    encode,
)
from millstream.server.cluster.store.store import Change, Compare
from millstream.storage.keyspace.slot_ranges import Ranges, slots_of

log = logging.getLogger("millstream.cluster")

PAUSE_MS, PAUSE_MAX_MS = 250, 30_000  # before the next hand-over
ENDED_MAX = 32  # records of moves to a shard that have ended
NO_TARGET = "the shard that gets the slots has not taken them in time"
NEW_PRIMARY = "a shard has another primary"
WAITS = "waits: "  # begins the reason of a move that is copying
WAITS_MS = 3000  # between two of these reasons
LOST_SIGHT = "the shard that gets the slots has not seen all changes in etcd"


class Leader(Protocol):
    """The member that is the primary (`membership.Member`)."""

    view: ClusterView | None
    shard: str
    led_term: int
    is_recalled: bool
    is_kept: bool
    is_store_old: bool
    gaps: int
    actions: list[Action]

    @property
    def is_leading(self) -> bool: ...
    @property
    def may_write(self) -> bool: ...
    def address_of(self, node: str) -> Address | None: ...
    def write(self, purpose: Purpose, compares: list[Compare], changes: list[Change]) -> None: ...


@dataclass(eq=False, repr=False)
class MoveJudge:
    """`clock_ms` is the time of day. `stopped` are steps in which moves stay, for tests."""

    data: MoveData
    clock_ms: Callable[[], int]
    handover_timeout_ms: Callable[[], int]
    move_timeout_ms: Callable[[], int]
    stopped: Collection[str] = field(default=(), init=False)

    def __post_init__(self) -> None:
        self._versions: dict[str, tuple[int, int]] = {}  # and since when they are known
        self._begun_ms: dict[str, int] = {}
        self._asked: dict[str, tuple[int, int]] = {}  # versions, and the gaps then
        self._compared: set[str] = set()  # moves whose slots the data has not, in the term
        self._compared_term = 0
        self.returns = Returns()

    def look(self, leader: Leader, now_ms: int) -> None:
        """Do what is due. Without a term, nothing is: the data may not be that of the shard."""
        view = leader.view
        if view is None or not _leads(leader, view):
            self._versions.clear()
            self._begun_ms.clear()
            self.returns.reset()
            return
        data = self.data
        if not (view.moves or data.imports or data.departures):
            return
        self._note_versions(view, now_ms)
        look = _Look(self, leader, view, now_ms)
        for move, ranges in [*data.imports.items()]:
            look.settle_import(move, ranges)
        for move, left in [*data.departures.items()]:
            look.settle_departure(move, left)
        self._hide_lost(look, view, leader.led_term)
        self.returns.keep(data.departures.keys())
        data.keep([move for move, found in view.moves.items() if look.is_copied_here(found)])
        for move, found in sorted(view.moves.items(), key=lambda pair: (pair[1].version, pair[0])):
            if found.record.step not in self.stopped:
                look.drive(move, found)
        look.forget_some()

    def _hide_lost(self, look: _Look, view: ClusterView, term: int) -> None:
        """Once in a term, compare the data with the slots that have moved away."""
        if term != self._compared_term:
            self._compared_term = term
            self._compared.clear()
        self._compared &= view.moves.keys()
        for move in sorted(view.moves.keys() - self._compared):
            if look.hide_lost(move, view.moves[move].record):
                self._compared.add(move)

    def may_leave(self, leader: Leader, move: str, revision: int) -> bool:
        """The target asks: true if this source has to stop serving the slots, at once. The store is
        read if it may have a later version."""
        view = leader.view
        if view is None or not _leads(leader, view):
            return False
        found = view.moves.get(move)
        if found is None or found.version < revision:
            leader.actions.append(ReadAgain())
            return False
        record = found.record
        may_leave = (
            (found.version, record.step, record.source) == (revision, Step.HANDING, leader.shard)
            and record.terms[0] == leader.led_term
            and Step.HANDING not in self.stopped
        )
        if may_leave and move not in self.data.departures:
            self.returns.note_leave(move, leader.gaps)
        return may_leave

    def refusal_to_copy(self, leader: Leader, move: str) -> str:
        """The reason for which this source does not send the slots; "" if it does."""
        view = leader.view
        if view is None or not _leads(leader, view):
            return "this node is not the primary of a shard"
        found = view.moves.get(move)
        if found is None:
            leader.actions.append(ReadAgain())
        if found is None or found.record.step not in UNDECIDED:
            return f"there is no move {move}"
        if found.record.source != leader.shard:
            return f"the slots of the move {move} are those of shard {found.record.source}"
        return ""

    def refusal_to_give_back(self, leader: Leader, asked: ReturnRequest) -> str:
        """The source asks: the reason why this shard does not say that it has not the slots; "" if
        it does, once no election loses that."""
        view, move = leader.view, asked.move
        if view is None or not _leads(leader, view):
            return "this node is not the primary of a shard"
        found = view.moves.get(move)
        if leader.is_store_old or (found is not None and found.record.step in OWNED):
            return "this shard may serve the slots"
        if move in self.data.departures:
            return "the slots have left this shard"
        self.returns.note_given_back(asked)
        return ""

    def is_older(self, view: ClusterView) -> bool:
        """True if the store has an older state than the data here, or than it had when slots were
        given back."""
        return view.map.epoch < self.data.epoch or self.returns.is_void(view)

    def _note_versions(self, view: ClusterView, now_ms: int) -> None:
        for move, found in view.moves.items():
            if self._versions.get(move, (0, 0))[0] != found.version:
                self._versions[move] = found.version, now_ms
        for known in (self._versions, self._begun_ms, self._asked):
            for move in known.keys() - view.moves.keys():
                del known[move]

    def age_ms(self, move: str, now_ms: int) -> int:
        """The time for which the version of a move is known here."""
        return now_ms - self._versions[move][1]

    def has_seen_all(self, move: str, version: int, gaps: int) -> bool:
        """True if the store was followed without a gap since the source was asked first for the
        hand-over with this version."""
        if self._asked.get(move, (0, 0))[0] != version:
            self._asked[move] = version, gaps
        return self._asked[move][1] == gaps

    def is_late(self, move: str, now_ms: int) -> bool:
        """True if the slots are copied for longer than it may take."""
        return now_ms - self._begun_ms.setdefault(move, now_ms) > self.move_timeout_ms()


def _leads(leader: Leader, view: ClusterView) -> bool:
    is_current = leader.is_leading and not leader.is_recalled
    return is_current and view.shards[leader.shard].record.term == leader.led_term


def _text(reason: str) -> str:
    """A reason as a record may have it."""
    return "".join(one if one.isprintable() else " " for one in reason)[:TEXT_MAX]


class _Look:
    """One look of a primary at the moves."""

    def __init__(self, judge: MoveJudge, leader: Leader, view: ClusterView, now_ms: int) -> None:
        self._judge = judge
        self._data = judge.data
        self._leader = leader
        self._view = view
        self._shard = leader.shard
        self._now_ms = now_ms

    def is_copied_here(self, found: Found[MoveRecord]) -> bool:
        record = found.record
        return record.target == self._shard and record.step in (Step.COPYING, Step.HANDING)

    # The data and the records

    def settle_import(self, move: str, ranges: Ranges) -> None:
        """The store decides what an import becomes. Without a record, it has ended, and the map
        says how."""
        found = self._view.moves.get(move)
        if found is not None and found.record.step in UNDECIDED:
            return
        step = None if found is None else found.record.step
        is_owned = owners_of(self._view.map, ranges) == {self._shard}
        if step in OWNED or (step is None and is_owned):
            if Step.MOVED not in self._judge.stopped:
                self._data.own(move, self._view.map.epoch)
        else:
            self._data.drop(move, self._view.map.epoch)

    def settle_departure(self, move: str, left: Left) -> None:
        """The same for slots that have left."""
        found = self._view.moves.get(move)
        step = None if found is None else found.record.step
        if step is Step.HANDING:
            return  # the target may have them at any moment
        if step is Step.MOVED:
            self._data.has_moved(move)
        elif step is Step.DONE or (
            step is None and self._shard not in owners_of(self._view.map, left.ranges)
        ):
            if Step.DONE not in self._judge.stopped and self._leader.is_kept:
                self._data.has_moved(move)
                self._data.drop(move, self._view.map.epoch)
        elif self._judge.returns.may_stay(self._leader, move, left, found, self._now_ms):
            self._data.stay(move)

    def hide_lost(self, move: str, record: MoveRecord) -> bool:
        """Without N, a failover may lose LEAVE, and the map has given the slots to another shard.
        The keys that are left are hidden, and freed as after any move. False if that is not
        known yet."""
        if record.source != self._shard:
            return True
        if record.step not in OWNED:
            return record.step in ENDED
        if move in self._data.departures:
            return False
        own = {*slots_of(owned_by(self._view.map, self._shard))}
        return self._data.hide(move, {*slots_of(record.slots)} - own, record.target)

    # Steps

    def drive(self, move: str, found: Found[MoveRecord]) -> None:
        record = found.record
        if record.target == self._shard:
            if record.step is Step.PLANNED:
                self._begin(move, found)
            elif record.step is Step.COPYING:
                self._copy(move, found)
            elif record.step is Step.HANDING:
                self._take(move, found)
            elif record.step is Step.MOVED and self._data.is_settled(move):
                self._write(move, found, self._ended(record, Step.DONE, ""))
        elif record.source == self._shard and record.step is Step.HANDING:
            is_late = self._judge.age_ms(move, self._now_ms) > self._judge.handover_timeout_ms()
            if is_late or record.terms != self._terms(record):
                self._go_back(move, found, NO_TARGET if is_late else NEW_PRIMARY)

    def _begin(self, move: str, found: Found[MoveRecord]) -> None:
        view, record = self._view, found.record
        problem = problem_of(move, found, view)
        if problem:
            self._write(move, found, self._ended(record, Step.FAILED, problem))
            return
        busiest = max(running_of(view.moves, name) for name in (record.source, record.target))
        leftovers = [*self._data.imports.values()]
        leftovers += [left.ranges for left in self._data.departures.values()]
        if (
            busiest < RUNNING_MAX
            and self._source_of(record) is not None
            and not any(overlap(ranges, record.slots) for ranges in leftovers)
            and self._data.may_begin(record.slots)
        ):
            begun = record._replace(
                step=Step.COPYING, terms=self._terms(record), begun_ms=self._judge.clock_ms()
            )
            self._write(move, found, begun, both=True)

    def _copy(self, move: str, found: Found[MoveRecord]) -> None:
        record = found.record
        if not self._link(move, record) or self._note_obstacle(move, found):
            return
        if not self._view.is_backed_up:
            pause_ms = PAUSE_MS << min(record.retries, 10) if record.retries else 0
            is_due = self._judge.age_ms(move, self._now_ms) >= min(pause_ms, PAUSE_MAX_MS)
            if is_due and self._data.copied(move).is_close:
                handed = record._replace(
                    step=Step.HANDING, terms=self._terms(record), handed_ms=self._judge.clock_ms()
                )
                self._write(move, found, handed, Compare(BACKUP_LOCK, 0), both=True)

    def _note_obstacle(self, move: str, found: Found[MoveRecord]) -> bool:
        """Write why the copy waits, or that it does not wait any more. False if nothing changes."""
        obstacle, reason = self._data.copied(move).obstacle, found.record.reason
        if obstacle:
            reason = _text(WAITS + obstacle)
        elif reason.startswith(WAITS):
            reason = ""
        is_due = not obstacle or self._judge.age_ms(move, self._now_ms) >= WAITS_MS
        is_new = is_due and reason != found.record.reason
        if is_new:
            self._write(move, found, found.record._replace(reason=reason))
        return is_new

    def _take(self, move: str, found: Found[MoveRecord]) -> None:
        record, view = found.record, self._view
        if record.terms != self._terms(record):
            self._go_back(move, found, NEW_PRIMARY)
            return
        if not self._judge.has_seen_all(move, found.version, self._leader.gaps):
            self._go_back(move, found, LOST_SIGHT)
            return
        if not self._link(move, record):
            return
        self._data.hand_over(move, found.version)
        if self._data.has_all(move, found.version):
            wanted = moved_map(view.map, record.slots, record.target)
            self._write(
                move, found,
                record._replace(step=Step.MOVED, moved_ms=self._judge.clock_ms(), reason=""),
                Compare(MAP, view.map_version),
                both=True, changes=[Change(MAP, encode(wanted))],
            )  # fmt: skip

    def _link(self, move: str, record: MoveRecord) -> bool:
        """Copy from the primary of the source. False if there is none, or the move ends."""
        source = self._source_of(record)
        if source is not None:
            self._data.begin(move, record.slots, record.source, source)
        failure = self._data.copied(move).failure
        if not failure and self._judge.is_late(move, self._now_ms):
            failure = "the slots were not copied within cluster-move-timeout"
        if failure:
            found = self._view.moves[move]
            self._write(move, found, self._ended(record, Step.FAILED, failure))
        return source is not None and not failure

    def _go_back(self, move: str, found: Found[MoveRecord], reason: str) -> None:
        """The hand-over has failed: the source serves the slots again once this is written."""
        retries = found.record.retries + 1
        back = found.record._replace(step=Step.COPYING, reason=reason, retries=retries)
        self._write(move, found, back)

    def forget_some(self) -> None:
        """Remove the oldest records of moves to this shard that have ended."""
        ended = sorted(
            (found.version, move)
            for move, found in self._view.moves.items()
            if found.record.target == self._shard and found.record.step in ENDED
        )
        if len(ended) > ENDED_MAX and self._leader.may_write:
            version, move = ended[0]
            name = MOVE + move
            self._leader.write(Purpose.MOVE, [Compare(name, version)], [Change(name, None)])

    # Transactions

    def _terms(self, record: MoveRecord) -> tuple[int, int]:
        shards = self._view.shards
        source, target = (
            shards[name].record.term if name in shards else 0
            for name in (record.source, record.target)
        )
        return source, target

    def _source_of(self, record: MoveRecord) -> SourceNode | None:
        """The primary of the source; None if there is none."""
        found = self._view.shards.get(record.source)
        node = "" if found is None else found.record.primary
        address = self._leader.address_of(node) if node else None
        if found is None or address is None:
            return None
        return SourceNode(node, *address, found.record.term)

    def _ended(self, record: MoveRecord, step: Step, reason: str) -> MoveRecord:
        return record._replace(step=step, reason=_text(reason), ended_ms=self._judge.clock_ms())

    def _write(
        self,
        move: str,
        found: Found[MoveRecord],
        record: MoveRecord,
        *compares: Compare,
        both: bool = False,
        changes: Collection[Change] = (),
    ) -> None:
        """Write a step, if its record and the own shard, or both shards, are as they were."""
        if not self._leader.may_write:
            return
        if found.record.step is not record.step:
            log.warning(
                "the move %s of the slots %s from shard %s to %s: %s%s",
                move, shown_slots(record.slots), record.source, record.target, record.step,
                f" ({record.reason})" if record.reason else "",
            )  # fmt: skip
        shards = (record.source, record.target) if both else (self._shard,)
        name = MOVE + move
        self._leader.write(
            Purpose.MOVE,
            [
                Compare(name, found.version),
                *(Compare(SHARD + shard, self._view.shards[shard].version) for shard in shards),
                *compares,
            ],
            [Change(name, encode(record)), *changes],
        )


def canceled(record: MoveRecord, ended_ms: int, *, is_forced: bool = False) -> MoveRecord | None:
    """The record of a move that an operator has ended; None if it is too late for that. By force,
    also that of a move that has ended without success."""
    if record.step in UNDECIDED:
        ended = record._replace(step=Step.CANCELED, reason="", ended_ms=ended_ms)
        return ended._replace(is_forced=is_forced)
    if is_forced and record.step not in OWNED and not record.is_forced:
        return record._replace(is_forced=True)
    return None
