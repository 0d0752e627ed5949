"""The slots that come to this shard, at its primary: an import for each move.

The data says which moves there are: the slots are hidden until OWN is recorded. This has the links
of those that the judge of this node has begun.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from millstream.errors import CommandError
from millstream.server.cluster.slot_moves.departures import LOOK_S, LinkParts
from millstream.server.cluster.slot_moves.slot_connection import SlotConnection
from millstream.server.cluster.slot_moves.slot_import import MoveOrder, SlotImport

log = logging.getLogger("millstream.cluster")

FRAMES_MAX = 64  # that are remembered, of each kind


class Arrivals:
    """`secret()` is that of the cluster, and `dial(host, port, connection)` begins to connect.
    `on_change` is called when the judge may have something to do."""

    def __init__(
        self,
        parts: LinkParts,
        secret: Callable[[], bytes],
        dial: Callable[[str, int, SlotConnection], object],
    ) -> None:
        self.on_change: Callable[[], object] = lambda: None
        self.received_bytes = 0
        self._parts = parts
        self._secret = secret
        self._dial = dial
        self._by_move: dict[str, SlotImport] = {}
        self._owned: dict[str, int] = {}  # the frames with OWN of this run
        self._given_back: dict[str, int] = {}  # the frames that say so, until that was answered
        self._term = self._given_term = 0
        self._has_timer = False

    # Time

    def _look_later(self) -> None:
        if not self._has_timer:
            self._has_timer = True
            self._parts.machine.scheduler.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._has_timer = False
        terms = self._parts.terms
        if not terms.is_leading or terms.term != self._term:
            self.halt_all()
        for one in list(self._by_move.values()):
            one.look()
        if self._by_move:
            self._look_later()

    @property
    def awaits_safety(self) -> bool:
        """True if a hand-over waits until its frame is safe."""
        return any(one.is_nearly_handed for one in self._by_move.values())

    def look_at_hand_overs(self) -> None:
        """More frames are safe."""
        for one in list(self._by_move.values()):
            one.look_at_hand_over()

    # What the judge orders

    def begin(self, order: MoveOrder) -> None:
        """Begin to get these slots, or continue with another primary of the other shard.
        CommandError if that is not possible at present: this node is not the primary of its shard,
        earlier data of the slots is not freed yet, or the disk is full. ValueError if another move
        has some of the slots."""
        parts = self._parts
        if not parts.terms.is_leading:
            raise CommandError("ERR this node is not the primary of its shard")
        if parts.terms.term != self._term:
            self.halt_all()
            self._term = parts.terms.term
        found = self._by_move.get(order.move)
        if found is not None:
            found.follow(order.source)
            return
        if order.move in parts.data.owned:
            raise CommandError("ERR this shard has the slots already: etcd has an old state")
        if order.move not in parts.data.imports and parts.data.is_freeing(order.ranges):
            raise CommandError("TRYAGAIN earlier data of these slots is not freed yet")
        parts.persistence.commits.flush_tick()
        self._by_move[order.move] = SlotImport(
            parts, order, self._secret, self._dial, self._changed
        )
        self._look_later()

    def _changed(self) -> None:
        self.on_change()

    def is_close(self, move: str) -> bool:
        """True if little of a move is missing."""
        found = self._by_move.get(move)
        return found is not None and found.is_close

    def problem_of(self, move: str) -> str:
        """The reason why a move cannot be completed, or ""."""
        found = self._by_move.get(move)
        return "" if found is None else found.problem

    def obstacle_of(self, move: str) -> str:
        """The reason why a move waits, or ""."""
        found = self._by_move.get(move)
        return "" if found is None else found.obstacle

    def hand_over(self, move: str, asked_round: int) -> None:
        """Ask for the hand-over in this round, which the answer has to name."""
        found = self._by_move.get(move)
        if found is not None:
            found.hand_over(asked_round)

    def has_all(self, move: str, asked_round: int) -> bool:
        """True if the slots have left in this round, and no election here loses anything of
        them."""
        found = self._by_move.get(move)
        return found is not None and found.has_all(asked_round)

    def own(self, move: str, epoch: int) -> None:
        """Serve the slots: the map with this epoch names this shard."""
        self.halt(move)
        if move in self._parts.data.imports:
            self._parts.data.note_owned(move, epoch)
            self._parts.persistence.commits.flush_tick()
            self._note_last_frame(self._owned, move)

    def is_settled(self, move: str) -> bool:
        """True if no election here loses that the slots are owned."""
        if move in self._parts.data.imports:
            return False
        if move not in self._owned:
            self._note_last_frame(self._owned, move)
        return self._parts.safe_seq() >= self._owned[move]

    def _note_last_frame(self, frames: dict[str, int], move: str) -> None:
        """Remember the last frame for a move, and forget the oldest of too many moves."""
        if len(frames) >= FRAMES_MAX:
            del frames[next(iter(frames))]
        frames[move] = self._parts.persistence.commits.last_seq

    def drop(self, move: str, epoch: int) -> None:
        """End a move, and free what has arrived."""
        self.halt(move)
        if move in self._parts.data.imports:
            self._parts.data.note_dropped(move, epoch)
            self._parts.persistence.commits.flush_tick()

    def give_back(self, move: str) -> None:
        """The source is to serve the slots again: free what has arrived. CommandError if the slots
        are served here, and TRYAGAIN until no election here loses that they are not."""
        parts = self._parts
        if move in parts.data.owned:
            raise CommandError("ERR this shard serves the slots")
        if parts.terms.term != self._given_term:
            self._given_term = parts.terms.term
            self._given_back.clear()
        if move not in self._given_back:
            self.halt(move)
            parts.persistence.commits.flush_tick()
            parts.data.note_absent(move)
            parts.persistence.commits.flush_tick()
            self._note_last_frame(self._given_back, move)
            log.info("move %s: its slots stay with the other shard", move)
        if parts.safe_seq() < self._given_back[move]:
            raise CommandError("TRYAGAIN it is not on enough disks yet")
        del self._given_back[move]

    def halt(self, move: str) -> None:
        """End the link of a move."""
        found = self._by_move.pop(move, None)
        if found is not None:
            found.end()
            self.received_bytes += found.received_bytes

    def keep(self, moves: Collection[str]) -> None:
        """End the links of all other moves."""
        for move in [one for one in self._by_move if one not in moves]:
            self.halt(move)

    def halt_all(self) -> None:
        """This node is not the primary any more."""
        for move in list(self._by_move):
            self.halt(move)
        self._owned.clear()

    @property
    def total_received_bytes(self) -> int:
        return self.received_bytes + sum(one.received_bytes for one in self._by_move.values())
