"""The replies that a client of the gateway still has to get from a node, or of the gateway itself.

| class | what the client gets |
|---|---|
| Run | replies of one node, as they arrive |
| Call | nothing at once: the gateway takes the whole reply, and makes the answer of it |
| Answer | a reply of the gateway, or one that was made of several replies |

A Run and a Call also have their requests, if these may be sent again. Requests for several nodes
that have arrived together have a Spread (`spread_requests`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millstream.server.gateway.routing import requests_in
from millstream.server.protocol.resp import Limits

MERGED_MAX_BYTES = 256 << 20
TOO_LARGE = b"-ERR the replies of the nodes are too large to be merged: ask the nodes\r\n"


class Upstream(Protocol):
    """The connection that the replies come from (`node_connection`)."""

    kept_bytes: int

    @property
    def is_inside(self) -> bool:
        """True if a part of a reply has been passed on."""


class Kept:
    """The replies that wait for earlier ones. `has_paused`: a node is not read, because of them."""

    __slots__ = ("has_paused", "size_bytes")

    def __init__(self) -> None:
        self.size_bytes = 0
        self.has_paused = False


class Run:
    """Replies that the client gets as they arrive: the next `missing` ones of a node. `data` has
    what arrived before the client had all earlier replies. Unless `is_open`, further requests are
    sent with a run of their own. The rest is for confirmations of subscriptions: `confirms` is the
    name of the command. One error is the whole reply, and `refused` is called. `again` subscribes
    once more."""

    __slots__ = (
        "_kept", "again", "confirms", "data", "is_open", "missing", "refused", "sent", "until_s",
        "upstream",
    )  # fmt: skip

    def __init__(
        self,
        upstream: Upstream,
        count: int,
        refused: Callable[[], None] | None = None,
        confirms: bytes = b"",
        *,
        is_open: bool = True,
        until_s: float = 0.0,
    ) -> None:
        self.upstream = upstream
        self.missing = count
        self.refused = refused
        self.confirms = confirms
        self.data = bytearray()
        self.is_open = is_open
        self.until_s = until_s  # requests that were refused before are sent again until then
        self.again: Callable[[float], None] | None = None
        self.sent: list[tuple[bytes, int]] = []  # requests, from the next reply's on
        self._kept = 0  # their number

    def note_error(self) -> None:
        """The next reply is an error."""
        if self.refused is not None:
            self.missing = 1
            self.refused()

    # Requests that may be sent again

    def keep(self, raw: bytes, count: int) -> None:
        """Keep requests until they are answered."""
        self.sent.append((raw, count))
        self._kept += count
        self.upstream.kept_bytes += len(raw)

    def trim(self) -> None:
        """Drop what is answered."""
        sent = self.sent
        while sent and self._kept - sent[0][1] >= self.missing:
            raw, count = sent.pop(0)
            self._kept -= count
            self.upstream.kept_bytes -= len(raw)

    @property
    def may_repeat(self) -> bool:
        return bool(self.sent) or self.again is not None

    def requests(self, limits: Limits) -> list[bytes]:
        """The requests that are not answered."""
        found = [one for raw, _ in self.sent for one in requests_in(raw, limits)]
        return found[len(found) - self.missing :]

    def next_request(self, limits: Limits) -> bytes:
        """The request of the next reply."""
        raw, count = self.sent[0]
        if count > 1:  # more of them may be asked for
            found = requests_in(raw, limits)
            self.upstream.kept_bytes -= len(raw) - sum(map(len, found))
            self.sent[0:1] = [(one, 1) for one in found]
            self.trim()
        return self.sent[0][0]


class Call:
    """Whole replies for the gateway itself: `take` is called with each of the next `missing`.
    `answer` is what the client gets of them, if anything. `again` sends the request `raw` once
    more, if that is possible."""

    __slots__ = ("again", "answer", "data", "is_too_large", "missing", "raw", "take", "until_s")

    def __init__(
        self, take: Callable[[bytes], object], count: int = 1, answer: Answer | None = None
    ) -> None:
        self.take = take
        self.missing = count
        self.answer = answer
        self.data = bytearray()
        self.is_too_large = False
        self.raw = b""
        self.again: Callable[[float], None] | None = None
        self.until_s = 0.0

    @property
    def may_repeat(self) -> bool:
        return self.again is not None

    def requests(self, limits: Limits) -> list[bytes]:
        """The request that is not answered."""
        return [self.raw]

    def add(self, piece: bytes) -> int:
        """Keep a piece of a reply; the number of bytes that are kept."""
        if len(self.data) + len(piece) > MERGED_MAX_BYTES:
            self.is_too_large = True
            return 0
        self.data += piece
        return len(piece)

    def whole(self) -> bytes:
        """The reply, which is complete. The next one follows."""
        reply = TOO_LARGE if self.is_too_large else bytes(self.data)
        self.data, self.is_too_large = bytearray(), False
        return reply


class Answer:
    """A reply of the gateway itself; None until it is complete."""

    __slots__ = ("data",)

    def __init__(self, data: bytes | None = None) -> None:
        self.data = data
