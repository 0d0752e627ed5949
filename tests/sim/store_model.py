"""A model of the store that the nodes of a cluster share: etcd, its faults, and its time.

`StoreState` is what etcd holds, without I/O: a simulation that has its own events calls it at the
moments that it chooses. `StoreModel` passes the calls of nodes on to it, late, not at all, or
without the reply, as its random numbers say. Time is that of the event loop: tests/support/
virtual_time has one whose time passes at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

from millstream.server.cluster.store.store import (
    Change,
    Changes,
    Commit,
    Compacted,
    Compare,
    Contents,
    Grant,
    LeaseEnded,
    Unreachable,
    Value,
)

Outcome = TypeVar("Outcome")

TIMEOUT_S = 2.0  # of a call
LEADERLESS_S = 4.0  # until a member of etcd that is cut off ends a watch
REVOCATION_S = 1.0  # how late etcd may end a lease


@dataclass
class Lease:
    ttl_s: float
    ends_s: float
    names: set[str] = field(default_factory=set)


class StoreState:
    """Values, leases and past changes. Each method takes the time of etcd where it needs one, which
    never decreases."""

    def __init__(self, least_ttl_s: int = 2) -> None:
        self.revision = 1
        self.values: dict[str, Value] = {}
        self.leases: dict[int, Lease] = {}
        self.compacted = 0  # changes up to this revision are forgotten
        self._past: list[Changes] = []
        self._least_ttl_s = least_ttl_s
        self._last_lease = 1000

    def copy(self) -> StoreState:
        """A backup."""
        return deepcopy(self)

    def restarted(self, now_s: float) -> StoreState:
        """This backup as a new etcd. All leases begin again, and past changes are gone."""
        new = deepcopy(self)
        new._past = []
        new.compacted = new.revision
        for lease in new.leases.values():
            lease.ends_s = now_s + lease.ttl_s
        return new

    def read(self) -> Contents:
        return Contents(self.revision, dict(self.values))

    def commit(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Commit:
        names = [change.name for change in changes]
        assert len(set(names)) == len(names), "etcd refuses two changes of one name"
        for compare in compares:
            value = self.values.get(compare.name)
            if compare.version != (0 if value is None else value.version):
                return Commit(False, self.revision)
        if any(change.lease and change.lease not in self.leases for change in changes):
            raise LeaseEnded("requested lease not found")
        self._write(changes)
        return Commit(True, self.revision)

    def _write(self, changes: Sequence[Change]) -> None:
        kept = [one for one in changes if one.data is not None or one.name in self.values]
        if not kept:
            return
        self.revision += 1
        written: dict[str, Value | None] = {}
        for name, data, lease in kept:
            before = self.values.pop(name, None)
            if before is not None and before.lease:
                self.leases[before.lease].names.discard(name)
            written[name] = None
            if data is not None:
                written[name] = self.values[name] = Value(data, self.revision, lease)
                if lease:
                    self.leases[lease].names.add(name)
        self._past.append(Changes(self.revision, written))

    def grant(self, ttl_s: int, now_s: float, late_s: float = 0) -> Grant:
        self._last_lease += 1
        granted_s = max(ttl_s, self._least_ttl_s)
        self.leases[self._last_lease] = Lease(granted_s, now_s + granted_s + late_s)
        return Grant(self._last_lease, granted_s)

    def keep_alive(self, number: int, now_s: float, late_s: float = 0) -> float | None:
        lease = self.leases.get(number)
        if lease is None:
            return None
        lease.ends_s = now_s + lease.ttl_s + late_s
        return lease.ttl_s

    def revoke(self, number: int) -> None:
        lease = self.leases.get(number)
        if lease is not None:
            self._write([Change(name, None) for name in sorted(lease.names)])
            del self.leases[number]

    def pass_to(self, now_s: float) -> None:
        """End the leases whose time is over."""
        for number in [one for one, lease in self.leases.items() if lease.ends_s <= now_s]:
            self.revoke(number)

    def next_end_s(self) -> float | None:
        return min((lease.ends_s for lease in self.leases.values()), default=None)

    def compact(self) -> None:
        self._past = []
        self.compacted = self.revision

    def changes_after(self, revision: int) -> Changes | None:
        """All changes after a revision as one; None if there are none."""
        if revision < self.compacted:
            raise Compacted(f"revision {revision + 1} was compacted")
        later = [changes for changes in self._past if changes.revision > revision]
        if not later:
            return None
        merged: dict[str, Value | None] = {}
        for changes in later:
            merged.update(changes.values)
        return Changes(later[-1].revision, merged)


class StoreModel:
    """An etcd that nodes reach over a network with faults.

    `cut` has the nodes that do not reach it, `silent` those whose watches stay silent; None in one
    of them means all nodes."""

    def __init__(self, chance: random.Random, state: StoreState | None = None) -> None:
        self.chance = chance
        self.state = state or StoreState()
        self.cut: set[str | None] = set()
        self.silent: set[str | None] = set()
        self.slowest_s = 0.02  # for each direction of a call
        self.lost_replies = 0.0  # the share of calls whose reply is lost
        self._watchers: list[asyncio.Future[None]] = []  # in an order that a seed repeats

    def of_node(self, node: str) -> ModelStore:
        return ModelStore(self, node)

    def is_cut(self, node: str) -> bool:
        return node in self.cut or None in self.cut

    def is_silent(self, node: str) -> bool:
        return node in self.silent or None in self.silent

    def set_cut(self, *nodes: str | None) -> None:
        """From now on these nodes, and no others, do not reach etcd; None: no node does."""
        self.cut = set(nodes)
        self.wake()

    def restore(self, backup: StoreState) -> None:
        """Replace etcd by one that was restored from a backup."""
        self.state = backup.restarted(asyncio.get_running_loop().time())
        self.settle()

    def settle(self) -> None:
        """Let leases end, and watches see what has changed."""
        loop = asyncio.get_running_loop()
        self.state.pass_to(loop.time())
        end_s = self.state.next_end_s()
        if end_s is not None:
            loop.call_at(end_s, self.settle)
        self.wake()

    def wake(self) -> None:
        waiting, self._watchers = self._watchers, []
        for watcher in waiting:
            if not watcher.done():
                watcher.set_result(None)

    async def changed(self) -> None:
        """Wait until something may have changed."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers.append(watcher)
        await watcher

    def late_s(self) -> float:
        return self.chance.uniform(0, REVOCATION_S)


class ModelStore:
    """The store as one node reaches it."""

    def __init__(self, model: StoreModel, node: str) -> None:
        self._model = model
        self._node = node

    async def read(self) -> Contents:
        return await self._call(lambda state, now_s: state.read())

    async def commit(self, compares: Sequence[Compare], changes: Sequence[Change]) -> Commit:
        return await self._call(lambda state, now_s: state.commit(compares, changes))

    async def grant(self, ttl_s: int) -> Grant:
        late_s = self._model.late_s()
        return await self._call(lambda state, now_s: state.grant(ttl_s, now_s, late_s))

    async def keep_alive(self, lease: int) -> float | None:
        late_s = self._model.late_s()
        return await self._call(lambda state, now_s: state.keep_alive(lease, now_s, late_s))

    async def revoke(self, lease: int) -> None:
        await self._call(lambda state, now_s: state.revoke(lease))

    async def _call(self, carry_out: Callable[[StoreState, float], Outcome]) -> Outcome:
        """The request arrives and its reply returns, each after a while. What does not arrive in
        time may arrive later."""
        model = self._model
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[Outcome] = loop.create_future()

        def reply(outcome: Outcome | None, problem: Exception | None) -> None:
            if replied.done() or model.is_cut(self._node):
                return
            if problem is not None:
                replied.set_exception(problem)
            else:
                replied.set_result(outcome)  # type: ignore[arg-type]

        def arrive() -> None:
            if model.is_cut(self._node):
                return
            outcome, problem = None, None
            try:
                outcome = carry_out(model.state, loop.time())
            except Exception as found:
                problem = found
            model.settle()
            if model.chance.random() >= model.lost_replies:
                loop.call_later(self._way_s(), reply, outcome, problem)

        loop.call_later(self._way_s(), arrive)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await replied
        except TimeoutError:
            raise Unreachable("etcd has not answered in time") from None

    def _way_s(self) -> float:
        return self._model.chance.uniform(0, self._model.slowest_s)

    async def watch(self, revision: int) -> AsyncGenerator[Changes, None]:
        model = self._model
        state = model.state
        await asyncio.sleep(self._way_s())
        while True:
            if model.is_cut(self._node):
                await asyncio.sleep(LEADERLESS_S)
                raise Unreachable("etcd has no leader")
            if model.state is not state:
                raise Unreachable("etcd has ended the watch")
            changes = None if model.is_silent(self._node) else state.changes_after(revision)
            if changes is None:
                await model.changed()
                continue
            await asyncio.sleep(self._way_s())
            revision = changes.revision
            yield changes
