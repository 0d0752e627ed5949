"""Work that becomes due: retries, expiries, scheduled entries, retention, freeing released objects.

All of it runs in the executor's thread between two requests, and its effects are recorded like
those of a request. While changes are refused, no work is done; the executor calls `run_due` again
afterwards.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from millstream.commands.engine.lifecycle import group_moment, lease_moment
from millstream.commands.engine.policies import policy_moment
from millstream.commands.engine.scheduling import firing_moment
from millstream.commands.runtime.effects import Effects
from millstream.server.execution.blocking import Serving
from millstream.server.execution.timers import Timers
from millstream.storage.blocks.lazyfree import TO_FREE, free_step
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.retention_schedule import NEVER, RetentionSchedule
from millstream.storage.keyspace.slot_states import FIRING, TIMER, TRIM

LOGGER = logging.getLogger("millstream")

# Actions of one turn: a lease that ends on a cold cache takes about 5 us.
ACTIONS_MAX = 250
EXPIRED_MAX = 200
# Streams checked for retention and blocks dropped, together, in one turn.
TRIMMED_MAX = 1000
# Scheduled entries appended in one turn, together with the streams that are looked at: about two
# milliseconds' work. Large ones take their time by their bytes.
FIRED_MAX = 500
FIRED_BYTES_MAX = 1 << 20
# A stream whose scheduled entries or policy failed is retried after this.
AGAIN_MS = 1000
# The wall clock may jump: timers for a time of day check it at least this often.
WALL_CHECK_MS = 1000
# Released objects are freed for this long, checked after this number of blocks or keys.
FREE_NS = 1_000_000
FREE_AT_ONCE = 256
# Between two turns that free released objects; and while a snapshot still needs them.
FREE_PAUSE_S = 0.001
FREE_AGAIN_S = 0.1
ROOM_AGAIN_S = 1.0


if TYPE_CHECKING:

    class DueExecutor(Protocol):
        """The data that the work changes, and the record of it: the executor."""

        keyspace: Keyspace
        effects: Effects
        context: Any
        loop: Any
        serving: Serving

        def read_clocks(self) -> tuple[int, int]: ...
        def read_ns(self) -> int: ...
        def recheck_limits(self) -> None: ...
        def serve_ready(self) -> None: ...
        def check_due(self) -> None: ...


class DueWork:
    """Keeps one timer of the loop, for the earliest known moment. `expired_count` counts the keys
    that were deleted at their expiry, not by a look-up."""

    def __init__(self, executor: DueExecutor, timers: Timers) -> None:
        self.expired_count = 0
        self.is_freeing = False
        self._executor = executor
        self._keyspace = executor.keyspace
        self._context: Any = executor.context  # with session None: there is no client
        self._loop = executor.loop
        self._timers = timers
        self._timer: Any = None
        self._timer_ms: int | None = None
        self._retries = False
        self._keyspace.expiring = True
        self._keyspace.on_expired = self.key_expired

    # The timer

    def take_requests(self) -> None:
        """Schedule the moments that commands have requested since the last call."""
        for moment_ms, db_index, key, name in self._keyspace.timer_requests:
            self._timers.at(moment_ms, partial(self.moment_due, db_index, key, name))
        self._keyspace.timer_requests = []

    def set_timer(self) -> None:
        """Set the timer to the earliest moment, or earlier, to check the wall clock if work waits
        for a time of day."""
        next_ms, wall_moment_ms = self._timers.next_ms, self._next_wall_ms()
        if next_ms is None and wall_moment_ms is None:
            return
        now_ms, steady_ms = self._executor.read_clocks()
        if wall_moment_ms is not None:
            check_ms = steady_ms + max(0, min(wall_moment_ms - now_ms, WALL_CHECK_MS))
            next_ms = check_ms if next_ms is None else min(next_ms, check_ms)
        assert next_ms is not None
        if self._timer_ms is not None and next_ms >= self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_ms = next_ms
        self._timer = self._loop.call_later(max(0, next_ms - steady_ms) / 1000, self.run_due)

    def _next_wall_ms(self) -> int | None:
        """The earliest time of day at which a key expires, a scheduled entry is due, or a stream is
        checked for retention."""
        keyspace = self._keyspace
        if not keyspace.may_delete:
            return None
        earliest_ms = min(keyspace.retention_schedule.next(), keyspace.firing_schedule.next())
        expiry_ms = keyspace.next_expiry_ms()
        if earliest_ms == NEVER:
            return expiry_ms
        return earliest_ms if expiry_ms is None else min(expiry_ms, earliest_ms)

    def run_due(self) -> None:
        """Do the work that is due."""
        self._timer = self._timer_ms = None
        executor = self._executor
        executor.serving.timer_stale = True
        executor.recheck_limits()
        for action in self._timers.due(self._context.steady_ms, ACTIONS_MAX):
            try:
                action()
            except Exception:
                LOGGER.exception("automatic work that was due has failed")
        self.expired_count += self._keyspace.expire_due(EXPIRED_MAX)
        self._fire()
        self._trim()
        executor.serve_ready()

    # Kinds of work

    def key_expired(self, db_index: int, key: bytes) -> None:
        """Record the deletion of a key that has reached its expiry."""
        self._executor.effects.record(db_index, b"DEL", key)
        self._context.notify(b"expired", key, db_index)

    def moment_due(self, db_index: int, key: bytes, name: bytes | None) -> None:
        """Handle the scheduled moment of a group (expire entries, end the group, or wake a reader)
        or, without a name, of the leases of a stream."""
        if self._is_set_aside(TIMER, db_index, key, name):
            return
        self._context.session = None
        self._context.db = self._keyspace.databases[db_index]
        if name is None:
            lease_moment(self._context, key)
        else:
            group_moment(self._context, key, name)

    def _is_set_aside(
        self, kind: str, db_index: int, key: bytes, name: bytes | None = None
    ) -> bool:
        """True if the key is in a hidden slot: its work is done when the slot is served."""
        keyspace = self._keyspace
        return bool(keyspace.hidden_slots) and keyspace.slot_states.set_aside(
            kind, db_index, key, name
        )

    def _fire(self) -> None:
        """Append the scheduled entries that are due; the rest follows in the next turn if they are
        more than one turn's work."""
        left, left_bytes = FIRED_MAX, FIRED_BYTES_MAX
        if not self._keyspace.may_delete:
            return
        self._context.session = None
        while left > 0 and left_bytes > 0:
            place = self._keyspace.firing_schedule.pop_due(self._context.now_ms)
            if place is None:
                break
            db_index, key = place
            if self._is_set_aside(FIRING, db_index, key):
                continue
            self._context.db = self._keyspace.databases[db_index]
            try:
                fired, fired_bytes = firing_moment(self._context, key, left, left_bytes)
            except Exception:
                LOGGER.exception("the scheduled entries of a stream could not be appended")
                fired, fired_bytes = 0, 0
                self._try_again(self._keyspace.firing_schedule, db_index, key)
            left -= 1 + fired
            left_bytes -= fired_bytes

    def _trim(self) -> None:
        """Trim streams with entries that have become too old; if this is more than one turn's work,
        the rest is due in the next turn."""
        left = TRIMMED_MAX
        if not self._keyspace.may_delete:
            return
        self._context.session = None
        while left > 0:
            place = self._keyspace.retention_schedule.pop_due(self._context.now_ms)
            if place is None:
                break
            db_index, key = place
            if self._is_set_aside(TRIM, db_index, key):
                continue
            self._context.db = self._keyspace.databases[db_index]
            try:
                left -= 1 + policy_moment(self._context, key)
            except Exception:
                LOGGER.exception("the policy of a stream could not be kept")
                self._try_again(self._keyspace.retention_schedule, db_index, key)

    def _try_again(self, schedule: RetentionSchedule, db_index: int, key: bytes) -> None:
        schedule.note(self._context.now_ms + AGAIN_MS, db_index, key)
        self._keyspace.expiry_noted = True

    def retry_soon(self) -> None:
        """Retry a little later: the disk is full, so no change is possible now."""
        if not self._retries:
            self._retries = True
            self._loop.call_later(ROOM_AGAIN_S, self._retry)

    def _retry(self) -> None:
        self._retries = False
        self._executor.check_due()

    # Freeing

    def free_soon(self) -> None:
        """Free released parts of large streams and databases between the next requests."""
        self.is_freeing = True
        self._loop.call_later(FREE_PAUSE_S, self.free_released)

    def free_released(self) -> None:
        """Free released objects for a short time."""
        end_ns = self._executor.read_ns() + FREE_NS
        self.is_freeing = False
        while free_step(FREE_AT_ONCE):
            if self._executor.read_ns() > end_ns:
                self.free_soon()
                return
        if TO_FREE:
            self.is_freeing = True
            self._loop.call_later(FREE_AGAIN_S, self.free_released)
