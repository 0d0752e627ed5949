"""The server's end of a TLS handshake: a failed handshake is reported with its reason.

asyncio reports a failed handshake only in its debug log. Only the event loop knows the address, and
it gives an error to its exception handler only if the error is no OSError, as those of TLS are. So
the object here ends a failed handshake without an error, and raises another one where the loop asks
for the client's certificate next.
"""

from __future__ import annotations

import ssl
from typing import Any


class HandshakeError(Exception):
    """A client's handshake has failed; the text is the reason."""


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
