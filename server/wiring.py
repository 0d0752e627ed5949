"""Connects the executor, the persistence, the keyspace and replication: where their hooks are set.

The server, the simulation and the tests that run a server without sockets all call `connect`, so
that a hook cannot be forgotten in one of them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.server.durability.persistence import Persistence
    from millstream.server.execution.executor import Executor
    from millstream.server.replication.role import Role
    from millstream.storage.keyspace.keyspace import Keyspace


def connect(
    executor: Executor,
    persistence: Persistence,
    keyspace: Keyspace,
    replication: Role | None = None,
) -> None:
    """Set the hooks: the journal's events go to the executor and the replicas, changes go to the
    persistence."""
    persistence.on_durable = executor.outbox.durable
    if replication is not None:
        persistence.on_durable = replication.restrictions.on_durable
        persistence.on_synced = replication.on_synced
    persistence.on_writes_accepted = executor.check_due
    persistence.on_queue = executor.on_queue
    persistence.on_failed = lambda sentence: executor.journal_failed()
    persistence.flush_tick = partial(commit_tick, executor, persistence)
    persistence.count_changes = lambda: keyspace.dirty


def commit_tick(executor: Executor, persistence: Persistence) -> None:
    """Commit the effects of this tick so far, before the tick ends."""
    effects = executor.effects
    if len(effects):
        persistence.commit(effects.take_payload())
        executor.schedule_tick()  # at whose end the frame is sent to replicas
    effects.forget_room()  # the next effects may go to another journal
