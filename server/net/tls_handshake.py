"""The server's end of a TLS handshake: a failed handshake is reported with its reason.

asyncio reports a failed handshake only in its debug log. Only the event loop knows the address, and
it gives an error to its exception handler only if the error is no OSError, as those of TLS are. So
the object here ends a failed handshake without an error, and raises another one where the loop asks
for the client's certificate next. A handshake that takes too long is only reported to the future
that its caller has passed, so that `Handshake` begins it, and not the loop's server. The class of
uvloop that it needs is internal: if `has_protocol` does not find it, the loop's server begins
handshakes.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any

from millstream.server.monitor.failed_handshakes import FAILED_HANDSHAKES, HandshakeError


def _reason(problem: ssl.SSLError) -> str:
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {problem.verify_message}"
    reason = problem.reason or str(problem)
    if reason in ("HTTP_REQUEST", "WRONG_VERSION_NUMBER", "UNSUPPORTED_PROTOCOL"):
        return f"the client does not use TLS, or a version that is not allowed ({reason})"
    words = reason.replace("_", " ").lower()
    return f"the client does not accept the connection ({words})" if "alert" in words else words


class ServerSide(ssl.SSLObject):
    """The class of the TLS objects of a context (`SSLContext.sslobject_class`)."""

    _problem: ssl.SSLError | None = None

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as problem:
            self._problem = problem

    def getpeercert(self, binary_form: bool = False) -> Any:
        if self._problem is not None:
            raise HandshakeError(_reason(self._problem))
        return super().getpeercert(binary_form)


def has_protocol(context: ssl.SSLContext, limit_s: float) -> bool:
    """True if uvloop has the class that `Handshake` needs, with the arguments that it passes."""
    loop = asyncio.get_running_loop()
    try:
        _new_protocol(loop, asyncio.Protocol(), context, loop.create_future(), limit_s)
    except (ImportError, TypeError):
        return False
    return True


def _new_protocol(
    loop: Any, protocol: Any, context: ssl.SSLContext, ended: asyncio.Future[None], limit_s: float
) -> Any:
    from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]

    return SSLProtocol(
        loop, protocol, context, ended, server_side=True, ssl_handshake_timeout=limit_s
    )


class Handshake(asyncio.Protocol):
    """A connection to a TLS port until its handshake begins. `new_connection` makes the protocol of
    a connection whose handshake has succeeded."""

    def __init__(
        self, context: ssl.SSLContext, new_connection: Callable[[], Any], limit_s: float
    ) -> None:
        self._context = context
        self._new_connection = new_connection
        self._limit_s = limit_s

    def connection_made(self, transport: Any) -> None:
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        peer = transport.get_extra_info("peername")
        ended.add_done_callback(partial(_end, transport, peer, self._limit_s))
        protocol = _new_protocol(loop, self._new_connection(), self._context, ended, self._limit_s)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _end(transport: Any, peer: Any, limit_s: float, ended: asyncio.Future[None]) -> None:
    """The handshake has succeeded or failed."""
    problem = ended.exception()
    if problem is None:
        return
    transport.abort()
    # The loop's own error has no number; that of a socket has ECONNABORTED.
    if isinstance(problem, ConnectionAbortedError) and problem.errno is None:
        FAILED_HANDSHAKES.note_peer(f"it has not ended within {limit_s:g} seconds", peer)
