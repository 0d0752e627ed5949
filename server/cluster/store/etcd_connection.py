"""One request to etcd on a connection of its own: HTTP/1.1 with h11.

Requests are rare: a few a second at most. So no connection is kept, and none can be found closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import NamedTuple

import h11

from millstream.server.cluster.store.etcd_requests import Call
from millstream.server.replication.name_lookup import connect_to_host

RECEIVED_BYTES = 65536
HEADER_MAX = 16384  # bytes
CONTENT_MAX = 16 << 20  # bytes of a reply, or of one line of a stream
CLOSED = "the connection was closed"
UNTRUSTED = "it wants a certificate of the client that it trusts"


class NotSent(Exception):
    """The endpoint has not received the request."""


class NoAnswer(Exception):
    """The endpoint may have received the request; no whole reply has come."""


class Endpoint(NamedTuple):
    """An address of etcd, and the TLS for it or None."""

    url: str
    host: str
    port: int
    tls: ssl.SSLContext | None


class Reply:
    """The reply on a connection; NoAnswer if it breaks off."""

    def __init__(
        self, http: h11.Connection, reader: asyncio.StreamReader, *, has_tls: bool
    ) -> None:
        self._http = http
        self._reader = reader
        self._has_tls = has_tls

    async def content(self) -> bytes:
        """All of it."""
        pieces: list[bytes] = []
        size = 0
        while (piece := await self._piece()) is not None:
            size += len(piece)
            if size > CONTENT_MAX:
                raise NoAnswer(f"the reply has more than {CONTENT_MAX} bytes")
            pieces.append(piece)
        return b"".join(pieces)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The lines of a stream, as they come; an error that is not a stream is one line."""
        begun: list[bytes] = []  # of the next line
        size = 0
        while (piece := await self._piece()) is not None:
            *ends, rest = piece.split(b"\n")
            for end in ends:
                yield b"".join([*begun, end])
                begun, size = [], 0
            begun.append(rest)
            size += len(rest)
            if size > CONTENT_MAX:
                raise NoAnswer(f"the reply has a line of more than {CONTENT_MAX} bytes")
        if size:
            yield b"".join(begun)

    async def _piece(self) -> bytes | None:
        """More of the content; None at its end."""
        while True:
            event = await self._event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return None
            if not isinstance(event, h11.Response | h11.InformationalResponse):
                raise NoAnswer(CLOSED)

    async def _event(self) -> object:
        data = b"?"
        try:
            while True:
                event = self._http.next_event()
                if event is not h11.NEED_DATA:
                    return event
                data = await self._reader.read(RECEIVED_BYTES)
                self._http.receive_data(data)
        except h11.RemoteProtocolError as problem:
            raise NoAnswer(str(problem) if data else CLOSED) from None
        except OSError as problem:
            reason = reason_of(problem)
            if self._has_tls and isinstance(problem, ConnectionResetError):
                reason = f"{reason}, perhaps because {UNTRUSTED}"  # the alert was lost
            raise NoAnswer(reason) from None


@asynccontextmanager
async def send(
    endpoint: Endpoint, call: Call, headers: Mapping[str, str], limit_s: float
) -> AsyncIterator[Reply]:
    """Send a request; the reply, for as long as it is read. NotSent if no connection is made within
    the limit, which holds for nothing else."""
    _, host, port, tls = endpoint
    try:
        async with asyncio.timeout(limit_s):
            reader, writer = await connect_to_host(host, port, asyncio.open_connection, tls)
    except TimeoutError:
        raise NotSent("no connection in time") from None
    except (OSError, ssl.CertificateError) as problem:
        raise NotSent(reason_of(problem)) from None
    try:
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_MAX)
        writer.write(_request(http, endpoint, call, headers))
        yield Reply(http, reader, has_tls=endpoint.tls is not None)
    finally:
        writer.transport.abort()


def _request(
    http: h11.Connection, endpoint: Endpoint, call: Call, headers: Mapping[str, str]
) -> bytes:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    head = h11.Request(
        method="POST",
        target=call.path,
        headers=[
            ("Host", f"{host}:{endpoint.port}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(call.content))),
            ("Connection", "close"),
            *headers.items(),
        ],
    )
    parts = [http.send(head), http.send(h11.Data(call.content)), http.send(h11.EndOfMessage())]
    return b"".join(part for part in parts if part is not None)


def reason_of(problem: Exception) -> str:
    """The failure of a connection in a few words."""
    if isinstance(problem, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {problem.verify_message}"
    if isinstance(problem, ssl.SSLError) and problem.reason:
        text = problem.reason.replace("_", " ").lower()
        if "alert" in text and ("certificate" in text or "unknown ca" in text):
            text = f"{UNTRUSTED} ({text})"
        return text
    if isinstance(problem, ConnectionResetError):
        return os.strerror(errno.ECONNRESET)  # that of a handshake has neither a number nor a text
    if isinstance(problem, ConnectionRefusedError):
        return os.strerror(errno.ECONNREFUSED)  # asyncio has another text, with the address
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__
