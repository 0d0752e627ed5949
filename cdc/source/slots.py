"""A source's slot: its state, whether it fits the state in millstream, and its creation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from millstream.cdc.config import Source
from millstream.cdc.protocol.replication_stream import ReplicationStream, SystemId
from millstream.cdc.protocol.session import Connection
from millstream.cdc.source.pg_catalog import connect
from millstream.cdc.sql import lsn_text, read_lsn
from millstream.cdc.streams.source_state import SourceState

LOOK_S = 1.0

SLOT = """
SELECT plugin, database, active_pid, wal_status, confirmed_flush_lsn::text,
       pg_wal_lsn_diff({now}, restart_lsn)::int8
FROM pg_replication_slots WHERE slot_name = %s
"""
NOW = "CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END"
BLOCKERS = """
SELECT b.pid, a.state FROM unnest(pg_blocking_pids(%s)) AS b (pid)
LEFT JOIN pg_stat_activity a ON a.pid = b.pid
"""


@dataclass(frozen=True)
class ReplicationSlot:
    """A replication slot, as far as the source knows it. `retained_bytes` of WAL are kept for
    it."""

    name: str
    plugin: str | None
    database: str | None
    active_pid: int | None
    wal_status: str | None
    confirmed_lsn: int | None
    retained_bytes: int | None

    def as_json(self) -> dict[str, Any]:
        """As in `status --json`."""
        return {
            "name": self.name,
            "active": self.active_pid is not None,
            "wal_status": self.wal_status,
            "confirmed_lsn": None if self.confirmed_lsn is None else lsn_text(self.confirmed_lsn),
            "retained_bytes": self.retained_bytes,
        }


def read_slot(connection: Connection, name: str) -> ReplicationSlot | None:
    row = connection.execute(SLOT.format(now=NOW), [name]).fetchone()
    if row is None:
        return None
    plugin, database, pid, status, confirmed, retained = row
    lsn = None if confirmed is None else read_lsn(confirmed)
    return ReplicationSlot(name, plugin, database, pid, status, lsn, retained)


def refusal(
    source: Source,
    state: SourceState | None,
    slot: ReplicationSlot | None,
    system: SystemId,
    timeline_end: Callable[[int, int], int | None],
) -> str | None:
    """The reason why the source cannot be read, in one line with the command that helps; None if it
    can.

    `timeline_end(timeline, current)` is where an earlier timeline ended.
    """
    problem = _mismatch(source, state, slot, system, timeline_end)
    if problem is None:
        return None
    return f"{problem}; to copy everything again: millstream cdc resync {source.name} --all"


def _mismatch(
    source: Source,
    state: SourceState | None,
    slot: ReplicationSlot | None,
    system: SystemId,
    timeline_end: Callable[[int, int], int | None],
) -> str | None:
    if state is None or state.resync or state.phase == "making":
        return None
    durable = lsn_text(state.durable_lsn)
    if state.system != system.system:
        return (
            f"the source is another cluster: its system identifier is {system.system}, "
            f"the slot was made on {state.system}"
        )
    if state.timeline != system.timeline:
        end = timeline_end(state.timeline, system.timeline)
        if end is None:
            return (
                f"the source is on timeline {system.timeline}, which does not descend from "
                f"timeline {state.timeline}"
            )
        if end < state.durable_lsn:
            return (
                f"the source left timeline {state.timeline} at {lsn_text(end)}, before the "
                f"durable LSN {durable}"
            )
    return _slot_mismatch(source, slot, state.durable_lsn, system)


def _slot_mismatch(
    source: Source, slot: ReplicationSlot | None, durable_lsn: int, system: SystemId
) -> str | None:
    durable = lsn_text(durable_lsn)
    if slot is None:
        return f"the slot {source.slot} no longer exists"
    if slot.wal_status == "lost":
        return f"slot lost: the WAL that {slot.name} needs was removed"
    if slot.plugin != "pgoutput":
        return f"the slot {slot.name} has the plugin {slot.plugin}, not pgoutput"
    if slot.confirmed_lsn is not None and slot.confirmed_lsn > durable_lsn:
        return (
            f"millstream is behind the slot: {slot.name} has confirmed "
            f"{lsn_text(slot.confirmed_lsn)}, the durable LSN is {durable}"
        )
    if system.lsn < durable_lsn:
        end = lsn_text(system.lsn)
        return f"the WAL of the source ends at {end}, before the durable LSN {durable}"
    return None


@contextmanager
def blockers_reported(url: str, pid: int, report: Callable[[str], None]) -> Iterator[None]:
    """While the process `pid` of the source waits for a transaction, report which one it is."""
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            try:
                with connect(url, "millstream cdc: waiting") as connection:
                    while not done.wait(LOOK_S):
                        problem = _blocker(connection, pid)
                        if problem is not None and not done.is_set():
                            report(problem)
            except psycopg.Error:
                continue  # the process that waits reports what is wrong with the source

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()


def _blocker(connection: Connection, pid: int) -> str | None:
    row = connection.execute(BLOCKERS, [pid]).fetchone()
    if row is None:
        return None
    holder, state = row
    if holder == 0:
        return "waiting for a prepared transaction"
    return f"waiting for transaction of pid {holder} ({state or 'state not visible'})"


def drop_slot(connection: Connection, name: str) -> bool:
    """Drop a slot that is not in use; False if there is none."""
    found = connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        [name],
    ).fetchall()
    return bool(found)


def create_slot(source: Source, report: Callable[[str], None]) -> int:
    """Create the slot; its LSN."""
    with (
        ReplicationStream(source.url, f"millstream cdc: {source.name}") as replication,
        blockers_reported(source.url, replication.pid, report),
    ):
        return replication.create_slot(source.slot, source.failover)
