"""The frames that a replica has received: waiting in order, and applied in slices.

Whole frames are applied, the first slice in the turn in which they arrive and one in each later
turn, and committed under their own numbers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.commands.runtime.effects import EffectError, apply_effects
from millstream.server.durability.directory_loader import LINE_EFFECT
from millstream.server.replication.records import LinkError, Record

if TYPE_CHECKING:
    from millstream.server.replication.following import Following
    from millstream.server.replication.node import Node

_SLICE_BYTES = 64 << 10  # applied in one turn: less than a millisecond's work
_PENDING_MAX = 1 << 20  # received and not applied, before nothing more is read
_AGAIN_S = 0.01  # until the journal's queue is checked again


class FrameApplier:
    """`due_seq` is the number that the next frame from the primary must have. `is_applying`: a
    slice is half applied, so the data here is that of no frame."""

    def __init__(self, node: Node, following: Following) -> None:
        self.due_seq = 0
        self.is_applying = False
        self._node = node
        self._following = following
        self._pending: deque[Record] = deque()
        self._pending_bytes = 0
        self._is_scheduled = False

    @property
    def is_full(self) -> bool:
        """Whether the limit of waiting bytes is reached, so that no more should be read."""
        return self._pending_bytes > _PENDING_MAX

    def expect_next(self) -> None:
        """The link continues after the last frame here. Frames may have arrived after a base that
        was loaded meanwhile."""
        self.due_seq = self._node.persistence.last_seq + 1 + len(self._pending)

    def check_number(self, record: Record) -> None:
        """A frame has arrived, to be applied or, during a full sync, to be written to a file.
        LinkError when it is not the one that was due."""
        if record.number != self.due_seq:
            raise LinkError(f"received frame {record.number}, expected {self.due_seq}")
        self.due_seq += 1

    def frame(self, record: Record) -> None:
        """Apply this frame soon."""
        self._pending.append(record)
        self._pending_bytes += record.size

    def clear(self) -> None:
        """Drop what is not applied yet."""
        self._pending.clear()
        self._pending_bytes = 0

    def apply_arrived(self) -> None:
        """Apply what has arrived in this turn and the next ones, while the link is up."""
        if not self._is_scheduled:
            self._apply()

    def schedule(self) -> None:
        """Apply what has arrived in the next turns of the loop, while the link is up."""
        if not self._is_scheduled and self._following.is_connected:
            self._is_scheduled = True
            self._node.loop.call_soon(self._apply)

    def apply_all(self) -> None:
        """Apply all complete frames that have arrived: the link is lost, or before a promotion."""
        while self._following.is_connected and self._pending:
            self._apply_slice()

    def _apply(self) -> None:
        self._is_scheduled = False
        if not self._following.is_connected or not self._pending:
            return
        if self._node.persistence.queued_bytes > self._node.config.journal_queue_limit:
            self._is_scheduled = True
            self._node.loop.call_later(_AGAIN_S, self._apply)
            return
        self._apply_slice()
        if self._pending:
            self.schedule()
        self._following.read_if_below_limit()

    def _apply_slice(self) -> None:
        """Apply about as much as one turn may take of what has arrived."""
        node = self._node
        keyspace, frames = node.keyspace, node.persistence
        left_bytes = _SLICE_BYTES
        node.executor.recheck_limits()  # the time of what is applied
        keyspace.expiring = False  # the frames say which keys were deleted
        self.is_applying = True
        try:
            while self._pending and left_bytes > 0:
                record = self._pending.popleft()
                self._pending_bytes -= record.size
                left_bytes -= record.size
                keyspace.dirty += apply_effects(keyspace, record.payload)
                if record.payload.startswith(LINE_EFFECT):
                    frames.bytes_before_line = frames.frame_bytes
                frames.commit(record.payload)
        except EffectError as error:
            self.clear()  # the frames after it have nothing to follow
            self._following.distrust(record.number, error)
        finally:
            self.is_applying = False
            keyspace.expiring = True
        self._following.slice_applied()
