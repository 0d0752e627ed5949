"""Requests of a client that were refused, until they are sent again.

They are sent after a short pause, and as soon as the map has changed. The client's later requests
are not looked at before the replies to all of them. Only requests that were on their way to the
same node can overtake one: it is not sent before the replies to those are there, and never if the
node has run one of them that is for the same slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from millstream.backoff import Backoff
from millstream.commands.table.registry import Command
from millstream.server.execution.slot_check import positions_of
from millstream.server.gateway.node_connection import NodeConnection
from millstream.storage.keyspace.cluster_slots import cluster_slot_of

FIRST_S, LONGEST_S = 0.02, 0.2  # pauses
OVERTAKEN = (
    b"-TRYAGAIN the node has refused this request and then run a later one for the same slot: "
    b"send it again\r\n"
)
KEYLESS = -1  # in place of a slot
ALL_SLOTS: frozenset[int] | None = None  # FLUSHALL; also requests of which the keys are unknown

Again = Callable[[float], None]


@dataclass(slots=True, eq=False)
class Refused:
    """A request that did not run. `again` sends it, and gets the time until which the gateway
    tries; `fail` gives the client an error instead, `error` after that time. `upstream` is the
    connection on which it was refused, and on which later requests may be; None: there are none."""

    again: Again
    until_s: float
    upstream: NodeConnection | None = None
    slots: frozenset[int] | None = ALL_SLOTS
    error: bytes = b""
    fail: Callable[[bytes], object] | None = None

    @property
    def waits(self) -> bool:
        """True while later requests are on their way to the same node."""
        return self.upstream is not None and bool(self.upstream.expected)

    def has_slot_of(self, slots: frozenset[int] | None) -> bool:
        if self.slots is None or slots is None:
            return True
        return not self.slots.isdisjoint(slots)


class Repeats:
    def __init__(self, resume: Callable[[], None]) -> None:
        """`resume` is called after each attempt."""
        self._resume = resume
        self._waiting: list[Refused] = []
        self._backoff = Backoff(FIRST_S, LONGEST_S)
        self._timer: asyncio.TimerHandle | None = None
        self.count = 0  # of requests that were sent again

    def __bool__(self) -> bool:
        """True if some wait."""
        return bool(self._waiting)

    def add(self, refused: Refused, *, is_first: bool) -> None:
        if is_first:
            self._backoff.reset()
        self._waiting.append(refused)
        if refused.upstream is not None:
            refused.upstream.has_refused = True
        self._send_later()

    def _send_later(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._backoff.next_s(), self.send)

    def note_served(self, upstream: NodeConnection, slots: frozenset[int] | None) -> None:
        """A node has run a request that came after those that it has refused."""
        found = [
            refused
            for refused in self._waiting
            if refused.upstream is upstream and refused.has_slot_of(slots)
        ]
        self._fail(found, OVERTAKEN)

    def _fail(self, found: list[Refused], error: bytes | None) -> None:
        """Give the client this error for these, or that of each. Subscriptions stay: they run
        alone."""
        found = [refused for refused in found if refused.fail is not None]
        self._remove(found)
        for refused in found:
            if refused.fail is not None:
                refused.fail(error or refused.error)

    def _remove(self, found: list[Refused]) -> None:
        """These do not wait any more."""
        if not found:
            return
        gone = {*map(id, found)}
        self._waiting = [refused for refused in self._waiting if id(refused) not in gone]
        waited_for = {refused.upstream for refused in self._waiting}
        for refused in found:
            if refused.upstream is not None:
                refused.upstream.has_refused = refused.upstream in waited_for

    def send(self) -> None:
        """Send all of them now that need not wait."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        now_s = asyncio.get_running_loop().time()
        ready = [refused for refused in self._waiting if not refused.waits]
        late = [refused for refused in self._waiting if refused.waits and now_s >= refused.until_s]
        self._remove(ready)
        self._fail(late, None)
        self.count += len(ready)
        for refused in ready:
            refused.again(refused.until_s)
        if self._waiting:
            self._send_later()
        self._resume()

    def close(self) -> None:
        self._resume = _nothing
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _nothing() -> None: ...


def slots_in(row: Command | None, words: list[bytes]) -> frozenset[int] | None:
    """The slots of which a request may not overtake another one."""
    try:
        places = [] if row is None else positions_of(row.key_specs, words)
    except (IndexError, ValueError):
        places = []  # the node refuses its words
    if places:
        return frozenset(cluster_slot_of(words[at]) for at in places)
    return ALL_SLOTS if row is not None and "write" in row.flags else frozenset({KEYLESS})
