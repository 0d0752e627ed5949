"""The transport of a link between servers, as a part of an asyncio protocol."""

from __future__ import annotations

from typing import Any


class LinkTransport:
    """`transport` is None while it connects. `is_over`: bytes that still arrive are ignored."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.is_over = False
        self._is_paused = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if self.is_over:
            transport.abort()

    def eof_received(self) -> bool:
        return False

    def read_more(self, wanted: bool) -> None:
        """Pause or resume reading."""
        if self.transport is None or wanted is not self._is_paused or self.is_over:
            return
        self._is_paused = not wanted
        if wanted:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def end(self) -> None:
        self.is_over = True
        if self.transport is not None:
            self.transport.abort()
