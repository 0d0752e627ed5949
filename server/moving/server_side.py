"""A running server as a side of a comparison, or of a copy: Redis, Valkey or millstream."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from millstream.remote import info_fields, pairs
from millstream.server.moving.key_states import (
    ConsumerTimes,
    Entry,
    EntryId,
    Filters,
    Place,
    State,
    string_digest,
)
from millstream.storage.dump.digests import GroupRow, PendingRow, entry_form, new_digest
from millstream.tools.tool_connection import ToolConnection, is_error

PAGE_ENTRIES = 1000
_SCAN_KEYS = 1000
_NOT_THERE = ("no such key", "WRONGTYPE")


class ServerSide:
    """A running server, over one connection."""

    is_live = True

    def __init__(self, url: str, timeout_s: float = 10) -> None:
        self.connection = ToolConnection(url, timeout_s)
        self.name = self.connection.name
        self._only = self.connection.db if self.connection.names_db else None
        self._selected = self.connection.db

    @cached_property
    def replicates_entries_read(self) -> bool:
        """False for Redis and Valkey before 7.4: XREADGROUP sends the number to replicas only with
        NOACK there."""
        facts = info_fields(self.connection.call("INFO", "server"))
        version = facts.get("valkey_version") or facts.get("redis_version", "")
        return [int(part) for part in version.split(".")[:2] if part.isdecimal()] >= [7, 4]

    def select(self, database: int) -> None:
        if database != self._selected:
            self.connection.call("SELECT", database)
            self._selected = database

    def databases(self) -> list[int]:
        """The databases that have keys; only that of the URL, if it names one."""
        if self._only is not None:
            return [self._only]
        lines = bytes(self.connection.call("INFO", "keyspace")).split()
        return [int(line[2:].split(b":")[0]) for line in lines if line.startswith(b"db")]

    def keys(self, database: int) -> Iterator[list[bytes]]:
        """The keys of a database in parts, each key once."""
        self.select(database)
        seen: set[bytes] = set()
        cursor: Any = b"0"
        while True:
            self.select(database)
            cursor, some = self.connection.call("SCAN", cursor, "COUNT", _SCAN_KEYS)
            new = [key for key in dict.fromkeys(some) if key not in seen]
            seen.update(new)
            yield new
            if cursor == b"0":
                return

    def states(self, filters: Filters) -> dict[Place, State]:
        found: dict[Place, State] = {}
        for database in self.databases():
            if filters.databases is not None and database not in filters.databases:
                continue
            for keys in self.keys(database):
                for place in ((database, key) for key in keys):
                    state = self.state(place) if filters.has(place) else None
                    if state is not None and (state.value is None or filters.strings):
                        found[place] = state
        return found

    def state(self, place: Place) -> State | None:
        database, key = place
        self.select(database)
        (kind,) = self.connection.pipeline([["TYPE", key]])
        if kind == b"string":
            value = self._reply("GET", key)
            state = None if value is None else State(value=string_digest(bytes(value)))
        elif kind == b"stream":
            state = self.stream(key)
            if state is not None:
                self._add_entries(state, key)
        else:
            state = None
        if state is None:
            return None
        (expiry,) = self.expiries([key])
        state.expiry_ms, state.is_expiry_exact = expiry
        return state

    def expiries(self, keys: list[bytes]) -> list[tuple[int | None, bool]]:
        """For each key of the selected database, when it expires, None if it does not; and whether
        this is exact."""
        replies = self.connection.pipeline([["PEXPIRETIME", key] for key in keys])
        if not any(map(is_error, replies)):
            return [(None if at_ms < 0 else at_ms, True) for at_ms in replies]
        requests: list[list[bytes | str | int]] = [["PTTL", key] for key in keys]
        *left, now = self.connection.pipeline([*requests, ["TIME"]])
        now_ms = int(now[0]) * 1000 + int(now[1]) // 1000
        return [(None if ms < 0 else now_ms + ms, False) for ms in left]

    def stream(self, key: bytes) -> State | None:
        """The counters and groups of a stream of the selected database, without its entries; None
        if there is none any more."""
        groups = self._reply("XINFO", "GROUPS", key)
        if groups is None:
            return None
        pending = max([int(pairs(group)["pending"]) for group in groups], default=0)
        reply = self._reply("XINFO", "STREAM", key, "FULL", "COUNT", pending + 1)
        if reply is None:
            return None
        full = pairs(reply)
        state = State(
            length=full["length"],
            last_id=_entry_id(full["last-generated-id"]),
            entries_added=full.get("entries-added"),
        )
        if "max-deleted-entry-id" in full:
            state.max_deleted_id = _entry_id(full["max-deleted-entry-id"])
        for group in map(pairs, full["groups"]):
            _add_group(state, group)
        return state

    def _reply(self, *words: bytes | str | int) -> Any:
        """The reply to a request for a key; None if that was deleted or replaced since its type was
        asked for."""
        (reply,) = self.connection.pipeline([words])
        if is_error(reply) and str(reply).startswith(_NOT_THERE):
            return None
        return self.connection.checked(reply)

    def _add_entries(self, state: State, key: bytes) -> None:
        digest = new_digest()
        state.length = 0
        for entry_id, words in self._pages(key):
            state.first_id = state.first_id if state.length else entry_id
            state.length += 1
            digest.update(entry_form(*entry_id, words))
        state.entries = digest.hexdigest()

    def _pages(self, key: bytes) -> Iterator[Entry]:
        start = b"-"
        while True:
            rows = self.connection.call("XRANGE", key, start, "+", "COUNT", PAGE_ENTRIES)
            for entry_id, words in rows:
                yield _entry_id(entry_id), words
            if len(rows) < PAGE_ENTRIES:
                return
            ms, seq = _entry_id(rows[-1][0])
            start = b"%d-%d" % ((ms, seq + 1) if seq < 2**64 - 1 else (ms + 1, 0))

    def entries(self, place: Place) -> Iterator[Entry]:
        self.select(place[0])
        yield from self._pages(place[1])


def _add_group(state: State, group: dict[str, Any]) -> None:
    name = group["name"]
    read = group.get("entries-read", -1)
    state.has_entries_read = "entries-read" in group
    rows = [
        PendingRow(*_entry_id(entry_id), owner or None, time_ms, count)
        for entry_id, owner, time_ms, count in group.get("pending", group.get("pel", ()))
    ]
    names = []
    for consumer in map(pairs, group["consumers"]):
        names.append(consumer["name"])
        times = ConsumerTimes(consumer["seen-time"], consumer.get("active-time"))
        state.consumers[name, consumer["name"]] = times
    offset = _entry_id(group["last-delivered-id"])
    state.groups[name] = GroupRow(name, offset, -1 if read is None else read, sorted(names), rows)


def _entry_id(text: bytes) -> EntryId:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)
