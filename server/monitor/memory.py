"""How much memory is used: what `maxmemory` is compared with and INFO shows.

What the process holds of the machine's memory (its resident set) is no measure to evict by: blocks
that were freed stay with the C library for the next ones, so it hardly falls however much goes. The
C library could be asked, but walks everything that is free to answer: a tenth of a second and more
for 100,000 holes. So the bytes of blocks and the rest are counted separately. Blocks are counted as
they come and go. The rest is all other memory, minus the space that blocks have left free: it
grows when the process takes memory that the blocks, with that room, do not account for, and falls
as it gives memory back that no blocks have left. What others take of the free room shows as soon as
it is used up; until then the process does not grow.

Journal frames that wait for the disk take memory for a moment, more when the disk is slow. They are
not data: dropping data for them would lose what the disk has only delayed. So they are counted
separately, like blocks, but not as used memory.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.monitor.allocator import ResidentSet
from millstream.storage.blocks.block import open_bytes
from millstream.storage.blocks.skiplist import sealed_bytes


def block_bytes() -> int:
    """The bytes of all blocks that streams have."""
    return sealed_bytes() + open_bytes()


class Gauge:
    """Used memory in bytes. `held` gives what the process holds, `blocks` what blocks take, and
    `transient` what waits for the disk; it may be set later."""

    def __init__(
        self,
        held: Callable[[], int] | None = None,
        blocks: Callable[[], int] = block_bytes,
        transient: Callable[[], int] = lambda: 0,
    ) -> None:
        self._read_held = held or ResidentSet()
        self._read_blocks = blocks
        self.transient = transient
        self._held = self._read_held()
        self._blocks = blocks()
        self._rest = self._rest_at_first = max(0, self._held - self._blocks)

    def measure(self) -> int:
        """Used memory, measured again."""
        held, transient = self._read_held(), self.transient()
        blocks = self._read_blocks() + transient
        more_held, more_blocks = held - self._held, blocks - self._blocks
        room = max(0, self._held - self._blocks - self._rest)
        if more_held > 0:
            rest = self._rest + max(0, more_held - max(0, more_blocks - room))
        else:
            # Blocks may have left what is given back, or others. Others are taken for it: they are
            # counted again as soon as the process grows, and blocks would be dropped for what has
            # long gone again if each to and fro added to the rest.
            rest = max(self._rest + more_held, min(self._rest, self._rest_at_first))
        self._rest = max(0, min(rest, held - blocks))
        self._held, self._blocks = held, blocks
        return blocks - transient + self._rest

    def held(self) -> int:
        """What the process holds of the machine's memory."""
        return self._read_held()

    def estimate(self) -> int:
        """As of the last measure, but for the blocks that came and went since: cheap."""
        return self._read_blocks() + self._rest
