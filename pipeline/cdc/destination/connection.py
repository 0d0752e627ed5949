"""Connections to the destination: how values are read and written, whatever its settings are."""

from __future__ import annotations

import psycopg

from millstream.pipeline.cdc.config import Config
from millstream.pipeline.cdc.protocol.session import Connection, session

# row_security: a policy must cause an error, not hide rows. lock_timeout: whoever waits for another
# program's lock reports it, and tries again.
SETTINGS = (
    "-c xmloption=content -c row_security=off -c client_min_messages=warning"
    " -c lock_timeout=60000 -c statement_timeout=0 -c idle_in_transaction_session_timeout=0"
)


def connect(config: Config, application: str) -> Connection:
    """A connection in which every transaction is begun explicitly. psycopg.Error if there is
    none."""
    url = config.destination.url
    connection: Connection = psycopg.connect(
        url, autocommit=True, **session(url, application, SETTINGS)
    )
    for name, value in config.destination.settings.items():
        text = str(value).lower() if isinstance(value, bool) else str(value)
        connection.execute("SELECT set_config(%s, %s, false)", [name, text])
    return connection


def in_one_line(error: BaseException) -> str:
    """An error's text without line breaks; for PostgreSQL's errors with their detail."""
    if isinstance(error, psycopg.Error) and error.diag.message_primary:
        parts = [error.diag.message_primary, error.diag.message_detail]
        text = ": ".join(part for part in parts if part)
    else:
        text = str(error) or type(error).__name__
    return " ".join(text.split())
