"""Failed TLS handshakes: their number, and lines in the log with the addresses of clients."""

from __future__ import annotations

from typing import Any

from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER

LINES_PER_S = 5


class HandshakeError(Exception):
    """A client's handshake has failed; the text is the reason."""


class FailedHandshakes:
    """Counts failed handshakes, and logs a few in a second."""

    def __init__(self) -> None:
        self.count = 0
        self._limit = LineLimit(lines=LINES_PER_S)

    def note(self, reason: str, transport: Any) -> None:
        """A handshake on this transport has failed."""
        peer = transport.get_extra_info("peername") if transport is not None else None
        self.note_peer(reason, peer)

    def note_peer(self, reason: str, peer: Any) -> None:
        """A handshake of the client at this address has failed."""
        self.count += 1
        more = self._limit.more()
        if more is None:
            return
        address = _address(peer)
        LOGGER.warning(
            "tls      %s: a client's handshake has failed: %s%s", address, reason, more,
            extra={"facts": {"event": "tls_handshake_failed", "address": address}},
        )  # fmt: skip

    def tick_second(self) -> None:
        """Tell how many lines were left out and not told yet."""
        left_out = self._limit.rest()
        if left_out:
            LOGGER.warning("tls      and %d more failed handshakes", left_out)


def _address(peer: Any) -> str:
    if not isinstance(peer, tuple):
        return "a client that has gone"
    host, port = peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# Of this process: the contexts of the event loop have no other way to a server.
FAILED_HANDSHAKES = FailedHandshakes()
