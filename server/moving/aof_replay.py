"""Runs the files of an AOF on a keyspace of its own, without a server.

Its first file may begin with an RDB. The requests run as those of a source that a server follows:
no key expires, and what has no place here is counted. The last file may end within a request or a
transaction, which is left out.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import Effects
from millstream.errors import DataError, PayloadError
from millstream.server.moving.other_keys import OtherKeys, Place
from millstream.server.repair.checking import new_keyspace
from millstream.server.replication.redis_obeyed import CannotFollow, Obeyed, Told
from millstream.storage.dump.aof_file import AofReader
from millstream.storage.dump.base_making import damage_sentence, database_missing
from millstream.storage.dump.rdb import whole
from millstream.storage.dump.rdb_file import STRING, KeyHead, Passed, RdbFile
from millstream.storage.dump.reader import CutOffError, Reader
from millstream.storage.dump.stream_reading import Adjusted, StreamReader
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

# Requests after which lists of work for a server are emptied.
_STEP_REQUESTS = 1024
_FILE_BEGINS = b"RV"  # with an RDB
_LOST_MAX = 1000

_NOTE = (
    "{name}: an AOF has no times of consumers, which were last seen now, and not all consumers"
    " without pending entries; Redis 7 writes no number of entries read"
)
# Without a server, its log is not written.
logging.getLogger("millstream.replication").addHandler(logging.NullHandler())


class ReplayFailure(DataError):
    """An AOF cannot be replayed. The text is a sentence."""


@dataclass
class ReplayedFile:
    """A file that was replayed. `rdb` is the one that it begins with."""

    name: str
    size_bytes: int
    requests: int
    rdb: RdbFile | None


@dataclass
class Replay:
    """One AOF: `add` each of its files in order. `keyspace` then has the keys, also those that are
    due. `lost` has the requests that failed, if they are left out (`salvage`)."""

    now_ms: int
    salvage: bool = False
    databases_count: int | None = None
    keyspace: Keyspace = field(init=False)
    files: list[ReplayedFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)  # what belongs to no key
    adjusted: Adjusted = field(default_factory=Adjusted)
    has_requests: bool = False

    def __post_init__(self) -> None:
        self.keyspace = new_keyspace(self.now_ms, self.databases_count)
        self.keyspace.expiring = False
        self._others = OtherKeys(self.passed.append)
        self._context = _context(self.keyspace, self.now_ms)
        told = Told(lambda *message: None, lambda: None)
        self._obeyed = Obeyed(self._context, self.keyspace, told)

    @property
    def requests(self) -> int:
        return sum(file.requests for file in self.files)

    def add(self, reader: Reader, name: str, *, is_last: bool) -> None:
        """Load a file. ReplayFailure when it is damaged."""
        file = ReplayedFile(name, 0, 0, None)
        self.files.append(file)
        if begins_rdb(reader):
            file.rdb = self._load_rdb(reader, name)
        requests = AofReader(reader.some, reader.offset)
        earlier = self._obeyed.ignored.copy(), self._obeyed.unknown.copy()
        with self._obeyed.running():
            self._obeyed.database = 0
            self._run_all(requests, file, is_last=is_last)
        file.size_bytes = requests.read_bytes
        if file.requests and not self.has_requests:
            self.has_requests = True
            self.notes.append(_NOTE.format(name=name))
        self._note_ignored(name, *earlier)

    def _note_ignored(self, name: str, ignored: Counter[str], unknown: Counter[str]) -> None:
        """Note the requests of a file that were not run; these are the counts before it."""
        new = self._obeyed.unknown - unknown
        others = self._obeyed.ignored - ignored - new
        for what, counts in (("this version does not know", new), ("were not run", others)):
            if counts:
                shown = ", ".join(f"{word} ({count})" for word, count in counts.most_common())
                self.notes.append(f"{name}: requests that {what}: {shown}")

    # ------------------------------------------------------------ an RDB

    def _load_rdb(self, reader: Reader, name: str) -> RdbFile:
        file = RdbFile(reader, self.passed.append)
        try:
            file.begin()
            for head in file.key_heads():
                self._load_key(file, head, name)
        except PayloadError as error:
            sentence = damage_sentence(file, name, reader.offset, str(error))
            raise ReplayFailure(sentence) from None
        if not file.is_checksum_right:
            raise ReplayFailure(f"{name}: the checksum of its RDB is wrong")
        return file

    def _load_key(self, file: RdbFile, head: KeyHead, file_name: str) -> None:
        databases = self.keyspace.databases
        if head.database >= len(databases):
            raise ReplayFailure(database_missing(file_name, head.database, len(databases)))
        database = databases[head.database]
        if head.name in database.table:
            raise PayloadError("the key appears twice")
        value: bytes | Stream
        if file.is_stream():
            incarnation = self.keyspace.next_incarnation(self.now_ms)
            reading = StreamReader(file.reader, head.kind, incarnation, self.now_ms)
            value = whole(reading.read())
            self.adjusted.add(reading.adjusted)
        elif head.kind == STRING:
            value = file.reader.string()
        else:
            self._others.add((head.database, head.name), file.skip())
            return
        database.put(head.name, value)
        if head.expires_ms is not None:
            database.note_expiry(head.name, head.expires_ms)

    # ------------------------------------------------------------ requests

    def _run_all(self, requests: AofReader, file: ReplayedFile, *, is_last: bool) -> None:
        waiting: list[tuple[int, list[bytes]]] | None = None  # since MULTI
        began = 0
        while True:
            try:
                words = requests.next()
            except CutOffError as error:
                self._end_early(file, requests.offset, str(error), is_last=is_last)
                break
            except PayloadError as error:
                raise self._failure(file, requests.offset, str(error)) from None
            if words is None:
                break
            file.requests += 1
            name = words[0].lower()
            if name == b"multi":
                if waiting is not None:
                    raise self._failure(file, requests.offset, "MULTI within a transaction")
                waiting, began = [], requests.offset
            elif name == b"exec":
                if waiting is None:
                    raise self._failure(file, requests.offset, "EXEC without MULTI")
                for offset, queued in waiting:
                    self._run(file, offset, queued)
                waiting = None
            elif waiting is not None:
                waiting.append((requests.offset, words))
            else:
                self._run(file, requests.offset, words)
            if file.requests % _STEP_REQUESTS == 0:
                self._forget_work()
        if waiting is not None:
            self._end_early(file, began, "it ends within a transaction", is_last=is_last)
        self._forget_work()

    def _run(self, file: ReplayedFile, offset: int, words: list[bytes]) -> None:
        self._others.note(self._obeyed.database, words)
        try:
            self._obeyed.run(words)
        except CannotFollow as error:
            failure = self._failure(file, offset, error.reason)
            if not self.salvage:
                raise failure from None
            if len(self.lost) < _LOST_MAX:
                self.lost.append(str(failure))

    def _end_early(self, file: ReplayedFile, offset: int, reason: str, *, is_last: bool) -> None:
        """The end of the last file is missing: what was complete counts."""
        if not is_last:
            raise self._failure(file, offset, f"{reason}, and it is not the last file")
        self.notes.append(f"{file.name}: {reason}: it was read up to offset {offset}")

    @staticmethod
    def _failure(file: ReplayedFile, offset: int, reason: str) -> ReplayFailure:
        return ReplayFailure(f"{file.name} cannot be replayed at offset {offset}: {reason}")

    def _forget_work(self) -> None:
        """Forget work for a server: waiting readers, timers."""
        self.keyspace.ready = []
        self.keyspace.timer_requests = []
        self.keyspace.settling = []
        self._context.effects.take_payload()

    # ------------------------------------------------------------ the result

    def values(self) -> Iterator[tuple[KeyHead, bytes | Stream]]:
        """All keys with their values."""
        for number, database in enumerate(self.keyspace.databases):
            database.settle_all()
            for key, value in database.table.items():
                yield KeyHead(number, key, STRING, database.expiries.get(key)), value

    def others(self) -> Iterator[tuple[KeyHead, Passed]]:
        """The keys that have no place here."""
        for (number, name), key in self._others.left(self._has):
            yield KeyHead(number, name, STRING, None), Passed(key.what, name, key.size_bytes)
        # A command that is not known may have changed these.
        for number, name in sorted(self.keyspace.dropped_strings):
            if (number, name) not in self._others:
                yield KeyHead(number, name, STRING, None), Passed("string", name, 0)

    def _has(self, place: Place) -> bool:
        return place[1] in self.keyspace.databases[place[0]].table


def begins_rdb(reader: Reader) -> bool:
    """True if the next bytes are an RDB."""
    reader.mark()
    try:
        return reader.byte() in _FILE_BEGINS
    except PayloadError:
        return False
    finally:
        reader.rewind()
        reader.unmark()


def _context(keyspace: Keyspace, now_ms: int) -> Context:
    """The context of the requests: nothing is recorded, and the time is always the same."""
    host: Any = SimpleNamespace(
        config=SimpleNamespace(proto_max_bulk_len=1 << 62),
        log=lambda message: None,
        warn=lambda message: None,
    )
    context = Context(keyspace, Effects(enabled=False), host)
    context.now_ms = context.steady_ms = now_ms
    return context
