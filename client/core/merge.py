"""The order of records from several shards.

In strict order, records come by ID, and equal IDs by the name of the shard. Every shard that is
being read has a bound: its first buffered record or, with nothing buffered, the ID up to which
nothing more will come. The bounds are in one heap. If the least one is a record, the record is
next: every other shard has nothing, and will get nothing, below it. If the least one is not a
record, its shard holds all others back.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from typing import Any, TypeAlias

from millstream.client.core.shards import ShardState
from millstream.client.ids import ID
from millstream.client.records import Record

RECORD = 0
FETCHED = 1  # after a record with the same ID: nothing below or at this ID is missing

Bound: TypeAlias = tuple[ID, int, str, ShardState]


class Merge:
    """The shards that are being read, by their bounds."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.heap: list[Bound] = []

    def rebuild(self, shards: Iterable[ShardState]) -> None:
        """After shards were added or removed, or replies arrived."""
        bounds: list[Bound] = []
        for shard in shards:
            if shard.buffer:
                bounds.append((shard.buffer[0].id, RECORD, shard.name, shard))
            elif self.strict and not shard.complete:
                bounds.append((shard.fetched, FETCHED, shard.name, shard))
        heapify(bounds)
        self.heap = bounds

    def first(self) -> ShardState | None:
        """The shard whose first record may be handed out now."""
        heap = self.heap
        if not heap or heap[0][1] == FETCHED:
            return None
        return heap[0][3]

    def pop(self, shard: ShardState) -> Record[Any]:
        """Take the record of the shard that is `first()`."""
        buffer = shard.buffer
        record = buffer.popleft()
        if buffer:
            if len(self.heap) > 1:  # a shard alone keeps its bound: it is the least one
                heapreplace(self.heap, (buffer[0].id, RECORD, shard.name, shard))
        elif self.strict and not shard.complete:
            heapreplace(self.heap, (shard.fetched, FETCHED, shard.name, shard))
        else:
            heappop(self.heap)
        return record
