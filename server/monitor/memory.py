"""Used memory: the figure that `maxmemory` limits and INFO shows.

The resident set of the process is not a suitable measure for eviction: the C library keeps freed
blocks for reuse, so the resident set hardly shrinks however much is evicted. The C library could
report the free memory, but it would walk all of it: a tenth of a second or more for 100,000 holes.
Therefore the bytes of blocks and the rest are counted separately. Blocks are counted when they are
allocated and freed. The rest is all other memory, minus the space that freed blocks have left: it
grows when the process grows by more than the blocks and that space explain, and shrinks when the
process returns memory that was not left by blocks. If other objects use the free space, this shows
as soon as the space is used up; until then the process does not grow.

Journal frames that wait for the disk use memory temporarily, more if the disk is slow. They are not
data: evicting data for them would lose data only because the disk is slow. They are counted
separately, like blocks, but not as used memory.
"""

from __future__ import annotations

from collections.abc import Callable

from millstream.server.monitor.allocator import ResidentSet
from millstream.storage.blocks.open_block import open_bytes
from millstream.storage.blocks.skiplist import sealed_bytes


def block_bytes() -> int:
    """The bytes of the blocks of all streams."""
    return sealed_bytes() + open_bytes()


class Gauge:
    """Computes used memory in bytes. `held` returns the resident set, `blocks` the bytes of blocks,
    and `transient` the bytes that wait for the disk; it may be set later."""

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
        self._used = self._measured_ms = -1
        self.startup_bytes = self._blocks + self._rest

    def measure(self) -> int:
        """Used memory, measured again."""
        held, transient = self._read_held(), self.transient()
        blocks = self._read_blocks() + transient
        more_held, more_blocks = held - self._held, blocks - self._blocks
        free_bytes = max(0, self._held - self._blocks - self._rest)
        if more_held > 0:
            rest = self._rest + max(0, more_held - max(0, more_blocks - free_bytes))
        else:
            # The returned memory may come from blocks or from other objects. Other objects are
            # assumed: they are counted again as soon as the process grows. Otherwise each
            # oscillation would add to the rest, and blocks would be evicted for memory that is
            # already free.
            rest = max(self._rest + more_held, min(self._rest, self._rest_at_first))
        self._rest = max(0, min(rest, held - blocks))
        self._held, self._blocks = held, blocks
        return blocks - transient + self._rest

    def held(self) -> int:
        """The resident set of the process."""
        return self._read_held()

    def measure_at(self, now_ms: int) -> tuple[int, int]:
        """Used memory and the resident set, measured again unless they were measured in this
        millisecond."""
        if now_ms != self._measured_ms:
            self._measured_ms = now_ms
            self._used = self.measure()
        return self._used, self._held

    def estimate(self) -> int:
        """The last measurement, corrected by the change of the blocks since then; cheap."""
        return self._read_blocks() + self._rest
