"""The cluster is down while slots are not served: `cluster-require-full-coverage`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millstream.server.cluster.slot_moves.slot_clients import end_waits
from millstream.server.config.directives import Config
from millstream.server.execution.executor import Executor
from millstream.server.execution.slot_check import DOWN, SlotCheck
from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS


class Coverage:
    """`count_slots` returns the number of slots in the map, and that of the slots whose nodes do
    not run. `look` is called when these or the directives may have changed."""

    def __init__(
        self, config: Config, slots: SlotCheck, count_slots: Callable[[], tuple[int, int]]
    ) -> None:
        self._config = config
        self._slots = slots
        self._count_slots = count_slots
        self._executor: Executor | None = None
        self._clients: Mapping[int, Any] = {}

    def start(self, executor: Executor, clients: Mapping[int, Any]) -> None:
        """The data is loaded."""
        self._executor, self._clients = executor, clients

    def look(self) -> None:
        directives = self._config.cluster
        was_down = self._slots.is_down
        is_down = directives.require_full_coverage and self._count_slots() != (CLUSTER_SLOTS, 0)
        if is_down or was_down:
            self._slots.set_down(is_down, allows_reads=directives.allow_reads_when_down)
        if is_down and not was_down:
            self.end_waits()

    def end_waits(self) -> None:
        """Reads that wait end with an error, as in Redis, also if reads are allowed: there are no
        writes that they could wait for."""
        if self._executor is not None:
            every_slot = range(CLUSTER_SLOTS)
            end_waits(self._executor, self._clients, every_slot, lambda client, slot: DOWN)
