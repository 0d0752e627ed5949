"""The clients that wait for keys, in the order of their arrival."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.sim.model.clients import Key, Waiter


@dataclass(slots=True)
class Queue:
    """The waiters on a key."""

    plain: list[Waiter] = field(default_factory=list)
    groups: dict[bytes, list[Waiter]] = field(default_factory=dict)

    def of(self, name: bytes | None) -> list[Waiter]:
        return self.plain if name is None else self.groups.setdefault(name, [])

    def all(self) -> list[Waiter]:
        return [*self.plain, *(waiter for group in self.groups.values() for waiter in group)]


class Waits:
    def __init__(self) -> None:
        self.count = 0
        self._arrivals = 0
        self._queues: dict[Key, Queue] = {}
        self._ready: list[Key] = []

    def all(self) -> list[Waiter]:
        waiters = [waiter for queue in self._queues.values() for waiter in queue.all()]
        return list(dict.fromkeys(waiters))

    def at(self, key: Key) -> list[Waiter]:
        queue = self._queues.get(key)
        return [] if queue is None else queue.all()

    def of(self, number: int) -> Waiter | None:
        """The wait of the client with this number."""
        return next((w for w in self.all() if w.client.number == number), None)

    def keys(self, number: int) -> list[Key]:
        """The keys of a database with waiting clients."""
        return [key for key in self._queues if key[0] == number]

    def has_group(self, key: Key, name: bytes) -> bool:
        """True if a client waits for this group."""
        queue = self._queues.get(key)
        return queue is not None and name in queue.groups

    def add(self, waiter: Waiter) -> None:
        waiter.client.waiter = waiter
        self._arrivals += 1
        waiter.number = self._arrivals
        for key in dict.fromkeys(waiter.keys):
            self._queues.setdefault(key, Queue()).of(waiter.group).append(waiter)
        self.count += 1

    def remove(self, waiter: Waiter) -> None:
        self.count -= 1
        waiter.client.waiter = None
        for key in dict.fromkeys(waiter.keys):
            queue = self._queues[key]
            queue.of(waiter.group).remove(waiter)
            if waiter.group is not None and not queue.groups[waiter.group]:
                del queue.groups[waiter.group]
            if not queue.all():
                del self._queues[key]

    def mark_ready(self, key: Key) -> None:
        """Note that the waits for a key may end."""
        if key in self._queues and key not in self._ready:
            self._ready.append(key)

    def take_ready(self) -> list[Key]:
        ready, self._ready = self._ready, []
        return ready
