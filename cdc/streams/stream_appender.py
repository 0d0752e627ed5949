"""Writing to millstream: entries in transactions, cuts with the durable LSN, states.

A request is repeated until millstream has answered it; the server ignores entries that it already
has. Every reply is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import hiredis
import redis

from millstream.cdc import CdcError
from millstream.cdc.config import ServerConfig
from millstream.cdc.sql import lsn_text
from millstream.cdc.streams.source_state import SourceState
from millstream.pipeline.server_connection import Address, ServerConnection, ServerError

ENTRIES_MAX = 2_000
BYTES_MAX = 1_000_000

Word: TypeAlias = bytes | str | int
Words: TypeAlias = Sequence[Word]

pack: Callable[[tuple[Word, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
MULTI = hiredis.pack_command(("MULTI",))
EXEC = hiredis.pack_command(("EXEC",))


class RefusedError(CdcError):
    """millstream refused a request, for example because it is out of memory. The text has its
    reply."""


class SourceReplacedError(CdcError):
    """A state in millstream is not the one that this process wrote: a copy was asked for, or there
    is another reader."""


def address_of(config: ServerConfig, timeout_s: int | None = None) -> Address:
    """The address of millstream."""
    return Address(
        config.server, config.username, config.password, config.db, timeout_s or config.timeout
    )


def open_server(config: ServerConfig, timeout_s: int | None = None) -> ServerConnection:
    """A connection whose errors are reported at once."""
    return address_of(config, timeout_s).open(persistent=False)


def append_words(
    key: Word, lsn: int, place: int, fields: Iterable[tuple[bytes, bytes]]
) -> list[Word]:
    """The request that appends an entry, once."""
    words: list[Word] = [b"TAPPENDONCE", key, b"ID", b"%d.%d" % (lsn, place)]
    for field in fields:
        words += field
    return words


def swap_words(key: str, old: bytes | None, new: str) -> list[Word]:
    """The request that replaces a state, if it is still `old`."""
    condition: list[Word] = ["NX"] if old is None else ["IFEQ", old]
    return ["SET", key, new, *condition]


class Transaction:
    """Encoded requests that are sent in one MULTI and EXEC."""

    __slots__ = ("_requests", "count", "size_bytes")

    def __init__(self) -> None:
        self._requests: list[bytes] = []
        self.count = 0
        self.size_bytes = 0

    def add(self, words: Words) -> None:
        request: bytes = pack(tuple(words))
        self._requests.append(request)
        self.count += 1
        self.size_bytes += len(request)

    @property
    def is_full(self) -> bool:
        return self.count >= ENTRIES_MAX or self.size_bytes >= BYTES_MAX

    def encoded(self) -> bytes:
        return b"".join([MULTI, *self._requests, EXEC])


class Entries:
    """Encoded entries that are sent in one TAPPENDMANY: all of them are accepted, or none."""

    __slots__ = ("_encoded", "_words", "count", "size_bytes")

    def __init__(self) -> None:
        self._encoded: dict[bytes, list[bytes]] = {}
        self._words = 0
        self.count = 0
        self.size_bytes = 0

    def add(self, key: bytes, lsn: int, place: int, words: Sequence[bytes]) -> None:
        """Add an entry. The IDs of a stream have to increase."""
        encoded = _words_of((b"%d.%d" % (lsn, place), len(words) // 2, *words))
        try:
            self._encoded[key].append(encoded)
        except KeyError:
            self._encoded[key] = [encoded]
        self._words += len(words) + 2
        self.count += 1
        self.size_bytes += len(encoded)

    @property
    def is_full(self) -> bool:
        return self.count >= ENTRIES_MAX or self.size_bytes >= BYTES_MAX

    def encoded(self) -> bytes:
        """The request."""
        head: tuple[Word, ...] = (b"TAPPENDMANY", len(self._encoded), *self._encoded, b"ID")
        pieces = [b"*%d\r\n" % (len(head) + len(self._encoded) + self._words), _words_of(head)]
        for entries in self._encoded.values():
            pieces.append(_words_of((len(entries),)))
            pieces += entries
        return b"".join(pieces)


def _words_of(words: tuple[Word, ...]) -> bytes:
    """A part of a request: encoded words without their number."""
    request = pack(words)
    return request[request.index(b"\n") + 1 :]


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """Everything before `durable_lsn` is in millstream. `cut_lsn` is the commit LSN of the last
    transaction, if there are entries since the last cut."""

    durable_lsn: int
    cut_lsn: int = 0
    at: str = ""
    rows: int = 0

    def words(self, key: str) -> list[Word]:
        """The request that appends the cut."""
        fields = [
            (b"lsn", lsn_text(self.durable_lsn).encode()),
            (b"at", self.at.encode()),
            (b"rows", b"%d" % self.rows),
        ]
        return append_words(key, self.cut_lsn, 0, fields)


class States:
    """The states in millstream, each with the text that it had when it was last seen."""

    def __init__(self, server: ServerConnection) -> None:
        self._server = server
        self._seen: dict[str, bytes | None] = {}

    def read(self, key: str) -> bytes | None:
        text = self._server.call("GET", key)
        self._seen[key] = text
        return None if text is None else bytes(text)

    def expect(self, key: str, text: str) -> None:
        """Set the text that a state is known to have."""
        self._seen[key] = text.encode()

    def seen(self, key: str) -> bytes:
        """The text that a state had when it was last seen; there must have been one."""
        text = self._seen[key]
        assert text is not None
        return text

    def check_unchanged(self, key: str) -> None:
        """SourceReplacedError if a state is not the one that was seen last."""
        if self._server.call("GET", key) != self._seen.get(key):
            raise SourceReplacedError(f"{key} was changed by another process")

    def swap(self, key: str, new: str, *others: Words) -> None:
        """Replace a state, in one transaction with other requests. SourceReplacedError if the
        state is not the one that was seen last, although the other requests were executed;
        RefusedError if millstream refused any of them."""
        transaction = Transaction()
        transaction.add(self.words(key, new))
        for words in others:
            transaction.add(words)
        replies = self._server.encoded_many(transaction.encoded(), transaction.count + 2)
        self.check(key, new, executed(replies)[0])

    def words(self, key: str, new: str) -> list[Word]:
        return swap_words(key, self._seen.get(key), new)

    def check(self, key: str, new: str, reply: Any) -> None:
        """Process the reply to `words`."""
        if reply is None and self._server.call("GET", key) != new.encode():
            raise SourceReplacedError(f"{key} was changed by another process")
        self._seen[key] = new.encode()


def executed(replies: Sequence[Any]) -> list[Any]:
    """The replies of one transaction; RefusedError if any of its requests was refused."""
    for reply in [*replies[:-1], *(replies[-1] if isinstance(replies[-1], list) else replies[-1:])]:
        _accepted(reply)
    return list(replies[-1])


def _accepted(reply: Any) -> Any:
    """The reply; RefusedError if the request was refused."""
    if isinstance(reply, redis.exceptions.ClusterCrossSlotError):
        raise RefusedError(
            "the keys of a source are in several slots of the cluster: give the prefix a {tag},"
            ' such as prefix = "{cdc}"'
        )
    if isinstance(reply, redis.RedisError):
        # redis-py removes the first word of this reply.
        word = "OOM " if isinstance(reply, redis.exceptions.OutOfMemoryError) else ""
        raise RefusedError(f"millstream answered: {word}{reply}")
    return reply


def sent(server: ServerConnection, request: bytes, count: int) -> list[Any]:
    """The replies to `count` encoded requests. ServerError; RefusedError if a value is larger than
    the server accepts, which then closes the connection instead of answering."""
    try:
        return server.encoded_many(request, count)
    except ServerError as error:
        limit = _bulk_limit(server) if len(request) > BYTES_MAX else None
        if limit is None or len(request) <= limit:
            raise
        raise RefusedError(
            f"millstream refused a request of {len(request) >> 20} MB, more than"
            f" proto-max-bulk-len, {limit >> 20} MB. Set a higher one with CONFIG SET"
        ) from error


def _bulk_limit(server: ServerConnection) -> int | None:
    """proto-max-bulk-len; None if it cannot be found out."""
    try:
        reply = server.encoded(pack(("CONFIG", "GET", "proto-max-bulk-len")))
    except ServerError:
        return None
    return int(reply[1]) if isinstance(reply, list) and len(reply) == 2 else None


class StreamAppender:
    """Writes what a reader has read, each call in one request."""

    def __init__(self, server: ServerConnection, cuts: str, state_key: str) -> None:
        self.states = States(server)
        self._server = server
        self._cuts = cuts
        self._state_key = state_key

    def send(self, state: SourceState | None, offset: SourceOffset | None, entries: Entries) -> int:
        """Write the offset of what was answered before, then the entries; the number of entries
        that were there already. `state` is the state with the offset's LSN.

        ServerError if millstream cannot be reached, RefusedError, SourceReplacedError. After one of
        the first two, send the same again.
        """
        marking = Transaction()
        request, count = b"", 0
        if state is not None and offset is not None:
            marking.add(self.states.words(self._state_key, state.to_json()))
            if offset.rows:
                marking.add(offset.words(self._cuts))
            request, count = marking.encoded(), marking.count + 2
        if entries.count:
            request += entries.encoded()
        replies = sent(self._server, request, count + bool(entries.count))
        if state is not None and marking.count:
            first = executed(replies[:count])[0]
            self.states.check(self._state_key, state.to_json(), first)
        return entries.count - _accepted(replies[count]) if entries.count else 0
