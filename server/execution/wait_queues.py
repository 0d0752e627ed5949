"""The queues of blocked clients: which keys they wait for, and in which order they are served.

A read that finds nothing returns a Wait. Its client is then in a queue for each of its keys: plain
readers share one queue, and the readers of each group have a queue of their own (shared by TREAD
and XREADGROUP). A change of a key only marks the key ready. After the running command, never inside
it, `serve` retries the waiting reads in order of arrival: every plain reader, and in each group one
after the other until one finds nothing. A served client leaves its queues, and joins the end if it
blocks again; one that finds nothing keeps its place.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from millstream.commands.runtime.replies import BlockedRead, Wait
from millstream.server.execution.timers import Alarm
from millstream.storage.streams.database import Database
from millstream.storage.streams.group import Group
from millstream.storage.streams.stream import Stream

Attempt = Callable[["Waiter"], bool]


class Waiter:
    """A blocked client and its read. `row` is the command; the call counts in its statistics when
    the wait ends."""

    __slots__ = ("alarm", "client", "is_plain", "is_timed", "over", "places", "read", "row")

    def __init__(self, client: Any, wait: Wait) -> None:
        self.client = client
        self.row: Any = None
        self.read: BlockedRead = wait.read
        self.is_plain = self.read.group is None
        self.is_timed = bool(wait.deadline_ms)
        self.alarm: Alarm | None = None
        self.over = False
        # Its places: a database's queues, the key, and the key's queue.
        self.places: list[tuple[dict[bytes, KeyQueue], bytes, KeyQueue]] = []


class GroupQueue:
    """The readers that wait on one group, in order of arrival, and the number of each kind of
    read."""

    __slots__ = ("kinds", "waiters")

    def __init__(self) -> None:
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.kinds: dict[object, int] = {}

    def add(self, waiter: Waiter) -> None:
        self.waiters[waiter] = None
        kind = waiter.read.kind
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def remove(self, waiter: Waiter) -> None:
        if waiter in self.waiters:
            del self.waiters[waiter]
            kind = waiter.read.kind
            self.kinds[kind] -= 1
            if not self.kinds[kind]:
                del self.kinds[kind]

    def serve(self, attempt: Attempt) -> None:
        """Retry the reads in order. If one read of a kind finds nothing, the others of that kind
        find nothing either. A served reader has left the queue."""
        without_result: set[object] = set()
        while not self.kinds.keys() <= without_result:
            for waiter in self.waiters:
                if waiter.read.kind not in without_result:
                    break
            if not attempt(waiter):
                without_result.add(waiter.read.kind)


NO_GROUPS: dict[bytes, GroupQueue] = {}
"""The groups of a key on which no group's reader waits; never changed."""


class KeyQueue(dict[Waiter, None]):
    """The readers that wait on one key: plain readers in order of arrival, and readers of groups by
    group.

    A dict without an initializer: a read of a thousand streams makes a thousand of these.
    """

    groups = NO_GROUPS

    def has(self, waiter: Waiter) -> bool:
        name = waiter.read.group
        if name is None:
            return waiter in self
        return name in self.groups and waiter in self.groups[name].waiters

    def join_group(self, waiter: Waiter) -> None:
        name = waiter.read.group
        assert name is not None
        if self.groups is NO_GROUPS:
            self.groups = {}
        if name not in self.groups:
            self.groups[name] = GroupQueue()
        self.groups[name].add(waiter)

    def leave_group(self, waiter: Waiter) -> None:
        name = waiter.read.group
        assert name is not None
        queue = self.groups.get(name)
        if queue is not None:
            queue.remove(waiter)
            if not queue.waiters:
                del self.groups[name]

    def join(self, name: bytes, stream: Stream, group: Group) -> None:
        """A group was created: count every reader that waits on its name as a waiting client of the
        group."""
        if name in self.groups:
            for waiter in self.groups[name].waiters:
                waiter.read.join(stream, group)


class WaitQueues:
    """All blocked clients of a server."""

    def __init__(self, databases: list[Database]) -> None:
        self._databases = databases
        self.count = 0
        self.timed_count = 0  # of these, the ones with a timeout

    def add(self, client: Any, wait: Wait) -> Waiter:
        """Add a blocked client to the queue of each of its keys."""
        waiter = Waiter(client, wait)
        is_plain, places, databases = waiter.is_plain, waiter.places, self._databases
        for db_index, key in waiter.read.keys:
            waiting = databases[db_index].waiting
            queue = waiting.get(key)
            if queue is None:
                queue = waiting[key] = KeyQueue()
            elif queue.has(waiter):
                continue  # the request names the key twice
            if is_plain:
                queue[waiter] = None
            else:
                queue.join_group(waiter)
            places.append((waiting, key, queue))
        self.count += 1
        self.timed_count += waiter.is_timed
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """Remove a waiter from its queues; no effect if it was already removed."""
        if waiter.over:
            return
        waiter.over = True
        self.count -= 1
        if waiter.is_timed:
            self.timed_count -= 1
        for waiting, key, queue in waiter.places:
            if waiter.is_plain:
                del queue[waiter]
            else:
                queue.leave_group(waiter)
            if not (queue or queue.groups):
                del waiting[key]

    def serve(self, db_index: int, key: bytes, attempt: Attempt) -> None:
        """Retry the reads that wait on a ready key; `attempt` returns whether one was served."""
        queue: KeyQueue | None = self._databases[db_index].waiting.get(key)
        if queue is None:
            return
        if queue:
            has_stream = isinstance(self._databases[db_index].get(key), Stream)
            for waiter in list(queue):
                if has_stream or not waiter.read.needs_stream:
                    attempt(waiter)
        for name in list(queue.groups):
            if name in queue.groups:
                queue.groups[name].serve(attempt)

    def keys(self) -> Iterator[tuple[int, bytes]]:
        """Every key that a client waits on, with its database."""
        for database in self._databases:
            for key in database.waiting:
                yield database.index, key

    def keys_that_must_stay(self) -> Iterator[tuple[int, bytes]]:
        """The keys with a waiting read that ends with an error when the key is removed
        (XREADGROUP)."""
        for database in self._databases:
            for key, queue in database.waiting.items():
                if any(
                    getattr(kind[0] if isinstance(kind, tuple) else kind, "ends_without_key", False)
                    for group in queue.groups.values()
                    for kind in group.kinds
                ):
                    yield database.index, key
