"""The keys of a cluster slot at one moment, as effects of a limited size."""

from __future__ import annotations

from millstream.commands.runtime.effects import Effects
from millstream.storage.capture.key_parts import PART_BYTES, weight_of
from millstream.storage.capture.slot_capture import SlotCapture
from millstream.storage.keyspace.keyspace import Keyspace

_EFFECTS_MAX = 1000  # of a piece: about two milliseconds' work for the target


class SlotPieces:
    """A capture of one slot; there may be others. A piece is the payload of a frame: the first one
    empties the slot, and each makes keys, or parts of them. A piece has at most about twice
    PART_BYTES."""

    def __init__(self, keyspace: Keyspace, slot: int) -> None:
        """Capture the slot as it is after the last frame; nothing may be recorded that is not
        committed."""
        self._capture: SlotCapture | None = SlotCapture(keyspace, slot)
        self._effects = Effects()
        self._count = 0  # of these effects

    def step(self) -> bytes | None:
        """The next piece; empty after about a millisecond's work without a full one; None at the
        end."""
        if self._capture is None:
            return None
        parts = self._capture.step()
        for part in parts or ():
            if part:
                self._effects.record(0, *part)
                self._count += weight_of(part)
        is_full = len(self._effects) >= PART_BYTES or self._count >= _EFFECTS_MAX
        if parts is not None and not is_full:
            return b""
        self._count = 0
        if parts is None:
            self.close()
        piece = self._effects.take_payload()
        if piece is None:
            raise MemoryError("no memory to copy a slot")
        return piece or None

    def close(self) -> None:
        """End a complete or cancelled capture."""
        if self._capture is not None:
            self._capture.close()
            self._capture = None
