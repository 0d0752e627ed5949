"""One move of slots as their present owner sees it: the copy of the slots, then the effects.

The slots are copied in batches, in the order of their numbers. All slots of a batch are captured
after the same frame, the last one at that time. Their pieces are sent, then the effects of the
frames up to that one on the slots before, each once no election loses its frame, and then that the
batch is complete. From then on the effects on its slots are sent, too. So a target always has the
slots up to one of them as they were after one frame, and can continue there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from millstream.commands.later.slot_pieces import SlotPieces
from millstream.server.cluster.slot_moves.safe_frames import Mark, SafeFrames
from millstream.server.cluster.slot_moves.slot_data import SlotData
from millstream.server.cluster.slot_moves.slot_records import (
    Left,
    Place,
    encode_copied,
    encode_left,
    encode_missing,
)
from millstream.server.durability.commits import Commits
from millstream.server.durability.workers import Machine
from millstream.server.replication.backlog import FrameSource
from millstream.server.replication.records import RecordKind, encode, encode_frame
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS
from millstream.storage.keyspace.slot_ranges import Ranges, slots_of

log = logging.getLogger("millstream.cluster")

BATCH_SLOTS = 64
TURN_BYTES = 1 << 20  # sent in one turn of the event loop
BEAT_MS = 100
SILENCE_MS = 10_000
UNACKNOWLEDGED_MAX = 1000  # marks


class FeedParts(NamedTuple):
    """The parts of this server that a feed uses. `safe_seq()` is the last frame that no election
    loses."""

    machine: Machine
    commits: Commits
    source: FrameSource
    data: SlotData
    safe_seq: Callable[[], int]


class SlotFeed:
    """`client.feed` is this object. `asked_round` is that of the last request for the hand-over; 0:
    there was none. `on_end(client)` is called when this server ends the link."""

    is_replica = False

    def __init__(
        self,
        parts: FeedParts,
        client: Any,
        move: str,
        ranges: Ranges,
        on_end: Callable[[Any], None],
    ) -> None:
        self.client = client
        self.address: str = client.address
        self.move = move
        self.ranges = ranges
        self.asked_round = 0
        self.sent_bytes = 0
        self._parts = parts
        self._on_end = on_end
        self._wanted = bytearray(CLUSTER_SLOTS)  # 1: the effects on this slot are sent
        self._slots = deque(slots_of(ranges))  # that are not captured yet
        self._batch: list[int] = []  # the slots that are copied now
        self._batch_seq = 0
        self._captures: deque[SlotPieces] = deque()
        self._frames: SafeFrames | None = None
        self._told_seq = 0  # the last frame of which the target knows that it has its effects
        self._unacknowledged: deque[Mark] = deque()
        self._acknowledged_bytes: int | None = None
        self._left = Left(0, 0)  # what is to be told
        self._told_round = 0
        self._heard_ms = self._beat_ms = parts.machine.steady_clock()
        self._has_begun = self._is_scheduled = False
        self._obstacle = ""  # as the log has said

    # Beginning and end

    def begin(self, line: str, place: Place | None) -> None:
        """Answer COPYSLOTS: the target has everything up to this place; None: nothing counts."""
        if self.client.closed:
            return
        commits = self._parts.commits
        commits.flush_tick()
        mark = Mark(commits.last_seq, commits.frame_bytes)
        if place is not None:
            while self._slots and self._slots[0] <= place.slot:
                self._wanted[self._slots.popleft()] = 1
        next_seq = mark.number + 1 if place is None else place.number + 1
        self._frames = SafeFrames(
            self._parts.source, self._parts.machine, next_seq, mark, self.pump, self.drop
        )
        self._told_seq = next_seq - 1
        self._has_begun = True
        word = "COPY" if place is None else "CONTINUE"
        self._send(f"+{word} {line}\r\n".encode())
        self.pump()

    def drop(self, reason: str) -> None:
        """End the link; the target connects again."""
        if not self.client.closed:
            log.warning("the link for the slots of move %s ends: %s", self.move, reason)
            self.client.close(after_reply=False)
        self._on_end(self.client)

    def close(self) -> None:
        """The connection has ended."""
        for capture in self._captures:
            capture.close()
        self._captures.clear()
        if self._frames is not None:
            self._frames.close()

    # What the target says

    def acknowledge(self, number: int) -> None:
        """The target has everything up to this frame."""
        self._heard_ms = self._parts.machine.steady_clock()
        while self._unacknowledged and self._unacknowledged[0].number <= number:
            self._acknowledged_bytes = self._unacknowledged.popleft().frame_bytes

    @property
    def has_all_slots(self) -> bool:
        return self._has_begun and not self._slots and not self._batch

    @property
    def missing_bytes(self) -> int | None:
        """The size of the frames that the target has not acknowledged; None: not known."""
        if self._acknowledged_bytes is None:
            return None
        return self._parts.commits.frame_bytes - self._acknowledged_bytes

    def needs_frame(self, number: int) -> bool:
        """True if this frame is not read yet."""
        return self._frames is not None and self._frames.next_seq <= number

    # The hand-over

    def note_obstacle(self, obstacle: str) -> None:
        """The slots cannot leave at present."""
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            log.warning("the hand-over of move %s waits: %s", self.move, obstacle)

    def say_left(self, left: Left) -> None:
        """Say that the slots have left, once no election loses the frame and everything before was
        sent."""
        self._left = left
        self.pump()

    @property
    def is_leaving(self) -> bool:
        """True if the target is to be told that the slots have left."""
        return self._told_round < self._left.round

    # Sending

    def _send(self, data: bytes) -> None:
        if not self.client.closed:
            self.sent_bytes += len(data)
            self.client.transmit(data)

    def look(self) -> None:
        """Send what is safe by now, and a beat if it is time."""
        now_ms = self._parts.machine.steady_clock()
        if now_ms - self._heard_ms > SILENCE_MS:
            self.drop(f"no data was received from it for {SILENCE_MS // 1000} seconds")
            return
        self.pump()
        if self._has_begun and now_ms - self._beat_ms >= BEAT_MS and not self.client.paused:
            self._beat_ms = now_ms
            self._send(encode_missing(self.missing_bytes, self._parts.source.term))

    def pump(self) -> None:
        """Send as much as the connection takes; the rest when it takes more, or in a later turn."""
        left_bytes = TURN_BYTES
        while self._has_begun and not (self.client.closed or self.client.paused):
            if left_bytes <= 0:
                self._pump_later()
                return
            data = self._next_data()
            if not data:
                break
            left_bytes -= len(data)
            self._send(data)
        self._note_sent()

    def _pump_later(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._parts.machine.scheduler.call_soon(self._pump_now)

    def _pump_now(self) -> None:
        self._is_scheduled = False
        if self.client.closed:
            return
        if self._slots and not self._batch:
            self._begin_batch()
        self.pump()

    def _next_data(self) -> bytes | None:
        """The next record; None: there is none at present."""
        term = self._parts.source.term
        while self._captures:
            piece = self._captures[0].step()
            if piece:
                return encode(self._batch_seq, RecordKind.SLOT_PIECE, piece, term)
            if piece is not None:
                self._pump_later()
                return None
            self._captures.popleft().close()
        found = self._next_effects()
        if found is not None:
            return found
        assert self._frames is not None
        sent_seq = self._frames.next_seq - 1
        if self._batch:
            return self._end_batch() if sent_seq >= self._batch_seq else None
        if self._slots:
            self._pump_later()
        elif self.is_leaving and sent_seq >= self._left.number:
            self._told_round = self._left.round
            return encode_left(self._left, term)
        return None

    def _next_effects(self) -> bytes | None:
        """The next frame that has effects for the target. While a batch is copied, none after the
        frame at which it was captured."""
        assert self._frames is not None
        last_seq = self._parts.safe_seq()
        if self._batch:
            last_seq = min(last_seq, self._batch_seq)
        left_bytes = TURN_BYTES
        while left_bytes > 0:
            frame = self._frames.next(last_seq)
            if frame is None:
                return None
            left_bytes -= len(frame.payload)
            effects = self._parts.data.divide(frame.payload, self._wanted)
            if effects:
                self._told_seq = frame.number
                return encode_frame(frame.number, effects, self._parts.source.term)
        self._pump_later()
        return None

    def _note_sent(self) -> None:
        """Tell the target how far it is, also if the last frames have nothing for it."""
        frames = self._frames
        if frames is None or self._batch:
            return
        sent_seq = frames.next_seq - 1
        now_ms = self._parts.machine.steady_clock()
        if sent_seq > self._told_seq and now_ms - self._beat_ms >= BEAT_MS:
            self._told_seq = sent_seq
            self._send(encode_frame(sent_seq, b"", self._parts.source.term))
        if frames.read_bytes is None or self._told_seq < sent_seq:
            return
        marks = self._unacknowledged
        if (not marks or marks[-1].number < sent_seq) and len(marks) < UNACKNOWLEDGED_MAX:
            marks.append(Mark(sent_seq, frames.read_bytes))

    # Batches

    def _begin_batch(self) -> None:
        """Capture the next slots after the last frame, in a turn of its own."""
        commits = self._parts.commits
        commits.flush_tick()
        self._batch_seq = commits.last_seq
        while self._slots and len(self._batch) < BATCH_SLOTS:
            slot = self._slots.popleft()
            self._batch.append(slot)
            self._captures.append(self._parts.data.capture(slot))

    def _end_batch(self) -> bytes:
        slot = self._batch[-1]
        for one in self._batch:
            self._wanted[one] = 1
        self._batch = []
        self._told_seq = self._batch_seq
        return encode_copied(self._batch_seq, slot, self._parts.source.term)
