"""`maxmemory`: refusing what needs memory, or dropping the oldest blocks of all streams.

With `allstreams-oldest` the block goes whose youngest entry is the oldest: by ids, across streams
and databases, open blocks too. An exact order of the blocks of a million streams would have to be
kept up with every append. Instead the keys are walked in turns, and the streams with the oldest
blocks met are remembered: where there are no more keys than are walked in one turn the order is
exact, else a block can be passed over for one round through the keys.

The work is done in slices, each within a few milliseconds: one before a client's requests, and as
many turns of the loop after it as it takes. Until they are done, commands that need memory run as
long as a slice finds something to drop. Released objects that still have to be freed go
before any data.
"""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.commands.engine.appending import drop_oldest_block
from millstream.server.monitor.memory import Gauge
from millstream.storage.blocks.lazyfree import free_step
from millstream.storage.streams.retention import oldest_block_ms
from millstream.storage.streams.stream import Stream

if TYPE_CHECKING:
    from millstream.commands.runtime.context import Context

LOGGER = logging.getLogger("millstream")

KEYS_AT_ONCE = 256
CANDIDATES_MAX = 128
BLOCKS_AT_ONCE = 64
FREED_AT_ONCE = 1024
MEASURED_EVERY_S = 0.01
MEASURED_EVERY_BYTES = 1 << 20
WARNED_EVERY_S = 60

Place = tuple[int, bytes]


class Eviction:
    """Keeps used memory within `limit_bytes`, 0 for no limit; evicts when `evicts` is set.
    `bytes_in` gives the bytes that clients have sent so far: unnoticed growth is at most that."""

    def __init__(
        self,
        context: Context,
        gauge: Gauge,
        bytes_in: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = 0
        self.evicts = False
        self.evicted_entries = 0
        self.evicted_blocks = 0
        self.goes_on = False
        self._context = context
        self._gauge = gauge
        self._bytes_in = bytes_in
        self._now_s = now_s
        self._measured_s = -MEASURED_EVERY_S
        self._measured_bytes_in = 0
        self._candidates: dict[Place, int] = {}  # with the ms of their oldest block's youngest id
        self._db = 0
        self._cursor = 0
        self._fruitless_keys = 0
        self._warned_s = -float(WARNED_EVERY_S)

    def reset_stats(self) -> None:
        self.evicted_entries = self.evicted_blocks = 0

    def make_room(self) -> bool:
        """Do a slice of work if more memory is used than may be. Whether commands that need memory
        are to be refused; `goes_on`: whether there is more work to do."""
        self.goes_on = False
        if not self.limit_bytes or self._excess() <= 0:
            self._fruitless_keys = 0
            return False
        if free_step(FREED_AT_ONCE):
            self.goes_on = self._excess() > 0
            return False
        if not self.evicts:
            return True
        if not self._context.keyspace.may_delete:  # writes are refused or put off as it is
            return False
        dropped = self._drop_some()
        self._fruitless_keys = 0 if dropped else self._fruitless_keys + KEYS_AT_ONCE
        over = self._excess() > 0
        all_keys = sum(map(len, self._context.keyspace.databases))
        # A walk may begin in the middle of the keys: nothing is left once it went round twice.
        self.goes_on = over and self._fruitless_keys <= 2 * all_keys + KEYS_AT_ONCE
        if over and not dropped:
            self._warn()
            return True
        return False

    def _warn(self) -> None:
        if self._now_s() - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = self._now_s()
            LOGGER.warning(
                "more than maxmemory (%d bytes) is used and no block can be dropped:"
                " commands that need memory are refused",
                self.limit_bytes,
            )

    def _excess(self) -> int:
        """Bytes used above the limit. Measured again where the estimate may be out."""
        now_s, bytes_in = self._now_s(), self._bytes_in()
        if (
            now_s - self._measured_s >= MEASURED_EVERY_S
            or bytes_in - self._measured_bytes_in >= MEASURED_EVERY_BYTES
        ):
            self._measured_s, self._measured_bytes_in = now_s, bytes_in
            return self._gauge.measure() - self.limit_bytes
        return self._gauge.estimate() - self.limit_bytes

    # ------------------------------------------------------------ what is the oldest

    def _drop_some(self) -> int:
        """Drop oldest blocks until that is enough, of at most a slice; returns how many."""
        context = self._context
        session, db = context.session, context.db
        dropped = 0
        try:
            self._walk_keys()
            while (
                self._candidates
                and dropped < BLOCKS_AT_ONCE
                and self._gauge.estimate() > (self.limit_bytes)
            ):
                dropped += self._drop_oldest()
        finally:
            context.session, context.db = session, db
        self.evicted_blocks += dropped
        return dropped

    def _drop_oldest(self) -> int:
        """Drop the oldest block known of; 0 when there it is no longer as it was known."""
        place = min(self._candidates, key=self._candidates.__getitem__)
        known_ms = self._candidates[place]
        if self._note(place) != known_ms:
            return 0
        self._context.db = self._context.keyspace.databases[place[0]]
        self.evicted_entries += drop_oldest_block(self._context, place[1])
        self._note(place)
        return 1

    def _note(self, place: Place) -> int | None:
        """Look at a stream's oldest block; it is forgotten when there is none."""
        value = self._context.keyspace.databases[place[0]].get(place[1])
        oldest_ms = oldest_block_ms(value) if isinstance(value, Stream) else None
        if oldest_ms is None:
            self._candidates.pop(place, None)
        else:
            self._candidates[place] = oldest_ms
        return oldest_ms

    def _walk_keys(self) -> None:
        """Look at the next keys, one database after the other, and keep the oldest candidates."""
        databases = self._context.keyspace.databases
        left = KEYS_AT_ONCE
        for _ in databases:
            if left <= 0:
                break
            if len(databases[self._db]):
                self._cursor, keys = databases[self._db].scan(self._cursor, left)
                left -= len(keys)
                for key in keys:
                    self._note((self._db, key))
            if self._cursor == 0:
                self._db = (self._db + 1) % len(databases)
        if len(self._candidates) > CANDIDATES_MAX:
            oldest = heapq.nsmallest(
                CANDIDATES_MAX, self._candidates.items(), key=lambda item: item[1]
            )
            self._candidates = dict(oldest)
