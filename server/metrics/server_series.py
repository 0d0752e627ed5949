"""The samples about the server as a whole, with the names of redis_exporter and our own.

A metric that is a number in INFO is only a row of INFO_ROWS in metric_table; it needs no code here.
"""

from __future__ import annotations

import os
import resource
from asyncio import Event
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from millstream import __version__
from millstream.server.clients import Clients
from millstream.server.config.directives import Config
from millstream.server.durability.persistence import Persistence
from millstream.server.execution.access import Access
from millstream.server.execution.executor import Executor
from millstream.server.execution.slot_check import SlotCheck
from millstream.server.metrics.metric_table import INFO_ROWS
from millstream.server.metrics.text import histogram_lines, label, labels, number
from millstream.server.monitor.histogram import BOUNDS_S, Histogram
from millstream.server.monitor.info import Info, Process, Section, latency_fields
from millstream.server.monitor.latency import LatencyMonitor
from millstream.server.monitor.slowlog import Slowlog
from millstream.server.net.listeners import Listeners
from millstream.server.replication.discarded import PREFIX as DISCARDED
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.keyspace.slot_keys import visible_count, visible_expiring

CLIENTS_AT_ONCE = 100
FILES_AT_ONCE = 100
INSTANCE_LABELS = (
    "role", "redis_version", "redis_build_id", "redis_mode", "os", "maxmemory_policy", "tcp_port",
    "run_id", "process_id",
)  # fmt: skip
PERCENTILE = "latency_percentiles_usec_"

Lines = dict[str, list[str]]


class MemberFigures(Protocol):
    """This server as a node whose cluster has its map in etcd (server/cluster/states)."""

    @property
    def lease_ms(self) -> int: ...
    @property
    def confirming_members(self) -> int: ...
    @property
    def elections(self) -> int: ...
    @property
    def etcd_errors(self) -> int: ...
    @property
    def parked_requests(self) -> int: ...
    @property
    def move_bytes(self) -> int: ...
    @property
    def move_pauses(self) -> Histogram: ...


class NodeFigures(Protocol):
    """This server as a node of a cluster."""

    slots: SlotCheck

    @property
    def epoch(self) -> int: ...
    @property
    def term(self) -> int: ...

    @property
    def dropped_messages(self) -> int:
        """The number of messages of PUBLISH that were not sent to another node."""

    @property
    def is_serving(self) -> bool:
        """True if requests run here: on a replica, reads."""

    @property
    def figures(self) -> MemberFigures | None:
        """Those of a node whose cluster has its map in etcd."""

    def count_nodes(self) -> dict[str, int]:
        """The number of nodes by their health."""


@dataclass(frozen=True)
class Sources:
    """The parts of a server that its metrics describe."""

    config: Config
    process: Process
    info: Info
    clients: Clients
    access: Access
    executor: Executor
    persistence: Persistence
    listeners: Listeners
    slowlog: Slowlog
    latency: LatencyMonitor
    cluster: NodeFigures | None
    stopping: Event
    loop_delay_s: Callable[[], float]
    now_ms: Callable[[], int]
    steady_ms: Callable[[], int]

    def why_writes_are_refused(self) -> str | None:
        """The error of write commands, for all clients: the disk, the memory, or too few replicas.
        A replica refuses writes by design and gives no reason here."""
        error = self.persistence.writable_error()
        if error is not None:
            return error.decode()
        return self.executor.admission.out_of_memory or self.executor.admission.lacks_replicas


def server_lines(sources: Sources, lines: Lines) -> Iterator[None]:
    """Add the samples to the lists in `lines`, by the name of the metric. Each step takes a
    fraction of a millisecond."""
    found: dict[str, Section] = {}
    totals = yield from sources.clients.totals_in_steps(CLIENTS_AT_ONCE)
    for name in dict.fromkeys(row.section for row in INFO_ROWS):
        found[name] = sources.info.fields(name, totals)
        yield
    _info_lines(found, lines)
    yield
    _instance_lines(sources, found, lines)
    _replication_lines(found["replication"], lines)
    yield from _command_lines(sources.executor, lines)
    yield from _latency_percentile_lines(sources, lines)
    _latency_lines(sources.latency, sources.slowlog, lines)
    yield from _database_lines(sources.executor.keyspace, lines)
    _own_lines(sources, lines)
    if sources.cluster is not None:
        _cluster_lines(sources.cluster, lines)
    yield from _discarded_lines(sources.config.dir, lines)
    yield from _process_lines(sources.process, lines)


def _info_lines(found: dict[str, Section], lines: Lines) -> None:
    for row in INFO_ROWS:
        text = number(found[row.section].get(row.field, ""))
        if text is not None:
            if row.divisor != 1:
                text = repr(float(text) / row.divisor)
            lines[row.name].append(f"{row.name} {text}\n")


def _add(lines: Lines, name: str, value: object, **named: Any) -> None:
    text = labels(**{key: str(one) for key, one in named.items()}) if named else ""
    lines[name].append(f"{name}{text} {value}\n")


def _instance_lines(sources: Sources, found: dict[str, Section], lines: Lines) -> None:
    facts = {**found["server"], **found["memory"], **found["replication"]}
    _add(lines, "redis_up", 1)
    _add(lines, "redis_instance_info", 1, **{name: facts[name] for name in INSTANCE_LABELS})
    started_s = sources.now_ms() // 1000 - sources.process.uptime_s()
    _add(lines, "redis_start_time_seconds", started_s)
    config = sources.config
    required = max(config.replicas_durable, config.min_replicas_to_write)
    _add(lines, "millstream_config_replicas_required", required)
    for name in ("maxmemory", "maxclients", "io_threads"):
        _add(lines, f"redis_config_{name}", sources.config.shown(name.replace("_", "-")))


def _replication_lines(facts: Section, lines: Lines) -> None:
    is_swapping = facts["master_failover_state"] != "no-failover"
    _add(lines, "millstream_failover_in_progress", int(is_swapping))
    for field, fact in facts.items():
        if field.startswith("slave") and field[5:].isdigit():
            parts = dict(part.split("=", 1) for part in str(fact).split(","))
            named = {
                "slave_ip": parts["ip"],
                "slave_port": parts["port"],
                "slave_state": parts["state"],
            }
            _add(lines, "redis_connected_slave_offset_bytes", parts["offset"], **named)
            _add(lines, "redis_connected_slave_lag_seconds", parts["lag"], **named)
    if facts["role"] != "slave":
        return
    primary = {"master_host": facts["master_host"], "master_port": facts["master_port"]}
    read_only = {"read_only": facts["slave_read_only"]}
    is_up = int(facts["master_link_status"] == "up")
    _add(lines, "redis_master_link_up", is_up, **primary)
    _add(lines, "redis_slave_info", 1, **primary, **read_only)
    _add(lines, "redis_slave_repl_offset", facts["slave_repl_offset"], **primary)
    for field in ("master_last_io_seconds_ago", "master_sync_in_progress"):
        _add(lines, f"redis_{field}", facts[field], **primary)


def _command_lines(executor: Executor, lines: Lines) -> Iterator[None]:
    for name, stat in executor.table.stats().items():
        _add(lines, "redis_commands_total", stat.calls, cmd=name)
        _add(lines, "redis_commands_duration_seconds_total", stat.usec / 1e6, cmd=name)
        _add(lines, "redis_commands_failed_calls_total", stat.failed_calls, cmd=name)
        _add(lines, "redis_commands_rejected_calls_total", stat.rejected_calls, cmd=name)
    for code, count in sorted(executor.statistics.errors_by_code.items()):
        _add(lines, "redis_errors_total", count, err=code)
    yield


def _latency_percentile_lines(sources: Sources, lines: Lines) -> Iterator[None]:
    family, stats = "redis_latency_percentiles_usec", sources.executor.table.stats()
    for field, fact in latency_fields(sources.latency, sources.config).items():
        name = field.removeprefix(PERCENTILE)
        for part in str(fact).split(","):
            percentage, _, value = part.removeprefix("p").partition("=")
            _add(lines, family, value, cmd=name, quantile=percentage)
        if name in stats:
            named = labels(cmd=name)
            lines[family].append(f"{family}_sum{named} {stats[name].usec}\n")
            lines[family].append(f"{family}_count{named} {stats[name].calls}\n")
    yield


def _latency_lines(latency: LatencyMonitor, slowlog: Slowlog, lines: Lines) -> None:
    for event, last_s, last_ms, _ in latency.latest():
        _add(lines, "redis_latency_spike_last", last_s, event_name=event)
        _add(lines, "redis_latency_spike_duration_seconds", last_ms / 1000, event_name=event)
    last = slowlog.entries(1)
    _add(lines, "redis_slowlog_length", len(slowlog))
    _add(lines, "redis_slowlog_last_id", last[0].number if last else 0)
    seconds = last[0].duration_us / 1e6 if last else 0
    _add(lines, "redis_last_slow_execution_duration_seconds", seconds)


def _database_lines(keyspace: Keyspace, lines: Lines) -> Iterator[None]:
    for db in keyspace.databases:
        name = f"db{db.index}"
        _add(lines, "redis_db_keys", visible_count(db), db=name)
        expiring = visible_expiring(db)
        _add(lines, "redis_db_keys_expiring", expiring.keys, db=name)
        if len(db):
            _add(lines, "redis_db_avg_ttl_seconds", expiring.average_ttl_ms / 1000, db=name)
        if db.index % 16 == 15:
            yield


def _own_lines(sources: Sources, lines: Lines) -> None:
    executor, persistence = sources.executor, sources.persistence
    named = f'{{version="{label(__version__)}"}}'
    lines["millstream_build_info"].append(f"millstream_build_info{named} 1\n")
    values: dict[str, object] = {
        "writes_refused": int(sources.why_writes_are_refused() is not None),
        "loop_delay_seconds": sources.loop_delay_s(),
        "journal_size_bytes": persistence.current_bytes(),
        "journal_frames_total": persistence.commits.last_seq,
        "snapshot_running": int(persistence.snapshots.job is not None),
        "snapshot_last_seconds": persistence.snapshots.last_duration_s,
        "held_replies": executor.outbox.held_count,
        "held_replies_age_seconds": executor.outbox.hold_age_ms(sources.steady_ms()) / 1000,
        "tls_certificate_expiry_timestamp_seconds": (
            None if sources.listeners.tls is None else sources.listeners.tls.expires_s
        ),
    }
    for name, value in values.items():
        if value is not None:
            _add(lines, f"millstream_{name}", value)
    for directive, expires_s in sources.listeners.files_expire_s.items():
        name = "millstream_tls_file_expiry_timestamp_seconds"
        _add(lines, name, expires_s, directive=directive)
    keyspace = executor.keyspace
    for cause, count in (
        ("retry", keyspace.redelivered_due),
        ("claim", keyspace.redelivered_claimed),
    ):
        _add(lines, "millstream_redeliveries_total", count, cause=cause)
    _histogram(lines, "millstream_tick_seconds", executor.tick_times)
    _histogram(lines, "millstream_reply_hold_seconds", executor.hold_times)
    _histogram(lines, "millstream_journal_sync_seconds", persistence.commits.sync_times)


def _cluster_lines(node: NodeFigures, lines: Lines) -> None:
    _add(lines, "millstream_cluster_epoch", node.epoch)
    _add(lines, "millstream_cluster_state", int(node.is_serving))
    _add(lines, "millstream_cluster_term", node.term)
    _add(lines, "millstream_cluster_relay_dropped_total", node.dropped_messages)
    for health, count in node.count_nodes().items():
        _add(lines, "millstream_cluster_nodes", count, health=health)
    for kind, count in (
        ("moved", node.slots.moved),
        ("crossslot", node.slots.crossed),
        ("unserved", node.slots.unserved),
    ):
        _add(lines, "millstream_cluster_redirects_total", count, kind=kind)
    figures = node.figures
    if figures is not None:
        _add(lines, "millstream_cluster_lease_seconds", figures.lease_ms / 1000)
        _add(lines, "millstream_cluster_confirming_members", figures.confirming_members)
        _add(lines, "millstream_cluster_elections_total", figures.elections)
        _add(lines, "millstream_cluster_etcd_errors_total", figures.etcd_errors)
        _add(lines, "millstream_cluster_parked_requests", figures.parked_requests)
        _add(lines, "millstream_cluster_move_bytes_total", figures.move_bytes)
        _histogram(lines, "millstream_cluster_move_pause_seconds", figures.move_pauses)


def _histogram(lines: Lines, name: str, found: Histogram) -> None:
    lines[name] += histogram_lines(name, BOUNDS_S, found.cumulative(), found.sum_s)


def _discarded_lines(directory: Path, lines: Lines) -> Iterator[None]:
    """The folders with data that a rewind or a full sync removed."""
    folders = size_bytes = 0
    made_s: list[float] = []
    with os.scandir(directory) as found:
        for entry in found:
            if not entry.name.startswith(DISCARDED) or not entry.is_dir():
                continue
            folders += 1
            made_s.append(entry.stat().st_mtime)
            for number, file in enumerate(os.scandir(entry.path)):
                size_bytes += file.stat().st_size
                if number % FILES_AT_ONCE == 0:
                    yield
    _add(lines, "millstream_discarded_data_folders", folders)
    _add(lines, "millstream_discarded_data_bytes", size_bytes)
    if made_s:
        _add(lines, "millstream_discarded_data_timestamp_seconds", min(made_s))


def _limit(kind: int) -> float:
    soft, _ = resource.getrlimit(kind)
    return float(2**64 - 1) if soft == resource.RLIM_INFINITY else soft


def _process_lines(process: Process, lines: Lines) -> Iterator[None]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    page_bytes = resource.getpagesize()
    virtual_pages, resident_pages = Path("/proc/self/statm").read_text().split()[:2]
    values = {
        "cpu_seconds_total": used.ru_utime + used.ru_stime,
        "resident_memory_bytes": int(resident_pages) * page_bytes,
        "virtual_memory_bytes": int(virtual_pages) * page_bytes,
        "virtual_memory_max_bytes": _limit(resource.RLIMIT_AS),
        "start_time_seconds": process.started_at_ms / 1000,
        "max_fds": _limit(resource.RLIMIT_NOFILE),
    }
    for name, value in values.items():
        _add(lines, f"process_{name}", value)
    count = 0
    with os.scandir("/proc/self/fd") as entries:
        for _ in entries:
            count += 1
            if count % FILES_AT_ONCE == 0:
                yield
    _add(lines, "process_open_fds", count - 1)  # the scan opens one
