"""The server's end of a TLS handshake. asyncio reports a failed handshake only in its debug log,
so the object here logs it: an operator looks there for the reason why a client cannot connect."""

from __future__ import annotations

import ssl

from millstream.server.monitor.line_limit import LineLimit
from millstream.server.monitor.log import LOGGER

_LIMIT = LineLimit()


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

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as problem:
            more = _LIMIT.more()
            if more is not None:
                LOGGER.warning(
                    "tls      a client's handshake has failed: %s%s", _reason(problem), more
                )
            raise
