"""A small client of NATS' text protocol, with the parts of JetStream that the rows need.

No client library is used, for the same reason as in `wire`: the client must cost both servers the
same. JetStream's own commands are requests in JSON to subjects that begin with `$JS.API`; a
publication that wants a confirmation names an inbox, to which the server sends it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.figures import BenchError
from bench.wire import RECEIVE_BYTES, TIMEOUT_S

API = "$JS.API."
INBOX = "_INBOX.bench"
GREETING = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
STATUS = b"NATS/1.0 "
END_OF_BATCH = b"204"


@dataclass(frozen=True)
class Message:
    """One delivered message. `reply` is the subject that acknowledges it."""

    subject: str
    reply: str
    header: bytes
    body: bytes

    @property
    def status(self) -> bytes:
        """The number that a header without an entry begins with, for example 503; else empty."""
        return self.header[len(STATUS) : len(STATUS) + 3] if self.header[:9] == STATUS else b""


def published(subject: str, body: bytes, reply: str = "") -> bytes:
    """A PUB, as the server reads it."""
    words = f"PUB {subject} {reply + ' ' if reply else ''}{len(body)}\r\n"
    return b"".join((words.encode(), body, b"\r\n"))


def published_with(subject: str, headers: dict[str, str], body: bytes, reply: str = "") -> bytes:
    """An HPUB: a message with headers."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    header = f"NATS/1.0\r\n{lines}\r\n".encode()
    sizes = f"{len(header)} {len(header) + len(body)}"
    words = f"HPUB {subject} {reply + ' ' if reply else ''}{sizes}\r\n"
    return b"".join((words.encode(), header, body, b"\r\n"))


class NatsClient:
    """One blocking connection to 127.0.0.1, subscribed to its own inbox."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb", buffering=RECEIVE_BYTES)
        try:
            self.inbox = f"{INBOX}.{self._socket.getsockname()[1]}"
            greeting = self._reader.readline()
            if not greeting.startswith(b"INFO "):
                raise BenchError(f"not a NATS server: it greets with {greeting[:80]!r}")
            self.version = str(json.loads(greeting[5:]).get("version", ""))
            self.send(f"CONNECT {json.dumps(GREETING)}\r\nSUB {self.inbox} 1\r\n".encode())
            self.ping()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> NatsClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._reader.close()
        self._socket.close()

    def ping(self) -> None:
        """Return when the server has read everything that was sent before."""
        self.send(b"PING\r\n")
        while (line := self._line()) != b"PONG\r\n":
            if line[:4] in {b"MSG ", b"HMSG"}:
                raise BenchError(f"an unexpected message before PONG: {line[:80]!r}")

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def request(self, command: str, body: dict[str, Any]) -> dict[str, Any]:
        """One command of JetStream's API, for example `STREAM.CREATE.s`, and its reply."""
        self.send(published(API + command, json.dumps(body).encode(), self.inbox))
        message = self.receive()
        if message.status:
            raise BenchError(f"{command}: status {message.status.decode()}")
        reply = json.loads(message.body)
        if not isinstance(reply, dict) or "error" in reply:
            raise BenchError(f"{command}: {reply}")
        return reply

    def receive(self) -> Message:
        """The next message. PING is answered, and an error ends the row."""
        while True:
            line = self._line()
            words = line.split()
            if words[0] == b"MSG":
                return self._message(words, 0)
            if words[0] == b"HMSG":
                return self._message(words, int(words.pop(-2)))

    def messages(self, count: int) -> Iterator[Message]:
        """The next `count` messages, each of which must hold an entry."""
        for _ in range(count):
            message = self.receive()
            if message.status:
                raise BenchError(f"NATS sent {message.header[:80]!r} and no message")
            yield message

    def skip_confirmations(self, count: int) -> None:
        """Read `count` confirmations of publications, none of which may be an error."""
        for message in self.messages(count):
            if b'"error"' in message.body or not message.body.startswith(b"{"):
                raise BenchError(f"NATS refused a message: {message.body[:200]!r}")

    def _line(self) -> bytes:
        """The next line that is not about the connection itself."""
        while True:
            line = self._reader.readline()
            if not line.endswith(b"\r\n"):
                raise BenchError("NATS closed the connection")
            if line == b"PING\r\n":
                self.send(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                raise BenchError(f"NATS: {line[4:].strip().decode(errors='replace')}")
            elif not line.startswith((b"INFO ", b"+OK")):
                return line

    def _message(self, words: list[bytes], header_size: int) -> Message:
        """The message whose line has these words: MSG subject sid [reply] size."""
        size = int(words[-1])
        data = self._reader.read(size + 2)
        if len(data) != size + 2:
            raise BenchError("NATS closed the connection within a message")
        reply = words[3].decode() if len(words) == 5 else ""
        return Message(words[1].decode(), reply, data[:header_size], data[header_size:-2])
