"""One connection to the primary of another shard whose slots come here: an asyncio protocol.

After CLUSTER PEER and COPYSLOTS, records arrive. Acknowledgements and the request for the hand-over
go the other way, without replies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

from millstream.server.durability.data_files import in_words
from millstream.server.replication.link_transport import LinkTransport
from millstream.server.replication.link_words import encode_request
from millstream.server.replication.records import Decoder, LinkError, Record
from millstream.storage.files.journal_writer import PAYLOAD_MAX

LINE_MAX = 4096


class Answer(NamedTuple):
    """The answer to COPYSLOTS: the newest line of history of the source, and whether what is here
    counts."""

    line: str
    continues: bool


class Refusal(NamedTuple):
    text: str


class Owner(Protocol):
    """The owner of a connection: an import."""

    def receive(self, connection: SlotConnection, data: bytes) -> None: ...
    def connection_lost(self, connection: SlotConnection, reason: str) -> None: ...


class SlotConnection(LinkTransport):
    """`words` are those of COPYSLOTS."""

    def __init__(self, owner: Owner, secret: bytes, words: list[bytes], term: int) -> None:
        super().__init__()
        self.is_open = False  # records arrive
        self._owner = owner
        self._requests = [[b"CLUSTER", b"PEER", secret], words]
        self._decoder = Decoder(PAYLOAD_MAX, term)
        self._text = b""

    # The transport

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if not self.is_over:
            transport.write(encode_request(self._requests[0]))

    def data_received(self, data: bytes) -> None:
        if not self.is_over:
            self._owner.receive(self, data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over:
            self.is_over = True
            self._owner.connection_lost(self, in_words(error) if error else "it was closed")

    def send(self, *words: bytes) -> None:
        """Send a request without a reply."""
        if self.is_open and not self.is_over:
            self.transport.write(encode_request(list(words)))

    # What arrives

    def events(self, data: bytes) -> Iterator[Answer | Refusal | Record]:
        """The answers and records in received bytes. LinkError for anything else."""
        if not self.is_open:
            self._text += data
            yield from self._answers()
            if not self.is_open:
                return
            data, self._text = self._text, b""
        if data:
            self._decoder.feed(data)
        while (record := self._decoder.next()) is not None:
            yield record

    def _answers(self) -> Iterator[Answer | Refusal]:
        while not (self.is_open or self.is_over):
            line, end, rest = self._text.partition(b"\r\n")
            if not end:
                if len(line) > LINE_MAX:
                    raise LinkError("a long answer")
                return
            self._text = rest
            words = line.decode("utf-8", "replace").split()
            if line.startswith(b"-"):
                yield Refusal(line[1:].decode("utf-8", "replace"))
                return
            if len(self._requests) == 2 and line == b"+OK":
                self.transport.write(encode_request(self._requests.pop()))
            elif len(words) == 2 and words[0] in ("+COPY", "+CONTINUE"):
                self.is_open = True
                yield Answer(words[1], words[0] == "+CONTINUE")
            else:
                raise LinkError(f"{line[:80]!r} as the answer to COPYSLOTS")
