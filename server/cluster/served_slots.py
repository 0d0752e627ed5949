"""The slots that a member of a shard serves: at the primary those of its shard in the map, without
those that its data hides because they move (`storage/keyspace/slot_states`).

Requests for slots of the shard that are hidden wait (`execution/slot_parking`), and those for slots
that it has got, until the map is on the disk. When the map gives slots to another shard, the waits,
subscriptions and transactions of their clients end (`slot_moves/slot_clients`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from millstream.commands.runtime.context import Session
from millstream.server.cluster.slot_moves.slot_clients import (
    end_shard_subscriptions,
    end_waits,
    fail_watches,
)
from millstream.server.cluster.store.records import SlotRanges
from millstream.server.execution.executor import Executor
from millstream.server.execution.pubsub import PubSub
from millstream.server.execution.slot_check import SlotCheck
from millstream.server.execution.slot_parking import SlotParking
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS, cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace


class SlotServer(Protocol):
    """The parts of the server whose clients use slots."""

    @property
    def executor(self) -> Executor: ...
    @property
    def keyspace(self) -> Keyspace: ...
    @property
    def pubsub(self) -> PubSub: ...


class ServedSlots:
    """`owners` are the names of the shards by slot, "" without one. `moved(client, slot)` is the
    error for a client of a slot that another node has, and `timeout_ms()` is
    cluster-handover-timeout."""

    def __init__(
        self, check: SlotCheck, moved: Callable[[Session, int], str], timeout_ms: Callable[[], int]
    ) -> None:
        self.owners: list[str] = [""] * CLUSTER_SLOTS
        self._check = check
        self._moved = moved
        self._timeout_ms = timeout_ms
        self._server: SlotServer | None = None
        self._clients: Mapping[int, Any] = {}
        self._map: SlotRanges | None = None  # that of `owners`
        self._served: str | None = None  # the shard whose primary this node is
        self._hidden: frozenset[int] = frozenset()
        self._gained: frozenset[int] = frozenset()  # by a map that is not on the disk yet

    def start(self, server: SlotServer, clients: Mapping[int, Any]) -> None:
        """The data is loaded."""
        self._server, self._clients = server, clients
        server.keyspace.on_slots_hidden = self._note_hidden
        self._note_hidden()

    def note(
        self, slot_map: SlotRanges, shard: str, served: str | None, *, is_kept: bool = True
    ) -> None:
        """The map, the own shard, and that as whose primary this node serves; None: it does not.
        `is_kept`: this is on the disk. Until then, no slots are served that were not before."""
        is_same_map = slot_map == self._map
        is_known = is_same_map and served == self._served and not (is_kept and self._gained)
        if is_known or not (is_kept or served == self._served):
            return
        before, knew = self.owners, self._map is not None
        self._map, self._served = slot_map, served
        if not is_same_map:
            self.owners = [""] * CLUSTER_SLOTS
            for first, last, name in slot_map.ranges:
                self.owners[first : last + 1] = [name] * (last + 1 - first)
        self._gained = frozenset() if is_kept else self._gained | self._gain(before)
        self._serve()
        if knew and shard and not is_same_map:
            pairs = zip(before, self.owners, strict=True)
            self._tell_clients(
                {slot for slot, (old, new) in enumerate(pairs) if old == shard != new}
            )

    def _gain(self, before: list[str]) -> frozenset[int]:
        """The slots that the shard has got since these were the owners."""
        pairs = zip(before, self.owners, strict=True)
        return frozenset(
            slot for slot, (old, new) in enumerate(pairs) if old != new == self._served
        )

    @property
    def parked(self) -> int:
        """The number of requests that wait."""
        return 0 if self._check.parking is None else len(self._check.parking.clients)

    def hides(self, slot: int) -> bool:
        return slot in self._hidden

    def _note_hidden(self) -> None:
        assert self._server is not None
        keyspace, before = self._server.keyspace, self._hidden
        self._hidden = keyspace.hidden_slots
        self._serve()
        shown = before - self._hidden
        if shown:
            self._serve_waiting(shown)

    def _serve_waiting(self, slots: Collection[int]) -> None:
        """Serve the reads that have waited while these slots were hidden, in a turn of its own: the
        data may be incomplete at this moment, because it is loaded again."""
        assert self._server is not None
        executor, keyspace = self._server.executor, self._server.keyspace
        for database in keyspace.databases:
            for key in database.waiting:
                if cluster_slot_of(key) in slots:
                    keyspace.mark_ready(database.index, key)
        executor.timers.at(executor.read_clocks()[1], executor.serve_ready)
        executor.serving.timer_stale = True
        executor.schedule_tick()

    def _serve(self) -> None:
        own = {slot for slot, shard in enumerate(self.owners) if shard == self._served}
        waiting = self._hidden | self._gained
        self._check.own(own - waiting)
        leaving = own & waiting
        parking = self._check.parking
        if parking is None and leaving:
            assert self._server is not None
            parking = SlotParking(self._server.executor, self._timeout_ms)
            self._check.park_in(parking)
        if parking is not None:
            parking.set_slots(leaving)

    def _tell_clients(self, slots: Collection[int]) -> None:
        server = self._server
        if server is None or not slots:
            return
        end_waits(server.executor, self._clients, slots, self._moved)
        end_shard_subscriptions(server.executor, server.pubsub, slots)
        fail_watches(server.keyspace, slots)
