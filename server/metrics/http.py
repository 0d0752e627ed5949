"""One HTTP connection: h11 parses the requests, and everything is bounded.

A request's header has at most HEADER_MAX bytes, and it must be complete, and later its answer read,
within TIMEOUT_S. An idle connection is closed after the same time; scrapers connect again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

import h11

HEADER_MAX = 8192  # bytes
TIMEOUT_S = 10.0
CHALLENGE = 'Basic realm="millstream", charset="UTF-8"'
PART_MAX = 1 << 18  # bytes given to the socket in one turn of the loop


class Request(NamedTuple):
    """A GET or HEAD: its path, the Authorization header or b"", and the address of the client."""

    path: str
    authorization: bytes
    address: str


class Answer(NamedTuple):
    """A response: its status, the type of the content, and the content in parts."""

    status: HTTPStatus
    content_type: str
    parts: list[bytes]


class HttpServer(Protocol):
    """Answers requests, and limits the number of connections."""

    connections: set[HttpConnection]

    @property
    def is_full(self) -> bool: ...

    def answer(self, request: Request, respond: Callable[[Answer], object]) -> None:
        """Call `respond` with the answer to a GET, now or later."""


class Size:
    """Stands for the content in h11, which only needs its size; the parts go to the socket as they
    are."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes

    def __len__(self) -> int:
        return self._size_bytes


class HttpConnection(asyncio.Protocol):
    """Answers GET and HEAD; closes a connection that breaks a limit or the protocol."""

    def __init__(self, metrics: HttpServer, loop: asyncio.AbstractEventLoop) -> None:
        self._metrics = metrics
        self._loop = loop
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._parts: list[bytes] = []  # of the answer, the next one last
        self._is_head = False  # the request that is answered
        self._is_waiting = False  # for an answer
        self._is_paused = False  # the client does not read
        self._is_tls = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop has its own
        self._is_tls = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=PART_MAX)
        if self._metrics.is_full:
            transport.abort()
            return
        self._metrics.connections.add(self)
        self._restart_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._parts = []
        self._metrics.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def abort(self) -> None:
        """Close the connection now."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._receive(data)

    def eof_received(self) -> bool:
        self._receive(b"")
        # The answer can still be sent; TLS has no connection that is open in one direction only.
        return (
            self._transport is not None
            and not self._is_tls
            and (self._is_waiting or bool(self._parts))
        )

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._send_parts()

    def _restart_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(TIMEOUT_S, self.abort)

    def _receive(self, data: bytes) -> None:
        if self._transport is None:
            return
        if self._http.their_state is h11.ERROR:
            self.abort()
            return
        if len(self._http.trailing_data[0]) + len(data) > 2 * HEADER_MAX:
            self.abort()  # it sends more while it waits for an answer
            return
        try:
            self._http.receive_data(data)
            self._read_on()
        except h11.RemoteProtocolError:  # after the end of what it said it would send
            self.abort()

    def _read_on(self) -> None:
        """Read a request, perhaps one that was sent before the last answer."""
        if self._transport is None:
            return
        try:
            self._next_request()
        except h11.RemoteProtocolError as problem:
            self._refuse(HTTPStatus(problem.error_status_hint), b"this is not valid HTTP\n")

    def _next_request(self) -> None:
        """Read events until a request is complete; its body, if any, is not read."""
        event = self._http.next_event()
        if event is h11.NEED_DATA or event is h11.PAUSED:
            return
        if isinstance(event, h11.ConnectionClosed):
            if not self._is_waiting and not self._parts and self._transport is not None:
                self._transport.close()
            return
        if not isinstance(event, h11.Request):
            return
        self._is_head = event.method == b"HEAD"
        if event.method not in (b"GET", b"HEAD"):
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, b"only GET and HEAD are allowed\n")
            return
        if not isinstance(self._http.next_event(), h11.EndOfMessage):
            self._refuse(HTTPStatus.BAD_REQUEST, b"the request has a body\n")
            return
        self._is_waiting = True
        self._restart_timer()
        path = event.target.decode("ascii", "replace").partition("?")[0]
        authorization = dict(event.headers).get(b"authorization", b"")
        self._metrics.answer(Request(path, authorization, self._address()), self._respond)

    def _address(self) -> str:
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else "unknown"

    def _refuse(self, status: HTTPStatus, text: bytes) -> None:
        """Answer with an error and close the connection."""
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._respond(Answer(status, "text/plain; charset=utf-8", [text]), closes=True)
        else:
            self.abort()

    def _respond(self, answer: Answer, closes: bool = False) -> None:
        self._is_waiting = False
        if self._transport is None:
            return
        size = sum(map(len, answer.parts))
        headers = [
            ("content-type", answer.content_type),
            ("content-length", str(size)),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]
        if answer.status == HTTPStatus.UNAUTHORIZED:
            headers.append(("www-authenticate", CHALLENGE))
        if answer.status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers.append(("allow", "GET, HEAD"))
        if closes:
            headers.append(("connection", "close"))
        head = self._http.send(
            h11.Response(
                status_code=answer.status, headers=headers, reason=answer.status.phrase.encode()
            )
        )
        assert head is not None
        self._transport.write(head)
        self._parts = []
        if not self._is_head:
            self._http.send_with_data_passthrough(h11.Data(data=cast(bytes, Size(size))))
            self._parts = list(reversed(answer.parts))
        self._send_parts()

    def _send_parts(self) -> None:
        """Send the answer as fast as the client reads it, and between pieces of it let clients of
        the server have their turn."""
        if self._transport is None or self._is_paused or self._is_waiting:
            return
        some, size = [], 0
        while self._parts and size < PART_MAX:
            some.append(self._parts.pop())
            size += len(some[-1])
        if some:
            self._transport.writelines(some)
        if self._parts:
            if not self._is_paused:
                self._loop.call_soon(self._send_parts)
        elif self._http.our_state is h11.SEND_BODY:
            self._http.send(h11.EndOfMessage())
            self._end_of_answer()

    def _end_of_answer(self) -> None:
        assert self._transport is not None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._is_head = False
            self._restart_timer()
            self._loop.call_soon(self._read_on)
        else:
            self._transport.close()
