"""Connections of the gateway that are closed and whose peers have not read everything yet.

A peer that reads nothing would keep the descriptor until TCP gives up, which may be never.
"""

from __future__ import annotations

import asyncio

LOOK_S = 30.0  # as the loop's own limit for the end of TLS


class ClosingConnections:
    """A connection ends at the second look without progress: after 30 to 60 seconds. With TLS,
    progress cannot be seen."""

    def __init__(self) -> None:
        self._unsent_bytes: dict[asyncio.Transport, int | None] = {}  # at the last look
        self._timer: asyncio.TimerHandle | None = None

    def add(self, transport: asyncio.Transport) -> None:
        self._unsent_bytes.setdefault(transport)
        self._look_later()

    def discard(self, transport: asyncio.Transport) -> None:
        """The connection has ended."""
        self._unsent_bytes.pop(transport, None)

    def _look_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._timer = None
        for transport, before in list(self._unsent_bytes.items()):
            now = self._unsent_bytes[transport] = transport.get_write_buffer_size()
            if now == before:
                del self._unsent_bytes[transport]
                transport.abort()
        if self._unsent_bytes:
            self._look_later()
