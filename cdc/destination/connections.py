"""Connections to the destination: how values are read and written, whatever its settings are."""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg

from millstream.cdc.config import CdcConfig
from millstream.cdc.protocol.session import Connection, session
from millstream.cdc.sql import one_line
from millstream.cdc.streams.stream_appender import address_of
from millstream.pipeline.server_connection import ServerConnection

# row_security: a policy must cause an error, not hide rows. lock_timeout: a wait for another
# program's lock ends with an error, is reported and repeated.
SETTINGS = (
    "-c xmloption=content -c row_security=off -c client_min_messages=warning"
    " -c lock_timeout=60000 -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)
# Otherwise a statement of a worker that was killed runs to its end, with the lock of its offsets.
NOTICE_KILLS = "SET client_connection_check_interval = '5s'"
LINE_MAX = 1000


def connect(config: CdcConfig, application: str) -> Connection:
    """A connection in which every transaction is begun explicitly. psycopg.Error if there is
    none."""
    url = config.destination.url
    connection: Connection = psycopg.connect(
        url, autocommit=True, **session(url, application, SETTINGS)
    )
    try:
        with contextlib.suppress(psycopg.errors.InvalidParameterValue):  # PostgreSQL on Windows
            connection.execute(NOTICE_KILLS)
        for name, value in config.destination.settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            connection.execute("SELECT set_config(%s, %s, false)", [name, text])
    except psycopg.Error:
        connection.close()
        raise
    return connection


class ApplyConnections:
    """A connection to the destination and one to millstream. Each is opened when it is first used,
    and again after `close` or a break."""

    def __init__(self, config: CdcConfig, application: str) -> None:
        self._config = config
        self._application = application
        self._destination: Connection | None = None
        self._server: ServerConnection | None = None

    @property
    def is_open(self) -> bool:
        """True if there is a connection to the destination that is not known to be broken."""
        return self._destination is not None and not self._destination.closed

    @property
    def destination(self) -> Connection:
        """psycopg.Error if there is no connection."""
        if self._destination is None or self._destination.closed:
            self._destination = connect(self._config, self._application)
        return self._destination

    @property
    def server(self) -> ServerConnection:
        if self._server is None:
            self._server = address_of(self._config.millstream).open()
        return self._server

    def close(self) -> None:
        for one in (self._destination, self._server):
            if one is not None:
                one.close()
        self._destination = self._server = None


class TargetSession:
    """A transaction at the destination, and which temporary tables have rows in it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.dirty: set[str] = set()

    def run(self, statement: str) -> int:
        """Execute a statement without parameters; the number of rows it changed.

        It is not prepared: a plan made for a small temporary table is wrong for a large one.
        """
        with self.connection.cursor() as cursor:
            cursor.execute(statement, prepare=False)
            return int(cursor.rowcount)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query without parameters."""
        with self.connection.cursor() as cursor:
            cursor.execute(statement, prepare=False)
            return cursor.fetchall()


def in_one_line(error: BaseException) -> str:
    """An error's text without line breaks; for PostgreSQL's errors with their detail. The text may
    contain a complete value, so it is truncated."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        parts = [error.diag.message_primary, error.diag.message_detail]
        text = ": ".join(part for part in parts if part)
    else:
        text = str(error) or type(error).__name__
    line = one_line(text)
    return line if len(line) <= LINE_MAX else f"{line[:LINE_MAX]} .."
