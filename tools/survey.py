"""The data of `millstream top`: the streams of a server and their groups at one moment.

Two surveys give rates. The work is bounded: at most `streams_max` streams, in requests that are
sent together, a few hundred at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from millstream.node_figures import NodeFigures, ranges_text
from millstream.remote import oldest_ms, oldest_requests, pairs
from millstream.tools.display import text
from millstream.tools.tool_connection import ToolConnection, ToolError, Word, is_error

STREAMS_PER_REQUEST = 100
KEYS_PER_SCAN = 1000


@dataclass
class GroupRow:
    """A group. `lag` is None if the server cannot tell; `oldest_age_ms` is the age of the oldest
    entry that is pending or not delivered yet, 0 if there is none, None if it must not be read."""

    name: str
    lag: int | None
    pending: int
    consumers: int
    last_delivered_id: str
    oldest_age_ms: int | None = None


@dataclass
class StreamRow:
    """A stream. `rate_per_s` (entries appended) needs an earlier survey; None where it, or the
    permission for MEMORY USAGE, is missing."""

    db: int
    key: str
    length: int
    size_bytes: int | None
    entries_added: int | None
    last_id: str
    rate_per_s: float | None = None
    groups: list[GroupRow] = field(default_factory=list)


@dataclass
class Survey:
    """All streams. `left_out` is the number of streams that could not be read, and `is_complete`
    is false if there are more than were asked for. `nodes` are those of a cluster."""

    streams: list[StreamRow]
    left_out: int
    is_complete: bool
    taken_s: float
    nodes: list[NodeFigures] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        found = {
            "streams": [asdict(stream) for stream in self.streams],
            "left_out": self.left_out,
            "is_complete": self.is_complete,
        }
        return found | ({"nodes": list(map(_node_as_json, self.nodes))} if self.nodes else {})

    def add(self, part: Survey, streams_max: int) -> None:
        """Add the streams of a node."""
        free = streams_max - len(self.streams)
        self.is_complete &= part.is_complete and len(part.streams) <= free
        self.streams += part.streams[:free]
        self.left_out += part.left_out

    def set_rates(self, earlier: Survey) -> None:
        """Compute the rates since an earlier survey."""
        passed_s = self.taken_s - earlier.taken_s
        counts = {(stream.db, stream.key): stream.entries_added for stream in earlier.streams}
        for stream in self.streams:
            count = counts.get((stream.db, stream.key))
            if count is None or stream.entries_added is None or passed_s <= 0:
                continue
            if stream.entries_added >= count:  # else the key has a new stream
                stream.rate_per_s = (stream.entries_added - count) / passed_s


def _node_as_json(node: NodeFigures) -> dict[str, Any]:
    return {
        "address": node.node.name,
        "shard": node.node.shard,
        "is_primary": node.is_primary,
        "slots": ranges_text(node.node.ranges),
        "health": node.health,
        "problem": node.problem,
        "memory_bytes": node.memory_bytes,
        "clients": node.clients,
        "commands_per_s": node.commands_per_s,
        "lag_bytes": node.lag_bytes,
    }


def take_survey(server: ToolConnection, pattern: str, streams_max: int) -> Survey:
    """The streams with keys that match a glob: in the database that the URL names, or in all.
    ToolError when the server refuses to list keys."""
    survey = Survey([], 0, True, time.monotonic())
    found = 0
    for db in [server.db] if server.names_db else _databases(server):
        server.call("SELECT", db)
        for keys in _stream_keys(server, pattern):
            streams_left = streams_max - found
            found += len(keys)
            _add_streams(server, db, keys[:streams_left], survey)
            if len(keys) > streams_left:
                survey.is_complete = False
                return survey
    return survey


def _databases(server: ToolConnection) -> list[int]:
    """The databases that have keys."""
    lines = text(server.call("INFO", "keyspace")).splitlines()
    names = [line.partition(":")[0] for line in lines if line.startswith("db")]
    return sorted(int(name[2:]) for name in names)


def _stream_keys(server: ToolConnection, pattern: str) -> Iterator[list[bytes]]:
    """The keys of streams in the selected database, each once, some at a time."""
    seen: set[bytes] = set()
    cursor: Word = 0
    while True:
        cursor, keys = server.call(
            "SCAN", cursor, "MATCH", pattern, "COUNT", KEYS_PER_SCAN, "TYPE", "stream"
        )
        new = [key for key in dict.fromkeys(keys) if key not in seen]
        seen.update(new)
        for at in range(0, len(new), STREAMS_PER_REQUEST):
            yield new[at : at + STREAMS_PER_REQUEST]
        if int(cursor) == 0:
            return


def _add_streams(server: ToolConnection, db: int, keys: Sequence[bytes], survey: Survey) -> None:
    """Add the streams of some keys to a survey."""
    requests: list[tuple[Word, ...]] = [("TIME",)]
    for key in keys:
        requests += [
            ("XINFO", "STREAM", key),
            ("XINFO", "GROUPS", key),
            ("MEMORY", "USAGE", key, "SAMPLES", 5),
        ]
    (seconds, microseconds), *replies = _checked(server, requests)
    now_ms = int(seconds) * 1000 + int(microseconds) // 1000
    found: list[tuple[bytes, bytes, GroupRow]] = []
    for at, key in enumerate(keys):
        stream, groups, size = replies[3 * at : 3 * at + 3]
        if is_error(stream) or is_error(groups):
            gone = any("no such key" in str(reply) for reply in (stream, groups))
            survey.left_out += not gone  # a key may vanish, or not be allowed for this user
            continue
        rows = [pairs(row) for row in groups]
        survey.streams.append(_stream(db, key, pairs(stream), rows, size))
        names = [row["name"] for row in rows]
        found += zip([key] * len(rows), names, survey.streams[-1].groups, strict=True)
    _set_ages(server, found, now_ms)


def _checked(server: ToolConnection, requests: Sequence[Sequence[Word]]) -> list[Any]:
    replies = server.pipeline(requests)
    if is_error(replies[0]):
        raise ToolError(f"{server.name}: {replies[0]}")
    return replies


def _stream(
    db: int, key: bytes, facts: dict[str, Any], groups: list[dict[str, Any]], size: Any
) -> StreamRow:
    return StreamRow(
        db,
        text(key),
        facts["length"],
        size if isinstance(size, int) else None,
        facts.get("entries-added"),
        text(facts["last-generated-id"]),
        groups=[_group(row) for row in groups],
    )


def _group(facts: dict[str, Any]) -> GroupRow:
    return GroupRow(
        text(facts["name"]),
        facts.get("lag"),
        facts["pending"],
        facts["consumers"],
        text(facts["last-delivered-id"]),
    )


def _set_ages(
    server: ToolConnection, groups: Sequence[tuple[bytes, bytes, GroupRow]], now_ms: int
) -> None:
    """Find the oldest entry that each group has not acknowledged. `groups` are keys, names and
    groups."""
    requests: list[tuple[Word, ...]] = []
    for key, name, group in groups:
        requests += oldest_requests(key, name, group.last_delivered_id.encode())
    replies = server.pipeline(requests)
    for at, (_, _, group) in enumerate(groups):
        pending, waiting = replies[2 * at : 2 * at + 2]
        if is_error(pending) or is_error(waiting):
            continue
        found_ms = oldest_ms(pending, waiting)
        group.oldest_age_ms = 0 if found_ms is None else max(0, now_ms - found_ms)
