"""The logger of the client, and its messages about a stream's events."""

from __future__ import annotations

import logging

from millstream.client.events import (
    Disconnected,
    Event,
    Gap,
    Reconnected,
    ShardEnded,
    ShardMissing,
    ShardOpened,
)

log = logging.getLogger("millstream.client")


def log_event(event: Event) -> None:
    match event:
        case ShardOpened(shard):
            log.info("shard %r: opened", shard)
        case ShardEnded(shard, children):
            log.info("shard %r: read to its end; continues in %s", shard, list(children))
        case Gap(shard, after, resumed):
            log.warning(
                "shard %r: entries after %s were removed before they were read; resumed at %s",
                shard,
                after,
                resumed,
            )
        case ShardMissing(shard, ()):
            log.warning("shard %r: its key does not exist; the stream waits for it", shard)
        case ShardMissing(shard, parents):
            log.warning(
                "shard %r: the stream waits for it, because %s is sealed and continues in it, but "
                "it does not exist where it was looked for",
                shard,
                ", ".join(map(repr, parents)),
            )
        case Disconnected(shards, cause):
            log.warning("shards %s: not available: %s", list(shards), cause)
        case Reconnected(shards):
            log.info("shards %s: available again", list(shards))


def log_failed_handler(event: Event) -> None:
    """Called while the exception that `on_event` has raised is handled."""
    log.exception("on_event raised an error for %r; the stream continues", event)
