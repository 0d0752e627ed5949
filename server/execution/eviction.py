"""`maxmemory`: refuses commands that need memory, or evicts the oldest blocks of all streams.

`allstreams-oldest` evicts the block whose newest entry is the oldest by ID, across streams and
databases, including open blocks. Every append would have to update an exact order of the blocks of
a million streams. Instead the keys are walked in slices, and the streams with the oldest blocks
found are kept as candidates. If all keys fit into one slice, the order is exact; otherwise a block
can be missed for one round through the keys.

The work is done in slices of a few milliseconds: one before a client's requests, and more in later
turns of the loop (`EvictionWork`). Until the work is complete, commands that need memory run as
long as a slice finds blocks to evict. Released objects that are not freed yet are freed before any
data is evicted. Commands that need memory are also refused while an allocation has failed
(memory_reserve).
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.engine.evicting import drop_oldest_block
from millstream.commands.runtime.context import Context
from millstream.memory_reserve import RESERVE
from millstream.server.execution.admission import Admission
from millstream.server.monitor.memory import Gauge
from millstream.storage.blocks.lazyfree import free_step
from millstream.storage.streams.retention import oldest_block_ms
from millstream.storage.streams.stream import Stream

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
    """Keeps used memory within `limit_bytes` (0: no limit); evicts when `evicts` is set. `bytes_in`
    returns the bytes that clients have sent so far, an upper bound of unmeasured growth."""

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
        self._measured_s: float = -MEASURED_EVERY_S
        self._measured_bytes_in = 0
        self._candidates: dict[Place, int] = {}  # with the newest ms in their oldest block
        self._db = 0
        self._cursor = 0
        self._fruitless_keys = 0
        self._warned_s = -float(WARNED_EVERY_S)

    def set_limit(self, limit_bytes: int, evicts: bool) -> bool:
        """Return whether that changes anything."""
        before = self.limit_bytes, self.evicts
        self.limit_bytes, self.evicts = limit_bytes, evicts
        return before != (limit_bytes, evicts)

    def reset_stats(self) -> None:
        self.evicted_entries = self.evicted_blocks = 0

    def evict_to_limit(self) -> bool:
        """Do a slice of work if used memory exceeds the limit. Return whether to refuse commands
        that need memory; `goes_on` says whether there is more work."""
        self.goes_on = False
        if not self.limit_bytes or self._excess() <= 0:
            self._fruitless_keys = 0
            return False
        if free_step(FREED_AT_ONCE):
            self.goes_on = self._excess() > 0
            return False
        if not self.evicts:
            return True
        if not self._context.keyspace.may_delete:  # writes are already refused or postponed
            return False
        dropped = self._drop_some()
        self._fruitless_keys = 0 if dropped else self._fruitless_keys + KEYS_AT_ONCE
        over = self._excess() > 0
        all_keys = sum(map(len, self._context.keyspace.databases))
        # A walk may begin in the middle of the keys: after two full rounds nothing is left.
        self.goes_on = over and self._fruitless_keys <= 2 * all_keys + KEYS_AT_ONCE
        if over and not dropped:
            self._warn()
            return True
        return False

    def room_bytes(self) -> float:
        """The number of bytes that still fit, measured now; infinite if there is no limit, or
        data is evicted."""
        self._measured_s = -math.inf
        return -self._excess() if self.limit_bytes and not self.evicts else math.inf

    def _warn(self) -> None:
        if self._now_s() - self._warned_s >= WARNED_EVERY_S:
            self._warned_s = self._now_s()
            LOGGER.warning(
                "more than maxmemory (%d bytes) is used and no block can be dropped:"
                " commands that need memory are refused",
                self.limit_bytes,
            )

    def _excess(self) -> int:
        """Bytes used above the limit. Measured again when the estimate may be wrong."""
        now_s, bytes_in = self._now_s(), self._bytes_in()
        if (
            now_s - self._measured_s >= MEASURED_EVERY_S
            or bytes_in - self._measured_bytes_in >= MEASURED_EVERY_BYTES
        ):
            self._measured_s, self._measured_bytes_in = now_s, bytes_in
            return self._gauge.measure() - self.limit_bytes
        return self._gauge.estimate() - self.limit_bytes

    # ------------------------------------------------------------ finding the oldest blocks

    def _drop_some(self) -> int:
        """Evict the oldest blocks until memory is within the limit, at most a slice; return their
        number."""
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
        """Evict the oldest known block; 0 when its stream has changed meanwhile."""
        place = min(self._candidates, key=self._candidates.__getitem__)
        known_ms = self._candidates[place]
        if self._note(place) != known_ms:
            return 0
        self._context.db = self._context.keyspace.databases[place[0]]
        self.evicted_entries += drop_oldest_block(self._context, place[1])
        self._note(place)
        return 1

    def _note(self, place: Place) -> int | None:
        """Update the candidate for a stream's oldest block, or remove it when there is none."""
        keyspace = self._context.keyspace
        if keyspace.hidden_slots and keyspace.slot_states.hides(place[1]):
            self._candidates.pop(place, None)
            return None
        value = keyspace.databases[place[0]].get(place[1])
        oldest_ms = oldest_block_ms(value) if isinstance(value, Stream) else None
        if oldest_ms is None:
            self._candidates.pop(place, None)
        else:
            self._candidates[place] = oldest_ms
        return oldest_ms

    def _walk_keys(self) -> None:
        """Check the next keys, one database after the other, and keep the oldest candidates."""
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


if TYPE_CHECKING:

    class LimitedExecutor(Protocol):
        """The owner of turns, which refuses commands that need memory: the executor."""

        admission: Admission
        memory_limit: int
        loading: bool
        loop: Any

        def recheck_limits(self) -> None: ...
        def schedule_tick(self) -> int: ...


class EvictionWork:
    """Brings used memory back within its limit, and tells the admission whether to refuse commands
    that need memory."""

    def __init__(self, executor: LimitedExecutor) -> None:
        self._executor = executor
        self._eviction: Eviction | None = None
        self._is_scheduled = False

    def limit_memory(self, eviction: Eviction) -> None:
        """Use the limit of `eviction`, which may have changed."""
        self._eviction = eviction
        self._executor.memory_limit = eviction.limit_bytes
        self.check_memory()

    def check_memory(self) -> None:
        """Do one turn's work, and continue in the next turns while there is more. This needs no
        request."""
        self._is_scheduled = False
        if self._eviction is None or self._executor.loading:
            return
        self._executor.recheck_limits()
        self.enforce_limit()
        self._executor.schedule_tick()

    def enforce_limit(self) -> None:
        """Do one turn's work."""
        eviction = self._eviction
        assert eviction is not None  # there is a limit
        full = eviction.evict_to_limit()
        self._executor.admission.set_memory(full=full, lacking=RESERVE.is_short)
        if eviction.goes_on and not self._is_scheduled:
            self._is_scheduled = True
            self._executor.loop.call_soon(self.check_memory)

    def make_room(self) -> float:
        """Do one turn's work before data of another server is taken, which is not among the bytes
        of clients, and return how many bytes fit."""
        eviction = self._eviction
        if not self._executor.memory_limit or eviction is None:
            return math.inf
        room_bytes = eviction.room_bytes()
        self.enforce_limit()
        return room_bytes

    def frees_more(self) -> bool:
        """Free a part of the released objects; true if there may be more of them."""
        return free_step(FREED_AT_ONCE)

    def tick_second(self) -> None:
        """Measure memory again, which may be free by now."""
        RESERVE.retake()
        if self._executor.memory_limit:
            self.check_memory()
        else:
            self._executor.admission.set_memory(full=False, lacking=RESERVE.is_short)

    def refuse_all(self) -> None:
        """An allocation has failed: refuse commands that need memory."""
        self._executor.admission.set_memory(full=False, lacking=True)
