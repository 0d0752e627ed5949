"""The clients that wait for frames: until these are on the disk here, or on replicas.

WAIT, WAITAOF and REPLICAOF NO ONE wait. The waits are checked whenever more frames are on this
server's disk, or a replica has acknowledged something.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from millstream.server.durability.persistence import Persistence
from millstream.server.execution.executor import Executor

if TYPE_CHECKING:

    class FrameWait(Protocol):
        client_id: int

        def is_over(self) -> bool: ...


class FrameWaits:
    """The waits by the client's ID."""

    def __init__(
        self, executor: Executor, persistence: Persistence, clients: Mapping[int, Any]
    ) -> None:
        self._executor = executor
        self._commits = persistence.commits
        self._clients = clients
        self._waits: dict[int, FrameWait] = {}

    def add(self, wait: FrameWait) -> None:
        self._waits[wait.client_id] = wait

    def remove(self, client_id: int) -> None:
        self._waits.pop(client_id, None)

    def check(self) -> None:
        """End the waits for frames that are on the disk, or on replicas, by now."""
        for wait in list(self._waits.values()):
            client = self._clients.get(wait.client_id)
            if client is not None and wait.is_over():
                self._executor.unblock_client(client, False)

    def write_position(self) -> int:
        """The frame with the last change by the client of the running command."""
        executor, commits = self._executor, self._commits
        if not executor.has_written:
            return executor.context.session.wrote_seq
        if not executor.context.may_block:  # within EXEC, whose frame is not committed yet
            return commits.last_seq + bool(len(executor.effects))
        commits.flush_tick()
        return commits.last_seq

    @property
    def synced_seq(self) -> int:
        """The last frame that is on the disk, or will be before any reply is sent."""
        if self._executor.context.may_block:
            return self._commits.on_disk_seq  # the mode may change while the reply is held
        return self._commits.synced_before_reply_seq

    def sync_soon(self) -> None:
        """Sync the journal without waiting for the next regular sync."""
        self._commits.sync_soon()
