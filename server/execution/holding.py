"""How far replies may show what was executed, where they wait for replicas too."""

from __future__ import annotations


class HoldPoint:
    """`seq` is the last frame that enough replicas have on their disks. It never goes back: what
    was on enough disks stays there, also while the replicas are away."""

    def __init__(self) -> None:
        self.seq = 0

    def reach(self, seq: int) -> bool:
        """Note a frame; whether more may be shown than before."""
        if seq <= self.seq:
            return False
        self.seq = seq
        return True
