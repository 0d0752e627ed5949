"""Slots that have left and may be served again at their source, or not, without I/O.

The store says that a hand-over was taken back. This is certain for a primary that has recorded
LEAVE itself, and has followed the store without a gap since. After a gap, the store may have been
restored from a backup of before the end of the hand-over, and the other shard may serve the slots.
A later primary, or one that was restarted, does not know what the store had meanwhile.

They ask the primary of the other shard. It refuses if its data has the slots. Otherwise it frees
what it has copied, and answers when no election of its shard loses that. An answer counts for the
state of the store in which it was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import NamedTuple, Protocol

from millstream.commands.admin.cluster_peers import ReturnRequest
from millstream.server.cluster.cluster_view import ClusterView, Found
from millstream.server.cluster.member_actions import Action, Address, AskReturn
from millstream.server.cluster.slot_moves.move_data import Left
from millstream.server.cluster.slot_moves.move_rules import OWNED
from millstream.server.cluster.store.records import MoveRecord, Step

log = logging.getLogger("millstream.cluster")

AGAIN_MS = 250
KEPT_MAX = 256
NEVER = 1 << 62  # more hand-overs than there can be


class Leader(Protocol):
    """The member that is the primary (`membership.Member`)."""

    view: ClusterView | None
    shard: str
    led_term: int
    gaps: int
    actions: list[Action]

    def address_of(self, node: str) -> Address | None: ...


class State(NamedTuple):
    """The state for which answers count: the record of the move, the gaps in what was seen of the
    store, and the own term."""

    found: Found[MoveRecord] | None
    gaps: int
    term: int


class Returns:
    """`forced` are moves whose slots an operator wants to be served here."""

    def __init__(self) -> None:
        self.forced: set[str] = set()
        self._left: dict[str, int] = {}  # the gaps when LEAVE was allowed
        self._answers: dict[str, tuple[State, set[str]]] = {}  # shards that have not the slots
        self._asked_ms: dict[tuple[str, str], int] = {}
        self._given_back: dict[str, int] = {}  # hand-overs before this number do not count

    # The source

    def note_leave(self, move: str, gaps: int) -> None:
        """LEAVE may be recorded now."""
        self._left[move] = gaps

    def reset(self) -> None:
        """This node is not the primary."""
        for known in (self._left, self._answers, self._asked_ms, self.forced):
            known.clear()

    def waits_for(self, move: str) -> str:
        """The reason for which a move waits, or ""."""
        if move not in self._answers:
            return ""
        return "the other shard has to say that it does not serve the slots"

    def may_stay(
        self, leader: Leader, move: str, left: Left, found: Found[MoveRecord] | None, now_ms: int
    ) -> bool:
        """True if the slots may be served again. Otherwise the other shard is asked; all others if
        it is not known which one that is."""
        is_forced = move in self.forced or (found is not None and found.record.is_forced)
        if is_forced or self._left.get(move) == leader.gaps:
            return True
        view = leader.view
        assert view is not None
        state = State(found, leader.gaps, leader.led_term)
        if move not in self._answers:
            log.warning("move %s: the other shard is asked whether it serves the slots", move)
        if move not in self._answers or self._answers[move][0] != state:
            self._answers[move] = state, set()
        answered = self._answers[move][1]
        target = left.shard or ("" if found is None else found.record.target)
        others = view.shards.keys() - {leader.shard}
        with_members = {name for name in others if view.shards[name].record.members}
        missing = ({target} if target else with_members) - answered
        for shard in sorted(missing):
            self._ask(leader, view, move, shard, now_ms)
        return not missing

    def _ask(self, leader: Leader, view: ClusterView, move: str, shard: str, now_ms: int) -> None:
        if now_ms - self._asked_ms.get((move, shard), -AGAIN_MS) < AGAIN_MS:
            return
        found = view.shards.get(shard)
        address = leader.address_of(found.record.primary) if found is not None else None
        if found is None or address is None:
            return
        self._asked_ms[move, shard] = now_ms
        state = self._answers[move][0]
        retries = NEVER
        if state.found is not None and state.found.record.step is Step.COPYING:
            retries = state.found.record.retries
        asked = ReturnRequest(move, found.record.primary, found.record.term, retries)
        leader.actions.append(AskReturn(address, asked, shard, state))

    def answered(self, action: AskReturn) -> None:
        """The primary of a shard does not serve the slots."""
        state, shards = self._answers.get(action.asked.move, (None, set()))
        if state == action.state:
            shards.add(action.shard)

    def _forget(self, move: str) -> None:
        self._answers.pop(move, None)
        self._left.pop(move, None)
        self.forced.discard(move)
        for key in [key for key in self._asked_ms if key[0] == move]:
            del self._asked_ms[key]

    def keep(self, moves: Collection[str]) -> None:
        """Forget all other moves: their slots have not left."""
        for move in {*self._answers, *self._left, *self.forced} - {*moves}:
            self._forget(move)

    # The target

    def note_given_back(self, asked: ReturnRequest) -> None:
        """The source learns that the slots are not here: what the store had before does not count
        any more, if it is read late."""
        before = self._given_back.pop(asked.move, 0)
        self._given_back[asked.move] = max(before, asked.retries)
        if len(self._given_back) > KEPT_MAX:
            del self._given_back[next(iter(self._given_back))]

    def is_void(self, view: ClusterView) -> bool:
        """True if a view has slots here that were given back."""
        return any(
            view.moves[move].record.step in OWNED and view.moves[move].record.retries < retries
            for move, retries in self._given_back.items()
            if move in view.moves
        )
