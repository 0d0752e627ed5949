"""Queries a server's streams without reading entries: which streams exist, their first and last
IDs, and the number of entries between two IDs.

`TINFO` and `TSEEK` of a stream run in one transaction, so their counts are consistent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from millstream.errors import readable
from millstream.glob import matcher
from millstream.pipeline.positions import FIRST, Id, Position, id_from_text, id_text, key_bytes
from millstream.pipeline.selection import before
from millstream.pipeline.server_connection import Command, ServerConnection, ServerError
from millstream.pipeline.source_options import OptionError, SourceOptions
from millstream.remote import pairs

# Streams queried together; the replies are short.
STREAMS_PER_REQUEST = 1000
_GLOB = re.compile(rb"[*?\[\\]")
# More than a stream can hold: TSEEK counts all entries after the ID.
ALL = (1 << 63) - 1


class StreamCounters(NamedTuple):
    """A stream's counters. `first_id` None: there is no entry."""

    first_id: Id | None
    last_id: Id
    max_evicted_id: Id
    length: int
    entries_added: int
    entries_evicted: int
    entries_deleted: int
    incarnation: int

    def count_between(self, begin: Position, last: Position) -> int | None:
        """The number of entries between two positions of this stream, computed from its counters.
        None if the counters do not suffice: entries were deleted individually, entries between the
        positions were evicted, or a command set the counters."""
        counted = self.length + self.entries_evicted
        if (
            begin.added is None
            or last.added is None
            or not begin.incarnation == last.incarnation == self.incarnation
            or self.entries_deleted
            or self.entries_added != counted
            or last.is_ahead_of(self.entries_added)
            or self.max_evicted_id > begin.id
        ):
            return None
        count = last.added - begin.added
        return count if count >= 0 else None

    def has_evicted_after(self, begin: Position) -> bool:
        """True if entries after this position of this stream were evicted."""
        return self.max_evicted_id > begin.id

    @property
    def earliest(self) -> Position:
        """The position just before the first existing entry."""
        if self.first_id is None:
            return self.latest
        return self.position(before(self.first_id) or FIRST, self.length)

    @property
    def latest(self) -> Position:
        return self.position(self.last_id, 0)

    def position(self, at: Id, following: int) -> Position:
        """The position with this ID, given the number of entries after it."""
        return Position(at, self.entries_added - following, self.incarnation)


class SeekResult(NamedTuple):
    """A stream's counters, and for each requested (ID, n): the number of entries after the ID, at
    most n, and the ID of the last of them."""

    info: StreamCounters
    sought: list[tuple[int, Id | None]]


class StreamChoice:
    """The streams to read: exactly one of the options `subscribe` (keys, separated by commas) and
    `subscribePattern` (a pattern as in KEYS: `sensor:*`)."""

    def __init__(self, options: SourceOptions) -> None:
        names, pattern = options.text("subscribe"), options.text("subscribePattern")
        if (names is None) == (pattern is None):
            raise OptionError(
                "give exactly one of 'subscribe' (keys, separated by commas) and "
                "'subscribePattern' (a pattern such as sensor:*)"
            )
        self.option = "subscribe" if pattern is None else "subscribePattern"
        self.pattern = pattern
        self.keys = [key_bytes(name.strip()) for name in (names or "").split(",") if name.strip()]
        if pattern is None and not self.keys:
            raise options.wrong("subscribe", "one or more keys, separated by commas")

    def wants(self, key: bytes) -> bool:
        """True if the options select this key, whether it exists or not."""
        if self.pattern is None:
            return key in self.keys
        return bool(matcher(key_bytes(self.pattern))(key))

    def find(self, server: ServerConnection) -> list[bytes]:
        """The selected keys, sorted. For a pattern, these are the existing keys that match it."""
        if self.pattern is None:
            return sorted(set(self.keys))
        return sorted(set(server.scan(key_bytes(self.pattern), "stream")))


class KeyPatterns:
    """The streams whose keys match one of several patterns as in KEYS; without a pattern, all."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = [key_bytes(pattern) for pattern in patterns] or [b"*"]
        self._tests = [matcher(pattern) for pattern in self.patterns]

    def wants(self, key: bytes) -> bool:
        """True if a pattern matches this key."""
        return any(test(key) for test in self._tests)

    def find(self, server: ServerConnection) -> list[bytes]:
        """The keys that match, sorted. A pattern that can match only one key is that key, whether
        it exists or not."""
        found = {pattern for pattern in self.patterns if not _GLOB.search(pattern)}
        rest = [pattern for pattern in self.patterns if pattern not in found]
        for pattern in rest:
            found.update(server.scan(pattern, "stream"))
        return sorted(found)


def survey(server: ServerConnection, keys: Iterable[bytes]) -> dict[bytes, StreamCounters]:
    """The counters of the streams that exist."""
    return {key: seen.info for key, seen in seek(server, dict.fromkeys(keys, ())).items()}


def seek(
    server: ServerConnection, asked: Mapping[bytes, Sequence[tuple[Id, int]]]
) -> dict[bytes, SeekResult]:
    """The results for each (ID, n) of each stream, with the stream's counters at the same moment;
    streams that do not exist are left out."""
    found: dict[bytes, SeekResult] = {}
    rest = iter(asked.items())
    while part := list(islice(rest, STREAMS_PER_REQUEST)):
        groups = [_commands(key, seeks) for key, seeks in part]
        if any(seeks for _, seeks in part):
            replies = iter(server.transactions(groups))
        else:
            replies = iter(server.pipeline(command for group in groups for command in group))
        for key, seeks in part:
            info = _info(server, key, next(replies))
            sought = [_sought(server.checked(next(replies))) for _ in seeks]
            if info is not None:
                found[key] = SeekResult(info, sought)
    return found


def _commands(key: bytes, seeks: Sequence[tuple[Id, int]]) -> list[Command]:
    return [("TINFO", key), *(("TSEEK", key, id_text(after), count) for after, count in seeks)]


def _info(server: ServerConnection, key: bytes, reply: Any) -> StreamCounters | None:
    if isinstance(reply, Exception) and "unknown command" in str(reply):
        raise ServerError(
            f"the server at {server.address} is not a millstream server: it replied {reply}"
        )
    if isinstance(reply, Exception):
        shown = readable(key)
        raise ServerError(f"{shown!r} at {server.address}: {reply}") from reply
    return info_of(reply)


def info_of(reply: Any) -> StreamCounters | None:
    """The counters in a reply to TINFO; None if the stream does not exist."""
    if reply is None:
        return None
    facts = pairs(reply)
    return StreamCounters(
        _id(facts["first-id"]),
        _id(facts["last-id"]) or FIRST,
        _id(facts["max-evicted-id"]) or FIRST,
        facts["length"],
        facts["entries-added"],
        facts["entries-evicted"],
        facts["entries-deleted"],
        int(facts["incarnation"]),
    )


def _sought(reply: Any) -> tuple[int, Id | None]:
    count, last = reply
    return count, _id(last)


def _id(text: bytes | None) -> Id | None:
    return None if text is None else id_from_text(text)
