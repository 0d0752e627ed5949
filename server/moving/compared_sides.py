"""The two sides of a comparison: a file of Redis, a data directory, or a running server.

Each side yields a state for each key, with digests, and the entries of one stream on request. A
field that a side does not have is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.errors import PayloadError, printable
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.moving.aof_replay import Replay
from millstream.server.moving.key_states import (
    UNKNOWN_TIMES,
    ConsumerTimes,
    Entry,
    EntryId,
    Filters,
    NotComparable,
    Place,
    Side,
    State,
    string_digest,
)
from millstream.server.moving.server_side import ServerSide
from millstream.server.moving.source_files import aof_files, is_aof_directory, source_name
from millstream.server.repair.checking import load_strictly
from millstream.storage.blocks.block import Block
from millstream.storage.dump.aof_file import begins_aof
from millstream.storage.dump.base_making import WITHOUT_CONSUMER_TIMES
from millstream.storage.dump.digests import group_row, new_digest, stream_digest
from millstream.storage.dump.node_codec import digest_form
from millstream.storage.dump.rdb import whole
from millstream.storage.dump.rdb_file import STRING, RdbFile
from millstream.storage.dump.reader import Reader
from millstream.storage.dump.stream_reading import STREAM, STREAM_3, STREAM_4, StreamReader
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import NAME, load_manifest, nodes_hint
from millstream.storage.files.snapshot_reader import SnapshotReader
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

# Times of a file are not adjusted.
_FAR_MS = 1 << 46


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
    replicates_entries_read = True

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
        state = state_of_stream(stream, digest.hexdigest(), reading.first_id, kind)
        state.left_out_consumers = reading.adjusted.consumers_without_name > 0
        return state

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
    replicates_entries_read = True

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
    try:
        manifest = load_manifest(disk)
        if manifest is None:
            hint = nodes_hint(disk.names(), name) or ": it is not a data directory"
            raise NotComparable(f"{name} has no {NAME}{hint}")
        keyspace = load_strictly(disk, manifest, LoadReport(), _FAR_MS)
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
