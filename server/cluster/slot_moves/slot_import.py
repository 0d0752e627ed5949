"""One move of slots as the shard sees it that gets them: reading the copy and the effects, and
recording both.

| phase | meaning | what ends it |
|---|---|---|
| EMPTYING | slots that are to come again are emptied, in steps | they are empty: LINKING |
| LINKING | there is no answer of the source | the answer: COPYING or FOLLOWING |
| COPYING | the slots arrive | all are complete: FOLLOWING; the link ends: EMPTYING |
| FOLLOWING | the effects on them arrive | the slots have left: HANDED; the link ends: EMPTYING |
| HANDED | everything is here | own, or drop; the link ends: EMPTYING |
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from enum import StrEnum, auto
from typing import NamedTuple

from millstream.commands.runtime.effects import EffectError
from millstream.errors import CommandError
from millstream.server.cluster.slot_moves.departures import MISSING_MAX, LinkParts
from millstream.server.cluster.slot_moves.move_data import SourceNode
from millstream.server.cluster.slot_moves.slot_connection import (
    Answer,
    Refusal,
    SlotConnection,
)
from millstream.server.cluster.slot_moves.slot_records import (
    Left,
    Place,
    parse_copied,
    parse_left,
    parse_missing,
)
from millstream.server.execution.admission import OUT_OF_MEMORY
from millstream.server.replication.records import LinkError, Record, RecordKind
from millstream.storage.keyspace.slot_ranges import Ranges, slots_of

log = logging.getLogger("millstream.cluster")

SLICE_BYTES = 1 << 20  # applied in one turn of the event loop
PIECE_BYTES = SLICE_BYTES // 4  # a piece counts as at least that: it may have 1,000 keys
PENDING_MAX = 4 << 20
EFFECTS_BYTES = 4096  # of a frame, in addition to what has arrived
RANGE_BYTES = 12
AGAIN_MS = 200  # between two attempts to connect
BUSY_S = 0.01
EMPTIED_MAX = 2000  # keys and slots in one turn
SILENCE_MS = 10_000
ACK_MS = 1000  # at least that often
NO_PLACE = Place("", 0, -1)


class MoveOrder(NamedTuple):
    """A move to this shard, from the shard of this name."""

    move: str
    ranges: Ranges
    shard: str
    source: SourceNode


class Phase(StrEnum):
    EMPTYING = auto()
    LINKING = auto()
    COPYING = auto()
    FOLLOWING = auto()
    HANDED = auto()


class MemoryFull(Exception):
    """There is no memory for the slots."""


class Recorded(NamedTuple):
    """Everything up to a frame of the source is in this frame here."""

    seq: int
    number: int


class SlotImport:
    """`dial(host, port, connection)` begins to connect. `on_change` is called when the judge may
    have something to do."""

    def __init__(
        self,
        parts: LinkParts,
        order: MoveOrder,
        secret: Callable[[], bytes],
        dial: Callable[[str, int, SlotConnection], object],
        on_change: Callable[[], object],
    ) -> None:
        self.order = order
        self.problem = ""
        self.obstacle = ""  # why nothing can be copied or applied at present
        self.received_bytes = 0
        self.handed: Left | None = None
        self.place = NO_PLACE
        self._parts = parts
        self._secret = secret
        self._dial = dial
        self._on_change = on_change
        self._now_ms = parts.machine.steady_clock
        self._phase = Phase.EMPTYING
        self._connection: SlotConnection | None = None
        self._pending: deque[Record] = deque()
        self._pending_bytes = 0
        self._recorded: deque[Recorded] = deque()
        self._recorded_seq = parts.persistence.commits.last_seq
        self._missing_bytes: int | None = None
        self._copied_seq: int | None = None  # the frame here with which all slots are complete
        self._asked_round = 0
        self._last_slot = order.ranges[-1][1]
        self._heard_ms = self._acknowledged_ms = self._due_ms = self._now_ms()
        self._is_scheduled = self._is_ended = self._was_safe = False
        known = parts.data.imports.get(order.move)
        if known is None:
            self._note_place(NO_PLACE)
        else:
            self.place = Place(known.history, known.number, known.copied)
            self._note_copied()
        self._reached = self.place  # with what is applied and not recorded yet
        self._to_empty = self._slots_after(self.place.slot)
        self._log_reason = ""

    # What the judge asks

    @property
    def is_close(self) -> bool:
        """True if all slots are copied, no election here loses the copy, and little is missing. The
        source counts only the bytes of its frames: of a copy, the members may lack much more."""
        missing, copied_seq = self._missing_bytes, self._copied_seq
        is_following = self._phase in (Phase.FOLLOWING, Phase.HANDED)
        is_copied = copied_seq is not None and self._parts.safe_seq() >= copied_seq
        return is_following and is_copied and missing is not None and missing <= MISSING_MAX

    @property
    def is_safe(self) -> bool:
        """True if no election here loses what has arrived."""
        return not self._pending and self._parts.safe_seq() >= self._recorded_seq

    def has_all(self, asked_round: int) -> bool:
        handed = self.handed
        return handed is not None and handed.round == asked_round and self.is_safe

    # What the judge orders

    def follow(self, source: SourceNode) -> None:
        """The source is at this address now, in this term."""
        if source != self.order.source:
            self.order = self.order._replace(source=source)
            self._lose("the primary of the other shard is another one")

    def hand_over(self, asked_round: int) -> None:
        """Ask the source for the hand-over, once all slots are copied."""
        if asked_round != self._asked_round:
            self._asked_round = asked_round
            self.handed = None
            self._ask()

    def _ask(self) -> None:
        if self._asked_round and self._connection is not None:
            self._connection.send(b"CLUSTER", b"HANDSLOTS", b"%d" % self._asked_round)

    def end(self) -> None:
        """End the link permanently."""
        self._is_ended = True
        self._end_connection()

    # Time

    def look(self) -> None:
        """Called every few milliseconds."""
        if self._is_ended or self.problem:
            return
        now_ms = self._now_ms()
        self._acknowledge(now_ms)
        if self._phase is Phase.EMPTYING:
            self._empty()
        elif self._phase is Phase.LINKING and self._connection is None:
            if now_ms >= self._due_ms:
                self._connect()
        elif self._connection is not None and now_ms - self._heard_ms > SILENCE_MS:
            self._lose(f"no data was received for {SILENCE_MS // 1000} seconds")
        self.look_at_hand_over()

    @property
    def is_nearly_handed(self) -> bool:
        """True if the slots have left, but an election here might lose something of them."""
        return self.handed is not None and not self._was_safe

    def look_at_hand_over(self) -> None:
        """More frames may be safe."""
        if self._is_ended or self.problem:
            return
        is_safe = self.handed is not None and self.is_safe
        if is_safe and not self._was_safe:
            self._on_change()
        self._was_safe = is_safe

    def _acknowledge(self, now_ms: int) -> None:
        """Tell the source what is safe here."""
        safe_seq, number = self._parts.safe_seq(), 0
        while self._recorded and self._recorded[0].seq <= safe_seq:
            number = self._recorded.popleft().number
        if self._connection is not None and (number or now_ms - self._acknowledged_ms >= ACK_MS):
            self._acknowledged_ms = now_ms
            self._connection.send(b"CLUSTER", b"ACKSLOTS", b"%d" % number)

    # Emptying

    def _slots_after(self, slot: int) -> deque[int]:
        return deque(one for one in slots_of(self.order.ranges) if one > slot)

    def _empty(self) -> None:
        """One step of emptying the slots that are not complete: they come again."""
        commits = self._parts.persistence.commits
        commits.flush_tick()
        left = EMPTIED_MAX
        try:
            while self._to_empty and left > 0:
                keys = self._parts.data.empty_some(self._to_empty[0], left)
                if keys <= left:
                    self._to_empty.popleft()
                left -= keys + 1
        except CommandError:  # the disk is full: tried again
            return
        finally:
            commits.flush_tick()
        if not self._to_empty:
            self._phase = Phase.LINKING

    # The link

    def _connect(self) -> None:
        source, place = self.order.source, self.place
        history = place.history.encode() if place.slot >= 0 else b"?"
        where = [history, b"%d" % place.number, b"%d" % place.slot]
        edges = [b"%d" % edge for one in self.order.ranges for edge in one]
        words = [b"CLUSTER", b"COPYSLOTS", self.order.move.encode(), source.node.encode()]
        words += [b"%d" % source.term, *where, *edges]
        self._heard_ms = self._now_ms()
        self._connection = SlotConnection(self, self._secret(), words, source.term)
        self._dial(source.host, source.port, self._connection)

    def connection_lost(self, connection: SlotConnection, reason: str) -> None:
        if connection is self._connection:
            self._lose(reason)

    def _lose(self, reason: str) -> None:
        """The link has ended: connect again soon. What was not applied yet comes again. A hand-over
        counts also without the link: only the store can take it back, by another round."""
        if self._is_ended:
            return
        if reason != self._log_reason:
            self._log_reason = reason
            log.warning(
                "move %s: no link to the other shard (%s:%d): %s",
                self.order.move, self.order.source.host, self.order.source.port, reason,
            )  # fmt: skip
        had_records = self._connection is not None and self._connection.is_open
        self._end_connection()
        self._due_ms = self._now_ms() + (0 if had_records else AGAIN_MS)
        self._to_empty = self._slots_after(self.place.slot)
        self._phase = Phase.EMPTYING
        self._tell()

    def _tell(self) -> None:
        """In a turn of its own: what was applied and where that ends belong to one frame."""
        self._parts.machine.scheduler.call_soon(self._on_change)

    def _end_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()
        self._pending.clear()
        self._pending_bytes = 0
        self._missing_bytes = None

    def receive(self, connection: SlotConnection, data: bytes) -> None:
        if connection is not self._connection or not self._parts.terms.is_leading:
            return  # in the latter case, the link ends soon
        self.received_bytes += len(data)
        self._heard_ms = self._now_ms()
        try:
            for event in connection.events(data):
                self._take(event)
                if connection.is_over:
                    return
        except LinkError as error:
            self._lose(str(error))
            return
        self._apply_soon()
        connection.read_more(self._pending_bytes < PENDING_MAX)

    def _take(self, event: Answer | Refusal | Record) -> None:
        if isinstance(event, Record):
            self._pending.append(event)
            self._pending_bytes += event.size
        elif isinstance(event, Refusal):
            self._lose(event.text)
            self.obstacle = f"the other shard refuses: {event.text}"
        elif event.continues or self.place.slot < 0:
            self._begin(event.line)
        else:
            self._begin_again()

    def _begin_again(self) -> None:
        """The source does not have the last frame that was received: nothing counts."""
        self._parts.persistence.commits.flush_tick()
        self.handed = None
        with contextlib.suppress(CommandError):  # the disk is full: noted next time
            self._note_place(NO_PLACE)
            log.warning("move %s: the copy begins again", self.order.move)
        self._lose("the source does not have the last frame that was received")

    def _begin(self, line: str) -> None:
        self._log_reason = self.obstacle = ""
        self.place = self._reached = self.place._replace(history=line)
        has_all = self.place.slot >= self._last_slot
        self._phase = Phase.FOLLOWING if has_all else Phase.COPYING
        # A new link knows nothing of what is safe here, and a quiet source sends no frame.
        self._recorded.append(Recorded(self._recorded_seq, self.place.number))
        self._ask()

    # Recording

    def _apply_soon(self, delay_s: float = 0.0) -> None:
        if not self._is_scheduled and self._pending:
            self._is_scheduled = True
            scheduler = self._parts.machine.scheduler
            if delay_s:
                scheduler.call_later(delay_s, self._apply)
            else:
                scheduler.call_soon(self._apply)

    def _apply(self) -> None:
        self._is_scheduled = False
        parts = self._parts
        if self._is_ended or not self._pending or not parts.terms.is_leading:
            return
        commits = parts.persistence.commits
        if commits.queued_bytes > parts.feeds.config.journal_queue_limit:
            self._apply_soon(BUSY_S)
            return
        commits.flush_tick()
        delay_s, lost, obstacle = 0.0, "", ""
        try:
            self._apply_slice()
        except CommandError as error:  # the disk is full: tried again
            delay_s, obstacle = BUSY_S, str(error)
            if not self.obstacle:
                log.warning("move %s waits: %s", self.order.move, obstacle)
        except (EffectError, ValueError) as error:
            self.fail(f"what the other shard has sent cannot be applied: {error}")
            return
        except MemoryFull as error:
            self.fail(f"the new shard has no memory for the slots: {error}")
            return
        except LinkError as error:
            lost = str(error)
        self.obstacle = obstacle
        if self._reached != self.place:  # there is room for that
            self._note_place(self._reached)
        else:
            commits.flush_tick()
        if lost:
            self._lose(lost)
            return
        if self._connection is not None:
            self._connection.read_more(self._pending_bytes < PENDING_MAX)
        self._apply_soon(delay_s)

    def _apply_slice(self) -> None:
        """Apply as much of what has arrived as one turn may take."""
        parts = self._parts
        room_bytes = parts.executor.eviction_work.make_room()
        refusal = parts.executor.admission.out_of_memory
        left_bytes = SLICE_BYTES
        place_bytes = EFFECTS_BYTES + RANGE_BYTES * len(self.order.ranges)
        while self._pending and left_bytes > 0:
            record = self._pending[0]
            parts.executor.effects.require_room(record.size + place_bytes)
            if record.kind in (RecordKind.FRAME, RecordKind.SLOT_PIECE):
                if refusal is not None:
                    raise MemoryFull(refusal)
                if record.kind == RecordKind.SLOT_PIECE:
                    room_bytes -= record.size
                    if room_bytes < 0:
                        self._lack_memory(is_measured=left_bytes == SLICE_BYTES)
                        return
                if record.payload:
                    parts.data.take(record.payload)
                if record.kind == RecordKind.FRAME:
                    self._reached = self._reached._replace(number=record.number)
            else:
                self._take_word(record)
            self._pending.popleft()
            self._pending_bytes -= record.size
            is_piece = record.kind == RecordKind.SLOT_PIECE
            left_bytes -= max(record.size, PIECE_BYTES) if is_piece else record.size

    def _lack_memory(self, *, is_measured: bool) -> None:
        """The next piece does not fit. Without a measurement directly before it, that is only an
        estimate: the next turn measures. MemoryFull if nothing can be freed for it; CommandError
        if something was freed, so that another attempt follows."""
        if is_measured:
            if self._parts.executor.eviction_work.frees_more():
                raise CommandError(OUT_OF_MEMORY)
            raise MemoryFull(OUT_OF_MEMORY)

    def _take_word(self, record: Record) -> None:
        if record.kind == RecordKind.SLOTS_BEAT:
            self._missing_bytes = parse_missing(record.payload)
        elif record.kind == RecordKind.SLOTS_COPIED:
            number, slot = parse_copied(record.payload)
            self._reached = self._reached._replace(number=number, slot=slot)
            if slot >= self._last_slot:
                self._phase = Phase.FOLLOWING
                self._tell()
        elif record.kind == RecordKind.SLOTS_LEFT:
            self.handed = parse_left(record.payload)
            self._phase = Phase.HANDED
            self._tell()
            self._reached = self._reached._replace(number=self.handed.number)
        else:
            raise LinkError(f"a record of kind {record.kind.name} for slots")

    def _note_place(self, place: Place) -> None:
        """Record how far the import is, with what was applied since the last time."""
        order, commits = self.order, self._parts.persistence.commits
        self._parts.data.note_import(order.move, order.ranges, order.shard, place)
        self.place = self._reached = place
        commits.flush_tick()
        self._recorded_seq = commits.last_seq
        self._note_copied()
        self._recorded.append(Recorded(commits.last_seq, place.number))

    def _note_copied(self) -> None:
        if self.place.slot < self._last_slot:
            self._copied_seq = None
        elif self._copied_seq is None:
            self._copied_seq = self._recorded_seq

    def fail(self, problem: str) -> None:
        """The move cannot be completed."""
        log.error("move %s: %s", self.order.move, problem)
        self.problem = problem
        self._end_connection()
        self._parts.persistence.commits.flush_tick()
        self._tell()
