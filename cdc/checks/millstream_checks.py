"""Checks of the millstream server: its commands, and that it keeps the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from millstream.cdc.checks.findings import Finding, error, ok, warning
from millstream.cdc.streams.stream_appender import pack
from millstream.pipeline.server_connection import ServerConnection, ServerError

MILLSTREAM = "millstream"


def check_millstream(server: ServerConnection) -> list[Finding]:
    """Check that the server can be reached and keeps the data that it acknowledges."""
    try:
        found = _raw(server, "COMMAND", "INFO", "TAPPENDONCE")
        if not found or found[0] is None:
            return [error(MILLSTREAM, f"{server.address} is not millstream: it has no TAPPENDONCE")]
        settings = {}
        for name in ("maxmemory-policy", "appendonly", "appendfsync"):
            reply = _raw(server, "CONFIG", "GET", name)
            settings[name] = reply[1].decode() if reply else ""
    except ServerError as problem:
        return [error(MILLSTREAM, str(problem))]
    return [*_settings(settings), ok(MILLSTREAM, str(server.address))]


def _raw(server: ServerConnection, *words: str) -> Any:
    """The reply as the server sent it: redis-py would convert it."""
    return server.checked(server.encoded(pack(words)))


def _settings(settings: dict[str, str]) -> Iterator[Finding]:
    if settings["maxmemory-policy"] == "allstreams-oldest":
        yield warning(
            MILLSTREAM,
            "maxmemory-policy allstreams-oldest evicts changes first, because IDs that are LSNs "
            "look like the oldest",
            "CONFIG SET maxmemory-policy noeviction",
        )
    if settings["appendonly"] == "no":
        yield warning(
            MILLSTREAM,
            "there is no journal: a crash loses changes that were confirmed to the sources, which "
            "are refused after it",
            "CONFIG SET appendonly yes",
        )
    elif settings["appendfsync"] != "always":
        yield warning(
            MILLSTREAM,
            f"appendfsync is {settings['appendfsync']}: a power failure loses changes that were "
            "confirmed to the sources, which are refused after it",
            "CONFIG SET appendfsync always",
        )
