"""The links of moving slots at one node, and what the judge of moves orders (`move_data`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVarTuple

from millstream.errors import CommandError
from millstream.server.cluster.slot_moves.arrivals import Arrivals
from millstream.server.cluster.slot_moves.departures import Departures, LinkParts
from millstream.server.cluster.slot_moves.move_data import Copied, Left, SourceNode
from millstream.server.cluster.slot_moves.slot_connection import SlotConnection
from millstream.server.cluster.slot_moves.slot_data import SlotData
from millstream.server.cluster.slot_moves.slot_import import MoveOrder
from millstream.server.replication.role import Role
from millstream.storage.keyspace.slot_ranges import Ranges

Words = TypeVarTuple("Words")

log = logging.getLogger("millstream.cluster")


class MoveLinks:
    """`secret()` is that of the cluster, and `dial(host, port, connection)` begins to connect. An
    order that is not possible at present, for example because the disk is full, does nothing: the
    judge repeats it."""

    def __init__(
        self,
        role: Role,
        secret: Callable[[], bytes],
        dial: Callable[[str, int, SlotConnection], object],
    ) -> None:
        assert role.terms is not None
        self._role = role
        self._data = SlotData(role.keyspace, role.executor.effects)
        parts = LinkParts(
            role.machine, role.persistence, role.executor, role.feeds, role.histories,
            role.resync, role.terms, self._data, self.safe_seq,
        )  # fmt: skip
        self.leaving = Departures(parts)
        self.arriving = Arrivals(parts, secret, dial)
        self._refused: dict[str, str] = {}  # moves that cannot begin, and why
        self._is_to_look = False
        role.terms.confirming.when_confirmed = self._note_safe
        role.persistence.commits.follow(self)

    def stop(self) -> None:
        """The server stops: no link records anything after its last frame is on the disk."""
        self.arriving.halt_all()
        self.leaving.end_all("this server stops")

    def safe_seq(self) -> int:
        """The last frame that no election loses, and that is on the disk here."""
        on_disk_seq = self._role.persistence.commits.on_disk_seq
        return min(self._role.restrictions.safe_seq, on_disk_seq)

    def _note_safe(self) -> None:
        """More frames are safe: a hand-over continues at once, in a turn of its own."""
        is_awaited = self.leaving.awaits_safety or self.arriving.awaits_safety
        if is_awaited and not self._is_to_look:
            self._is_to_look = True
            self._role.machine.scheduler.call_soon(self._look_at_hand_overs)

    def _look_at_hand_overs(self) -> None:
        self._is_to_look = False
        self.leaving.look_at_hand_overs()
        self.arriving.look_at_hand_overs()

    # What commits report

    def durable(self, seq: int) -> None:
        self._note_safe()

    def synced(self) -> None:
        self._note_safe()

    def data_changed(self) -> None: ...
    def forget(self, client: Any) -> None:
        """A client has disconnected."""
        self.leaving.forget(client)

    @property
    def moved_bytes(self) -> int:
        return self.leaving.total_sent_bytes + self.arriving.total_received_bytes

    # What the judge needs

    @property
    def imports(self) -> Mapping[str, Ranges]:
        return {move: one.ranges for move, one in self._data.imports.items()}

    @property
    def departures(self) -> Mapping[str, Left]:
        return {move: Left(one.ranges, one.shard) for move, one in self._data.departures.items()}

    @property
    def epoch(self) -> int:
        return self._data.epoch

    def may_begin(self, ranges: Ranges) -> bool:
        return not self._data.is_freeing(ranges)

    def begin(self, move: str, ranges: Ranges, shard: str, source: SourceNode) -> None:
        try:
            self.arriving.begin(MoveOrder(move, ranges, shard, source))
        except CommandError as error:
            log.info("move %s does not begin yet: %s", move, error.message)
        except ValueError as error:
            self._refused[move] = str(error)

    def copied(self, move: str) -> Copied:
        failure = self._refused.get(move) or self.arriving.problem_of(move)
        return Copied(self.arriving.is_close(move), failure, self.arriving.obstacle_of(move))

    def hand_over(self, move: str, revision: int) -> None:
        self.arriving.hand_over(move, revision)

    def has_all(self, move: str, revision: int) -> bool:
        return self.arriving.has_all(move, revision)

    def own(self, move: str, epoch: int) -> None:
        self._try(self.arriving.own, move, epoch)

    def is_settled(self, move: str) -> bool:
        return self.arriving.is_settled(move)

    def keep(self, moves: Collection[str]) -> None:
        self.arriving.keep(moves)
        for move in self._refused.keys() - moves:
            del self._refused[move]

    def has_moved(self, move: str) -> None:
        self.leaving.note_moved(move)

    def stay(self, move: str) -> None:
        self._try(self.leaving.stay, move)

    def hide(self, move: str, slots: Collection[int], shard: str) -> bool:
        return self._try(self.leaving.hide, move, slots, shard)

    def drop(self, move: str, epoch: int) -> None:
        self._try(self.arriving.drop, move, epoch)
        self._try(self.leaving.drop, move, epoch)

    def _try(self, order: Callable[[str, *Words], None], move: str, *words: *Words) -> bool:
        """Carry out an order that records a frame; true if it was. The judge gives some as soon as
        this node is the primary in the store. Before its term begins here, a frame would continue
        the line of history of the old primary, which may have made another one with this number."""
        terms = self._role.terms
        if terms is None or not terms.is_leading:
            return False
        try:
            order(move, *words)
        except CommandError as error:
            log.warning("move %s: %s", move, error.message)
            return False
        return True
