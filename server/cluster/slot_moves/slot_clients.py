"""The clients of slots that belong to another shard now: what a change of the map means to them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from millstream.commands.runtime.replies import Push
from millstream.server.execution.executor import Executor
from millstream.server.execution.pubsub import PubSub
from millstream.server.protocol.outbox import Client
from millstream.storage.keyspace.cluster_slots import cluster_slot_of
from millstream.storage.keyspace.keyspace import Keyspace


def end_waits(
    executor: Executor,
    clients: Mapping[int, Any],
    slots: Collection[int],
    moved: Callable[[Any, int], str],
) -> None:
    """End the reads that wait for keys of these slots with the error `moved(client, slot)`."""
    for client in list(clients.values()):
        waiting = executor.waiting_read(client)
        if waiting is None:
            continue
        for _, key in waiting[1].keys:
            slot = cluster_slot_of(key)
            if slot in slots:
                executor.end_wait(client, moved(client, slot))
                break


def end_shard_subscriptions(executor: Executor, pubsub: PubSub, slots: Collection[int]) -> None:
    """End the subscriptions to shard channels of these slots, with a message, as in Redis."""
    for channel in pubsub.shard_channels():
        if cluster_slot_of(channel) in slots:
            for client in pubsub.end_shard_channel(channel):
                count = len(client.shard_channels)
                executor.push(cast(Client, client), Push([b"sunsubscribe", channel, count]))


def fail_watches(keyspace: Keyspace, slots: Collection[int]) -> None:
    """Transactions that watch keys of these slots fail: others may change the keys meanwhile."""
    for database in keyspace.databases:
        for key, watch in database.watched.items():
            if cluster_slot_of(key) in slots:
                watch.changes += 1
