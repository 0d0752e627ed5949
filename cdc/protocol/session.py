"""Connections to sources and to the destination: how values arrive, and when one counts as lost."""

from __future__ import annotations

from typing import Any, TypeAlias

import psycopg
from psycopg.conninfo import conninfo_to_dict

Connection: TypeAlias = psycopg.Connection[Any]

# How values arrive, whatever the source's own settings are.
SESSION = (
    "-c client_encoding=UTF8 -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=1"
    " -c bytea_output=hex -c timezone=UTC -c lc_monetary=C"
)
# A copy has no time limit, whatever a role's settings are.
NO_TIMEOUTS = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=0"

CONNECT_TIMEOUT_S = 10
# A connection whose other end vanished is detected after about half a minute.
KEEPALIVE = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}


def session(url: str, application: str, settings: str = NO_TIMEOUTS) -> dict[str, Any]:
    """The parameters of a connection to a source, or with other settings to the destination. What
    the URL says is not replaced, and its `options` come first."""
    given = conninfo_to_dict(url)
    options = f"{given.get('options') or ''} {SESSION} {settings}".strip()
    defaults = {name: value for name, value in KEEPALIVE.items() if name not in given}
    return {**defaults, "application_name": application, "options": options}
