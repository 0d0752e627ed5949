"""A replication connection to PostgreSQL: the copy-both stream of a logical slot.

psycopg has no replication; its `pq` layer, libpq's own interface, has what is needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import psycopg
from psycopg import pq

from millstream.cdc.protocol.pgoutput import POSTGRES_EPOCH_US, DecodeError
from millstream.cdc.protocol.session import session
from millstream.cdc.sql import identifier, lsn_text, read_lsn

NO_FILE = b"58P01"
WAL_DATA = struct.Struct("!QQ")

CANCEL_TIMEOUT_S = 2


@dataclass(slots=True)
class Data:
    """A message of the output plugin. `end_lsn` is the source's end of WAL when it was sent."""

    lsn: int
    end_lsn: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Keepalive:
    """The source has sent everything up to `end_lsn`. It may want a status message at once."""

    end_lsn: int
    wants_reply: bool


Received: TypeAlias = Data | Keepalive


@dataclass(frozen=True, slots=True)
class SystemId:
    """The identity of a cluster, and its timeline."""

    system: str
    timeline: int
    lsn: int


_waiting: set[ReplicationStream] = set()


def cancel_commands() -> None:
    """End the commands of this process that wait for transactions of a source: a source notices
    only afterwards that the process has ended."""
    for replication in list(_waiting):
        with contextlib.suppress(psycopg.Error):
            replication.cancel()


class ReplicationStream:
    """One connection that can create a slot, read from it, and confirm."""

    def __init__(self, url: str, application: str) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(
            url, replication="database", autocommit=True, **session(url, application)
        )
        self._pgconn = self._connection.pgconn

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def cancel(self) -> None:
        """Ask the source to end the running command."""
        self._connection.cancel_safe(timeout=CANCEL_TIMEOUT_S)

    @property
    def pid(self) -> int:
        """The process of the source that serves this connection."""
        return self._pgconn.backend_pid

    # ------------------------------------------------------------ commands

    def identify(self) -> SystemId:
        row = self._row("IDENTIFY_SYSTEM")
        return SystemId(row[0], int(row[1]), read_lsn(row[2]))

    def timeline_end(self, timeline: int, current: int) -> int | None:
        """The LSN at which an earlier timeline of this cluster ended; None if `current` does not
        descend from it."""
        result = self._pgconn.exec_(f"TIMELINE_HISTORY {current}".encode())
        if result.error_field(pq.DiagnosticField.SQLSTATE) == NO_FILE:
            return None  # the first timeline has no history
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise self._error(result)
        for line in (result.get_value(0, 1) or b"").decode(errors="replace").splitlines():
            words = line.split()
            if words and words[0] == str(timeline):
                return read_lsn(words[1])
        return None

    def create_slot(self, slot: str, failover: bool = False) -> int:
        """Create a slot; the LSN from which it has everything. Waits for open transactions."""
        # The words before PostgreSQL 15, which all versions accept.
        words = "(SNAPSHOT 'nothing', FAILOVER true)" if failover else "NOEXPORT_SNAPSHOT"
        row = self._row(f"CREATE_REPLICATION_SLOT {identifier(slot)} LOGICAL pgoutput {words}")
        return read_lsn(row[1])

    def export_snapshot(self, slot: str) -> tuple[int, str]:
        """Create a temporary slot; its LSN, and the name of the snapshot with all transactions that
        were committed before it. The name is valid until this connection is used or closed."""
        row = self._row(
            f"CREATE_REPLICATION_SLOT {identifier(slot)} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        )
        return read_lsn(row[1]), row[2]

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Begin to read, with the first transaction whose commit is at or after `lsn`."""
        result = self._pgconn.exec_(
            f"START_REPLICATION SLOT {identifier(slot)} LOGICAL {lsn_text(lsn)}"
            f" (proto_version '1', publication_names '{identifier(publication)}')".encode()
        )
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise self._error(result)
        self._pgconn.nonblocking = 1

    def _row(self, command: str) -> list[str]:
        _waiting.add(self)
        try:
            result = self._pgconn.exec_(command.encode())
        finally:
            _waiting.discard(self)
        if result.status != pq.ExecStatus.TUPLES_OK:
            raise self._error(result)
        return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]

    def _error(self, result: Any) -> psycopg.Error:
        if result.error_field(pq.DiagnosticField.SQLSTATE) is None:  # libpq's own: it is broken
            return psycopg.OperationalError(result.error_message.decode(errors="replace"))
        return psycopg.errors.error_from_result(result, encoding="utf-8")

    # ------------------------------------------------------------ the stream

    def receive_now(self) -> Received | None:
        """The next message; None if it has not arrived yet. psycopg.Error if the source ends the
        stream."""
        size, data = self._pgconn.get_copy_data(1)
        if size == 0:
            self._pgconn.consume_input()
            size, data = self._pgconn.get_copy_data(1)
        if size > 0:
            return parse(bytes(data))
        if size < 0:
            raise self._ended()
        return None

    async def readable(self) -> None:
        """Wait until something has arrived."""
        await self._ready(self._loop().add_reader, self._loop().remove_reader)

    async def flushed(self) -> None:
        """Wait until everything that was confirmed has been handed to the operating system."""
        while self._pgconn.flush():
            await self._ready(self._loop().add_writer, self._loop().remove_writer)

    def _loop(self) -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    async def _ready(self, add: Callable[..., Any], remove: Callable[..., Any]) -> None:
        ready, number = asyncio.Event(), self._pgconn.socket
        add(number, ready.set)
        try:
            await ready.wait()
        finally:
            remove(number)

    def _ended(self) -> psycopg.Error:
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return self._error(result)
        return psycopg.OperationalError("the source has ended the replication stream")

    def confirm(self, durable_lsn: int, wants_reply: bool = False) -> None:
        """Confirm to the source that it may remove everything before `durable_lsn`. Never waits:
        `flushed` or the next call sends the bytes that the socket does not accept now."""
        now_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        self._pgconn.put_copy_data(
            struct.pack("!cQQQqB", b"r", durable_lsn, durable_lsn, durable_lsn, now_us, wants_reply)
        )
        self._pgconn.flush()


def parse(data: bytes) -> Received:
    """One message of the stream."""
    if data[:1] == b"w" and len(data) >= 25:
        lsn, end_lsn = WAL_DATA.unpack_from(data, 1)
        return Data(lsn, end_lsn, data[25:])
    if data[:1] == b"k" and len(data) == 18:
        end_lsn, _, wants_reply = struct.unpack_from("!QqB", data, 1)
        return Keepalive(end_lsn, bool(wants_reply))
    raise DecodeError(f"a message of the unknown kind {data[:1]!r} in the replication stream")
