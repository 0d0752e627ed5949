"""How far replicas have made the frames durable, for replies that wait for replicas."""

from __future__ import annotations


class HoldPoint:
    """`seq` is the last frame that enough replicas have on their disks. It never goes back: frames
    stay on the disks of replicas that disconnect."""

    def __init__(self) -> None:
        self.seq = 0

    def reach(self, seq: int) -> bool:
        """Advance to a frame; return whether that allows more replies to be sent."""
        if seq <= self.seq:
            return False
        self.seq = seq
        return True
