"""Appends and trims of streams. The server reports where its trims ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.sim.data import EntryId, Stream
from tests.sim.model import trims
from tests.sim.model.clients import Key, Request
from tests.sim.model.events import Added, Event, Trimmed
from tests.sim.model.values import ServerState, Values
from tests.sim.model.waits import Waits
from tests.sim.promises import demand

TRIMMED_AT_ONCE = 1000  # maximum of blocks that an append trims; the timer trims the rest
LATE_MS = 1000  # a scheduled entry is appended within this time, also when the clock jumps
AGE_GRACE_MS = 1000  # an entry that is too old is evicted within this time


class Log:
    """`events` has the reports of the server, `block_entries` is the maximum of entries in a
    block."""

    def __init__(
        self,
        state: ServerState,
        values: Values,
        waits: Waits,
        events: deque[Event],
        block_entries: int,
    ) -> None:
        self._state = state
        self._values = values
        self._waits = waits
        self._events = events
        self._block_entries = block_entries

    def append(
        self, key: Key, words: Request, entry_id: EntryId | None = None, is_last: bool = True
    ) -> EntryId:
        """`is_last`: the last entry of a request, after which the policy is applied and events are
        reported."""
        stream = self._values.make(key)
        if entry_id is None:
            ms, seq = stream.last_id
            now_ms = self._state.now_ms
            entry_id = (now_ms, 0) if now_ms > ms else (ms, seq + 1)
        stream.append(entry_id, words)
        while is_last and self._events and isinstance(self._events[0], Added | Trimmed):
            if self._events.popleft() == Added(key):
                break
        if is_last:
            self.keep_policy(key, stream)
        self._waits.mark_ready(key)
        return entry_id

    def fire(self, key: Key, stream: Stream, ticket: EntryId) -> None:
        """Append a scheduled entry."""
        _, words = stream.scheduled.pop(ticket)
        self.append(key, words)

    def fire_due(self) -> None:
        """The server's timer appends everything that is due. The events tell in which order it took
        the streams."""
        while due := {
            key: tickets
            for key, stream in self._streams()
            if (tickets := [t for t in sorted(stream.scheduled) if t[0] <= self._state.now_ms])
        }:
            added = [e.key for e in self._events if isinstance(e, Added) and e.key in due]
            key = added[0] if added else next(iter(due))
            for ticket in due[key]:
                self.fire(key, self._values.make(key), ticket)

    def keep_policy(self, key: Key, stream: Stream) -> None:
        """Apply the policy after an append, or when it is set."""
        if stream.policy is None:
            return
        at_once = len(stream.entries) < TRIMMED_AT_ONCE
        if trims.is_foretold(stream.policy) and at_once:
            self.evict(key, stream, self._may_go(stream))
            return
        may_go = set(self._may_go(stream))
        if self._events and isinstance(trimmed := self._events[0], Trimmed) and trimmed.key == key:
            gone = trims.before(stream, trimmed.first)
            if may_go.issuperset(gone):  # otherwise the command itself evicted the entries
                self.evict(key, stream, gone)
        over = trims.must_go(stream, self._state.now_ms, self._block_entries)
        demand(not (over and at_once), f"{key} keeps {over}, which its policy does not")

    def evict(self, key: Key, stream: Stream, gone: list[EntryId]) -> int:
        """Evict the entries that the server reported, or must have reported."""
        if gone and self._events:
            event = self._events[0]
            if isinstance(event, Trimmed) and event.key == key:
                self._events.popleft()
        return stream.evict(gone)

    def drop_block(self, trimmed: Trimmed) -> None:
        """A block was evicted for lack of memory; WatchedEviction has checked which one."""
        stream = self._values.value(trimmed.key)
        assert isinstance(stream, Stream), f"{trimmed} of no stream"
        gone = trims.before(stream, trimmed.first)
        demand(0 < len(gone) <= self._block_entries, f"{gone} went with one block")
        stream.evict(gone)

    def trim_by_policy(self, oldest: Callable[[Key], EntryId | None]) -> None:
        """Check that the server's timer evicted only entries that the policy does not keep. It need
        not evict all of them."""
        for key, stream in self._streams():
            may_go = self._may_go(stream)
            if may_go:
                first = oldest(key)
                stream.evict([i for i in may_go if first is None or i < first])

    def overdue(self) -> str | None:
        """Describes scheduled entries that are due, or entries that a policy does not keep, for
        longer than the time of grace."""
        for (_, name), stream in self._streams():
            late = [t for t in stream.scheduled if t[0] + LATE_MS <= self._state.now_ms]
            if late:
                return f"{name!r} has scheduled entries that are due: {late}"
            over = trims.must_go(stream, self._state.now_ms, self._block_entries, AGE_GRACE_MS)
            if over:
                return f"{name!r} has entries that its policy does not keep: {over}"
        return None

    def _may_go(self, stream: Stream) -> list[EntryId]:
        return trims.may_go(stream, self._state.now_ms, self._block_entries)

    def _streams(self) -> list[tuple[Key, Stream]]:
        return [
            ((number, name), value)
            for number, database in enumerate(self._values.data.databases)
            for name, value in database.items()
            if isinstance(value, Stream)
        ]
