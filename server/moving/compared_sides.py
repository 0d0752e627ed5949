"""The two sides of a comparison: a file of Redis, a data directory, or a running server.

Each side yields a state for each key, with digests, and the entries of one stream on request. A
field that a side does not have is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from millstream.errors import DataError, PayloadError, printable
from millstream.glob import matcher
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.moving.aof_replay import Replay
from millstream.server.moving.source_files import aof_files, is_aof_directory, source_name
from millstream.server.repair.checking import loader_of, new_keyspace
from millstream.storage.blocks.block import Block
from millstream.storage.dump.aof_file import begins_aof
from millstream.storage.dump.base_making import WITHOUT_CONSUMER_TIMES
from millstream.storage.dump.digests import (
    DIGEST_BYTES,
    GroupRow,
    PendingRow,
    entry_form,
    group_row,
    new_digest,
    stream_digest,
)
from millstream.storage.dump.node_codec import digest_form
from millstream.storage.dump.rdb import whole
from millstream.storage.dump.rdb_file import STRING, RdbFile
from millstream.storage.dump.reader import Reader
from millstream.storage.dump.stream_reading import STREAM, STREAM_3, STREAM_4, StreamReader
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import NAME, load_manifest
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream
from millstream.tools.tool_connection import ToolConnection, is_error

Place = tuple[int, bytes]  # database and key
EntryId = tuple[int, int]
Entry = tuple[EntryId, list[bytes]]
PAGE_ENTRIES = 1000
_FAR_MS = 1 << 46


class NotComparable(DataError):
    """A side cannot be read. The text is a sentence."""


@dataclass(frozen=True)
class Filters:
    """The keys that are compared."""

    patterns: tuple[bytes, ...] = ()
    databases: frozenset[int] | None = None
    strings: bool = True

    def has(self, place: Place) -> bool:
        database, key = place
        if self.databases is not None and database not in self.databases:
            return False
        return not self.patterns or any(matcher(pattern)(key) for pattern in self.patterns)


class ConsumerTimes(NamedTuple):
    """Times of a consumer: last seen, and last active, None if the side does not know it."""

    seen_ms: int | None
    active_ms: int | None


UNKNOWN_TIMES = ConsumerTimes(None, None)


@dataclass
class State:
    """A key. Only a string has `value`, a digest. `is_replayed`: it follows from the commands of a
    Redis, which do not say everything."""

    value: bytes | None = None
    length: int = 0
    first_id: EntryId = (0, 0)
    last_id: EntryId = (0, 0)
    entries_added: int | None = None
    max_deleted_id: EntryId | None = None
    entries: str = ""
    groups: dict[bytes, GroupRow] = field(default_factory=dict)
    consumers: dict[tuple[bytes, bytes], ConsumerTimes] = field(default_factory=dict)
    has_entries_read: bool = True
    is_replayed: bool = False
    producers: list[bytes] | None = None
    expiry_ms: int | None = None
    is_expiry_exact: bool = True


class Side(Protocol):
    """One side. `name` is for texts; `is_live`: it may change while it is read."""

    name: str
    is_live: bool

    def states(self, filters: Filters) -> dict[Place, State]:
        """All keys."""

    def state(self, place: Place) -> State | None:
        """One key again; None if it does not exist."""

    def entries(self, place: Place) -> Iterator[Entry]:
        """The entries of a stream in ID order."""


def string_digest(value: bytes) -> bytes:
    return blake2b(value, digest_size=DIGEST_BYTES).digest()


def state_of_stream(stream: Stream, digest: str, first_id: EntryId, kind: int) -> State:
    """The state of a stream that was read from a value of the type `kind`."""
    window = stream.idempotence
    consumers = {
        (group.name, name): ConsumerTimes(one.seen_ms, one.active_ms if kind >= STREAM_3 else None)
        for group in stream.groups.values()
        for name, one in group.pending.consumers.items()
    }
    return State(
        length=stream.length,
        first_id=first_id if stream.length else (0, 0),
        last_id=stream.last_id,
        entries_added=stream.entries_added if kind > STREAM else None,
        max_deleted_id=stream.max_deleted_id if kind > STREAM else None,
        entries=digest,
        groups={name: group_row(group) for name, group in stream.groups.items()},
        consumers=consumers,
        has_entries_read=kind > STREAM,
        producers=_producers(window) if kind >= STREAM_4 else None,
    )


def _producers(window: Any) -> list[bytes]:
    return [] if window is None else sorted(window.producers)


class FileSide:
    """A file of Redis."""

    is_live = False

    def __init__(self, path: Path) -> None:
        self.name = printable(str(path))
        self._path = path

    def states(self, filters: Filters) -> dict[Place, State]:
        found: dict[Place, State] = {}
        with open(self._path, "rb", buffering=0) as source:
            file = RdbFile(Reader(b"", 0, 0, source.read, os.fstat(source.fileno()).st_size))
            try:
                file.begin()
                for head in file.key_heads():
                    place = head.database, head.name
                    if not filters.has(place):
                        file.skip()
                    elif file.is_stream():
                        found[place] = self._stream(file, head.kind)
                    elif head.kind == STRING and filters.strings:
                        found[place] = State(value=string_digest(file.reader.string()))
                    else:
                        file.skip()
                        continue
                    if place in found:
                        found[place].expiry_ms = head.expires_ms
            except PayloadError as error:
                raise NotComparable(
                    f"{self.name} is damaged at offset {file.reader.offset}: {error}"
                ) from None
        if not file.is_checksum_right:
            raise NotComparable(f"{self.name} has a wrong checksum")
        return found

    @staticmethod
    def _stream(file: RdbFile, kind: int) -> State:
        digest = new_digest()

        def take(blocks: list[Block]) -> None:
            for block in blocks:
                digest.update(digest_form(block))

        reading = StreamReader(file.reader, kind, 1, _FAR_MS, take)
        stream = whole(reading.read())
        take(list(stream.blocks()))
        return state_of_stream(stream, digest.hexdigest(), reading.first_id, kind)

    def state(self, place: Place) -> State | None:
        database, key = place
        filters = Filters((_escaped(key),), frozenset((database,)))
        return self.states(filters).get(place)

    def entries(self, place: Place) -> Iterator[Entry]:
        with open(self._path, "rb", buffering=0) as source:
            file = RdbFile(Reader(b"", 0, 0, source.read))
            file.begin()
            for head in file.key_heads():
                if (head.database, head.name) != place:
                    file.skip()
                    continue
                stream = whole(StreamReader(file.reader, head.kind, 1, _FAR_MS).read())
                for block in stream.blocks():
                    for ms, seq, words in block.entries():
                        yield (ms, seq), words
                return


def _escaped(key: bytes) -> bytes:
    """A pattern that matches only this key."""
    return b"".join(b"\\" + bytes((byte,)) if byte in b"*?[]\\" else bytes((byte,)) for byte in key)


class KeyspaceSide:
    """The keys of a keyspace. `has_consumer_times` is False if they come from an AOF."""

    is_live = False

    def __init__(self, name: str, keyspace: Keyspace, *, has_consumer_times: bool) -> None:
        self.name = name
        self._keyspace = keyspace
        self._has_consumer_times = has_consumer_times
        for database in keyspace.databases:
            database.settle_all()

    def states(self, filters: Filters) -> dict[Place, State]:
        places = [
            (number, key)
            for number, database in enumerate(self._keyspace.databases)
            for key in database.table
            if filters.has((number, key))
        ]
        found = {place: self._state(place) for place in places}
        return {
            place: state for place, state in found.items() if state.value is None or filters.strings
        }

    def state(self, place: Place) -> State | None:
        database, key = place
        return self._state(place) if key in self._keyspace.databases[database].table else None

    def _state(self, place: Place) -> State:
        database = self._keyspace.databases[place[0]]
        value = database.table[place[1]]
        if isinstance(value, Stream):
            digest = stream_digest(value)
            state = state_of_stream(value, digest, value.first_id or (0, 0), STREAM_4)
            if not self._has_consumer_times:
                state.consumers = dict.fromkeys(state.consumers, UNKNOWN_TIMES)
                state.is_replayed, state.has_entries_read = True, False
        else:
            state = State(value=string_digest(bytes(value)))
        state.expiry_ms = database.expiries.get(place[1])
        return state

    def entries(self, place: Place) -> Iterator[Entry]:
        stream = self._keyspace.databases[place[0]].table[place[1]]
        assert isinstance(stream, Stream)
        for block in stream.blocks():
            for ms, seq, words in block.entries():
                if (ms, seq) >= stream.first_kept:
                    yield (ms, seq), words


class ServerSide:
    """A running server: Redis, Valkey or millstream."""

    is_live = True

    def __init__(self, url: str, timeout_s: float = 10) -> None:
        self._connection = ToolConnection(url, timeout_s)
        self.name = self._connection.name
        self._only = self._connection.db if self._connection.names_db else None
        self._selected = self._connection.db

    def _select(self, database: int) -> None:
        if database != self._selected:
            self._connection.call("SELECT", database)
            self._selected = database

    def states(self, filters: Filters) -> dict[Place, State]:
        found: dict[Place, State] = {}
        for database in self._databases():
            if filters.databases is not None and database not in filters.databases:
                continue
            self._select(database)
            for key in self._keys():
                place = database, key
                if filters.has(place):
                    state = self.state(place)
                    if state is not None and (state.value is None or filters.strings):
                        found[place] = state
        return found

    def _databases(self) -> list[int]:
        if self._only is not None:
            return [self._only]
        lines = bytes(self._connection.call("INFO", "keyspace")).split()
        return [int(line[2:].split(b":")[0]) for line in lines if line.startswith(b"db")]

    def _keys(self) -> list[bytes]:
        keys: set[bytes] = set()
        cursor: Any = b"0"
        while True:
            cursor, some = self._connection.call("SCAN", cursor, "COUNT", 1000)
            keys.update(some)
            if cursor == b"0":
                return sorted(keys)

    def state(self, place: Place) -> State | None:
        database, key = place
        self._select(database)
        kind, expiry = self._connection.pipeline([["TYPE", key], ["PEXPIRETIME", key]])
        if kind == b"string":
            state = State(value=string_digest(bytes(self._connection.call("GET", key))))
        elif kind == b"stream":
            state = self._stream(key)
        else:
            return None
        if is_error(expiry):
            left, now = self._connection.pipeline([["PTTL", key], ["TIME"]])
            state.is_expiry_exact = False
            state.expiry_ms = None if left < 0 else int(now[0]) * 1000 + left
        else:
            state.expiry_ms = None if expiry < 0 else expiry
        return state

    def _stream(self, key: bytes) -> State:
        groups = self._connection.call("XINFO", "GROUPS", key)
        pending = max([int(_pairs(group)[b"pending"]) for group in groups], default=0)
        full = _pairs(self._connection.call("XINFO", "STREAM", key, "FULL", "COUNT", pending + 1))
        digest, first_id, length = new_digest(), (0, 0), 0
        for entry_id, words in self._pages(key):
            first_id = first_id if length else entry_id
            length += 1
            digest.update(entry_form(*entry_id, words))
        state = State(
            length=length,
            first_id=first_id,
            last_id=_id(full[b"last-generated-id"]),
            entries_added=full.get(b"entries-added"),
            entries=digest.hexdigest(),
        )
        if b"max-deleted-entry-id" in full:
            state.max_deleted_id = _id(full[b"max-deleted-entry-id"])
        for group in map(_pairs, full[b"groups"]):
            self._add_group(state, group)
        return state

    @staticmethod
    def _add_group(state: State, group: dict[bytes, Any]) -> None:
        name = group[b"name"]
        read = group.get(b"entries-read", -1)
        state.has_entries_read = b"entries-read" in group
        rows = [
            PendingRow(*_id(entry_id), owner or None, time_ms, count)
            for entry_id, owner, time_ms, count in group.get(b"pending", group.get(b"pel", ()))
        ]
        names = []
        for consumer in map(_pairs, group[b"consumers"]):
            names.append(consumer[b"name"])
            times = ConsumerTimes(consumer[b"seen-time"], consumer.get(b"active-time"))
            state.consumers[name, consumer[b"name"]] = times
        state.groups[name] = GroupRow(
            name,
            _id(group[b"last-delivered-id"]),
            -1 if read is None else read,
            sorted(names),
            rows,
        )

    def _pages(self, key: bytes) -> Iterator[Entry]:
        start = b"-"
        while True:
            rows = self._connection.call("XRANGE", key, start, "+", "COUNT", PAGE_ENTRIES)
            for entry_id, words in rows:
                yield _id(entry_id), words
            if len(rows) < PAGE_ENTRIES:
                return
            ms, seq = _id(rows[-1][0])
            start = b"%d-%d" % ((ms, seq + 1) if seq < 2**64 - 1 else (ms + 1, 0))

    def entries(self, place: Place) -> Iterator[Entry]:
        self._select(place[0])
        yield from self._pages(place[1])


def _pairs(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _id(text: bytes) -> EntryId:
    ms, _, seq = text.partition(b"-")
    return int(ms), int(seq)


def open_side(word: str) -> Side:
    """The side that a word of the command line names. NotComparable if there is none."""
    if word.startswith(("redis://", "rediss://", "unix://")):
        return ServerSide(word)
    path = Path(word)
    try:
        if path.is_dir():
            is_aof = NAME not in os.listdir(path) and is_aof_directory(path)
            return _aof_side(path, aof_files(path)) if is_aof else _directory_side(path)
        with open(path, "rb", buffering=0) as file:
            is_aof = begins_aof(Reader(b"", 0, 0, file.read))
        return _aof_side(path, [path]) if is_aof else FileSide(path)
    except OSError as error:
        raise NotComparable(f"{printable(word)} cannot be read: {error.strerror}") from None


def _directory_side(path: Path) -> KeyspaceSide:
    """A data directory that no server uses."""
    name = printable(str(path))
    disk = SystemDisk(path)
    disk.lock_for("or copy its directory with `millstream backup`", alone=False)
    keyspace = new_keyspace(_FAR_MS)
    try:
        manifest = load_manifest(disk)
        if manifest is None:
            raise NotComparable(f"{name} has no {NAME}: it is not a data directory")
        for _ in loader_of(disk, keyspace).read(manifest, LoadReport()):
            pass
        return KeyspaceSide(
            name, keyspace, has_consumer_times=_has_consumer_times(disk, manifest.base)
        )
    finally:
        disk.unlock()


def _has_consumer_times(disk: SystemDisk, base: str | None) -> bool:
    if base is None:
        return True
    file = disk.read(base)
    try:
        return WITHOUT_CONSUMER_TIMES not in SnapshotReader(file).summary.global_meta
    finally:
        file.close()


def _aof_side(path: Path, files: list[Path]) -> KeyspaceSide:
    """The files of an AOF."""
    replay = Replay(time.time_ns() // 1_000_000)
    for one in files:
        with open(one, "rb", buffering=0) as file:
            reader = Reader(b"", 0, 0, file.read, os.fstat(file.fileno()).st_size)
            replay.add(reader, source_name(one), is_last=one is files[-1])
    name = printable(str(path))
    return KeyspaceSide(name, replay.keyspace, has_consumer_times=not replay.has_requests)
