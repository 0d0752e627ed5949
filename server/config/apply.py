"""The effects of directives: the functions that the table names as `apply`.

`apply(server, value)` is called when the server is built and whenever CONFIG SET changes the value.
`server` has the parts that server/life builds. A directive that is read wherever it is used is
marked with `READ`; a directive without `apply` cannot be changed while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millstream.server.config.kinds import UINT32_MAX

Apply = Callable[[Any, Any], object]

LONGEST_US = 2**53  # thresholds above are never reached
LONGEST_MS = 2**43


def READ(server: Any, value: Any) -> None:
    """Nothing to do: the directive is read wherever it is used."""


def ONE_VALUE(server: Any, value: Any) -> None:
    """Nothing to do: the directive has only one possible value, which tools may set."""


def of_keyspace(limit: str) -> Apply:
    """A limit of streams, which the keyspace has as an attribute."""
    return lambda server, value: setattr(server.keyspace, limit, value)


def of_nodes(limit: str) -> Apply:
    """The same for the size of a node; 0 is no limit."""
    clipped = of_keyspace(limit)
    return lambda server, value: clipped(server, min(value, UINT32_MAX) or UINT32_MAX)


def of_requests(limit: str) -> Apply:
    """A limit of requests, which the parsers of all clients share."""
    return lambda server, value: setattr(server.executor.limits, limit, value)


def default_password(server: Any, password: str) -> None:
    server.access.set_default_password(password)


def default_channels(server: Any, rule: str) -> None:
    server.access.users.all_channels = rule == "allchannels"


def denial_log_length(server: Any, length: int) -> None:
    server.access.log.max_len = length
    server.access.log.trim()


def slowlog_length(server: Any, length: int) -> None:
    server.slowlog.max_len = length
    server.slowlog.trim()


def slow_commands(server: Any, _: int) -> None:
    slow_us = server.config.slowlog_log_slower_than
    latency_ms = server.config.latency_monitor_threshold
    server.slowlog.threshold_us = slow_us
    server.latency.threshold_ms = latency_ms
    server.executor.set_slow(min(slow_us, LONGEST_US), min(latency_ms, LONGEST_MS))


def queue_limit(server: Any, limit_bytes: int) -> None:
    server.executor.limit_queue(limit_bytes)


def output_limits(server: Any, _: object) -> None:
    server.clients.set_output_limits()


def memory_limit(server: Any, _: object) -> None:
    config, eviction = server.config, server.eviction
    if eviction.set_limit(config.maxmemory, config.maxmemory_policy != "noeviction"):
        server.loop.call_soon(server.executor.eviction_work.limit_memory, eviction)


def restrictions(server: Any, _: object) -> None:
    server.replication.restrictions.update()


def keyspace_events(server: Any, letters: str) -> None:
    """Without K or E there is no channel, so nothing is recorded."""
    is_published = server.pubsub.publish_events(letters)
    server.executor.context.events = letters.encode() if is_published else b""


def log_style(server: Any, _: str) -> None:
    server.set_log_style(server.config.loglevel, server.config.log_format)


def certificates(server: Any, _: object) -> None:
    server.listeners.renew_all()


def journal(server: Any, _: object) -> None:
    """appendfsync and appendonly. During EXEC, the journal is switched afterwards, so that it has
    all of the transaction's effects or none."""
    server.persistence.commits.set_fsync(server.config.appendfsync)
    if server.executor.context.may_block:
        switch_journal(server)
    else:
        server.loop.call_soon(switch_journal, server)


def switch_journal(server: Any) -> None:
    """Switch the journal on or off."""
    wanted = server.config.appendonly
    server.executor.effects.enabled = wanted
    server.persistence.set_appendonly(wanted)
    server.replication.journal_switched()
    if not wanted:
        server.waits.check()
        server.shutdown.check_replicas()
