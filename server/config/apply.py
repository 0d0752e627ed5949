"""The effects of directives: the functions that the table names as `apply`.

`apply(parts, value)` is called when the server is built and whenever CONFIG SET changes the value.
A directive that is read wherever it is used is marked with `READ`; a directive without `apply`
cannot be changed while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from millstream.server.config.kinds import UINT32_MAX
from millstream.server.monitor import log
from millstream.storage.groups.picking import set_parked_max

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from millstream.server.durability.persistence import Persistence
    from millstream.server.execution.access import Access
    from millstream.server.execution.eviction import Eviction
    from millstream.server.execution.executor import Executor
    from millstream.server.execution.pubsub import PubSub
    from millstream.server.monitor.latency import LatencyMonitor
    from millstream.server.monitor.slowlog import Slowlog
    from millstream.storage.keyspace.keyspace import Keyspace

LONGEST_US = 2**53  # thresholds above are never reached
LONGEST_MS = 2**43


if TYPE_CHECKING:

    class Values(Protocol):
        """The directives that a function reads in addition to its own."""

        appendonly: bool
        appendfsync: str
        appendfsync_groups: str
        maxmemory: int
        maxmemory_policy: str
        slowlog_log_slower_than: int
        latency_monitor_threshold: int
        loglevel: str
        log_format: str

    class Limits(Protocol):
        def update(self) -> None: ...

    class Clients(Protocol):
        @property
        def limits(self) -> Limits: ...
        def set_output_limits(self) -> None: ...

    class OomScore(Protocol):
        def update(self) -> None: ...

    class Listeners(Protocol):
        def renew_all(self) -> None: ...

    class Restrictions(Protocol):
        def update(self) -> None: ...

    class CrashReport(Protocol):
        def set_enabled(self, is_wanted: bool) -> None: ...

    class ClusterNode(Protocol):
        def look_at_state(self) -> None: ...

    class Role(Protocol):
        @property
        def restrictions(self) -> Restrictions: ...
        def journal_switched(self) -> None: ...


class Parts(Protocol):
    """The parts of a server (server/life) that have a copy of a directive. Those that read a
    `Config` themselves are protocols here, because the table of `Config` names these functions."""

    access: Access
    eviction: Eviction
    executor: Executor
    keyspace: Keyspace
    latency: LatencyMonitor
    loop: AbstractEventLoop
    persistence: Persistence
    pubsub: PubSub
    slowlog: Slowlog

    @property
    def config(self) -> Values: ...
    @property
    def clients(self) -> Clients: ...
    @property
    def listeners(self) -> Listeners: ...
    @property
    def oom_score(self) -> OomScore: ...
    @property
    def crash_report(self) -> CrashReport: ...
    @property
    def cluster(self) -> ClusterNode | None: ...
    @property
    def replication(self) -> Role: ...
    def check_waits(self) -> None: ...


Apply = Callable[[Parts, Any], object]


def READ(parts: Parts, value: object) -> None:
    """Nothing to do: the directive is read wherever it is used."""


def ONE_VALUE(parts: Parts, value: object) -> None:
    """Nothing to do: the directive has only one possible value, which tools may set."""


def of_cluster_state(parts: Parts, value: bool) -> None:
    """The rules by which a cluster is down, and for what runs meanwhile."""
    if parts.cluster is not None:
        parts.cluster.look_at_state()


def of_keyspace(limit: str) -> Apply:
    """A limit of streams, which the keyspace has as an attribute."""
    return lambda parts, value: setattr(parts.keyspace, limit, value)


def of_parking(parts: Parts, value: int) -> None:
    """The most parked entries of a group, which all keyspaces share."""
    set_parked_max(value)


def of_nodes(limit: str) -> Apply:
    """The same for the size of a node; 0 is no limit."""
    clipped = of_keyspace(limit)
    return lambda parts, value: clipped(parts, min(value, UINT32_MAX) or UINT32_MAX)


def of_requests(limit: str) -> Apply:
    """A limit of requests, which the parsers of all clients share."""
    return lambda parts, value: setattr(parts.executor.limits, limit, value)


def default_password(parts: Parts, password: str) -> None:
    parts.access.set_default_password(password)


def default_channels(parts: Parts, rule: str) -> None:
    parts.access.users.all_channels = rule == "allchannels"


def denial_log_length(parts: Parts, length: int) -> None:
    parts.access.log.resize(length)


def slowlog_length(parts: Parts, length: int) -> None:
    parts.slowlog.resize(length)


def slow_commands(parts: Parts, _: int) -> None:
    slow_us = parts.config.slowlog_log_slower_than
    latency_ms = parts.config.latency_monitor_threshold
    parts.slowlog.threshold_us = slow_us
    parts.latency.threshold_ms = latency_ms
    parts.persistence.commits.slow_sync_ns = min(latency_ms or LONGEST_MS, LONGEST_MS) * 1_000_000
    parts.executor.set_slow(min(slow_us, LONGEST_US), min(latency_ms, LONGEST_MS))


def queue_limit(parts: Parts, limit_bytes: int) -> None:
    parts.executor.limit_queue(limit_bytes)


def output_limits(parts: Parts, _: object) -> None:
    parts.clients.set_output_limits()


def client_limits(parts: Parts, _: object) -> None:
    """maxmemory-clients and user-limits."""
    parts.clients.limits.update()


def oom_score(parts: Parts, _: object) -> None:
    parts.oom_score.update()


def memory_limit(parts: Parts, _: object) -> None:
    config, eviction = parts.config, parts.eviction
    if eviction.set_limit(config.maxmemory, config.maxmemory_policy != "noeviction"):
        parts.loop.call_soon(parts.executor.eviction_work.limit_memory, eviction)


def restrictions(parts: Parts, _: object) -> None:
    parts.replication.restrictions.update()


def keyspace_events(parts: Parts, letters: str) -> None:
    """Without K or E there is no channel, so nothing is recorded."""
    is_published = parts.pubsub.publish_events(letters)
    parts.executor.context.events = letters.encode() if is_published else b""


def log_style(parts: Parts, _: str) -> None:
    log.set_style(parts.config.loglevel, parts.config.log_format)


def crash_log(parts: Parts, is_wanted: bool) -> None:
    parts.crash_report.set_enabled(is_wanted)


def certificates(parts: Parts, _: object) -> None:
    parts.listeners.renew_all()


def refused_writes(parts: Parts, _: object) -> None:
    """Directives that decide whether writes are refused after a failed snapshot: the next request
    of the same client, too, is judged by the new values."""
    parts.persistence.refusal.update()
    parts.executor.recheck_limits()


def journal(parts: Parts, _: object) -> None:
    """appendfsync and appendonly. During EXEC, the journal is switched afterwards, so that it has
    all of the transaction's effects or none."""
    parts.persistence.commits.set_fsync(parts.config.appendfsync)
    if parts.executor.context.may_block:
        switch_journal(parts)
    else:
        parts.loop.call_soon(switch_journal, parts)


def group_fsync(parts: Parts, _: object) -> None:
    """appendfsync-groups."""
    parts.persistence.commits.set_group_fsync(parts.config.appendfsync_groups)


def switch_journal(parts: Parts) -> None:
    """Switch the journal on or off."""
    wanted = parts.config.appendonly
    parts.executor.effects.enabled = wanted
    parts.persistence.set_appendonly(wanted)
    refused_writes(parts, wanted)
    parts.replication.journal_switched()
    if not wanted:
        parts.check_waits()
