"""Makes the base of a data directory from RDB files, without a keyspace: blocks are written as they
are made, so memory does not grow with the entries.

The base is whole or useless: it gets its footer in `finish`. The caller publishes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from xxhash import xxh3_64_intdigest

from millstream.errors import DataError, PayloadError, printable, readable
from millstream.glob import Patterns
from millstream.storage.blocks.block import Block
from millstream.storage.capture.captured_keys import Captured, captured_stream, with_expiry
from millstream.storage.capture.small_streams import SmallStreams
from millstream.storage.dump.digests import group_row, groups_digest, new_digest, stream_digest
from millstream.storage.dump.node_codec import digest_form
from millstream.storage.dump.rdb import whole
from millstream.storage.dump.rdb_file import STRING, KeyHead, NotRdbError, Passed, RdbFile
from millstream.storage.dump.reader import CutOffError
from millstream.storage.dump.seen_keys import SeenKeys
from millstream.storage.dump.stream_reading import Adjusted, StreamReader
from millstream.storage.files.snapshot_writer import SnapshotWriter
from millstream.storage.keyspace.keyspace import Source
from millstream.storage.streams.stream import Stream
from millstream.storage.streams.stream_snapshot import dump_stream

NAMES_MAX = 5  # of the keys that were left out, for each type
# In the global map of a base: its consumers have the times of the import.
WITHOUT_CONSUMER_TIMES = "without_consumer_times"
_BATCH_BYTES = 64 << 10
_ESCAPE = re.compile(rb"\\(?:\\|x([0-9a-f]{2}))")  # in a key of a report


class ImportFailure(DataError):
    """The import ends. The text is a sentence."""


DATABASES_MAX = 16  # the default of the directive `databases`


@dataclass(frozen=True)
class Wanted:
    """The choice of keys, and of what ends the import. `databases` maps numbers of the file to
    those of the base; None: all, with the same numbers, of which there are `databases_count`."""

    patterns: tuple[bytes, ...] = ()
    databases: dict[int, int] | None = None
    strings: bool = True
    may_leave_out: bool = True
    salvage: bool = False
    databases_count: int = DATABASES_MAX

    @property
    def is_everything(self) -> bool:
        """True if no key that has a place here is left out or moved."""
        return not self.patterns and self.databases is None and self.strings


def first_names(names: Sequence[str], keys: int) -> str:
    """The names of the first of these keys."""
    return ", ".join(names) + ("" if keys <= len(names) else ", ...")


@dataclass
class LeftOut:
    """Keys of one type that were left out. `names` has the first ones."""

    keys: int = 0
    bytes: int = 0
    names: list[str] = field(default_factory=list)

    def add(self, name: str, size_bytes: int = 0) -> None:
        self.keys += 1
        self.bytes += size_bytes
        if len(self.names) < NAMES_MAX:
            self.names.append(name)


@dataclass
class Totals:
    """The contents of the base."""

    streams: int = 0
    strings: int = 0
    entries: int = 0
    groups: int = 0
    consumers: int = 0
    pending: int = 0


@dataclass
class Findings:
    """The result of an import, except the streams. `lost` has a sentence for each loss, `notes` for
    what a source does not say."""

    totals: Totals = field(default_factory=Totals)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    adjusted: Adjusted = field(default_factory=Adjusted)
    expired: int = 0
    lost: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


# Gets the description of each stream.
Tell = Callable[[dict[str, Any]], None]


class Replayed(Protocol):
    """An AOF that was replayed: its keys, those of other types, what belongs to no key."""

    passed: list[Passed]
    adjusted: Adjusted
    notes: list[str]
    lost: list[str]
    has_requests: bool

    def values(self) -> Iterator[tuple[KeyHead, bytes | Stream]]: ...
    def others(self) -> Iterator[tuple[KeyHead, Passed]]: ...


class BaseMaker:
    """Puts the keys of files into a base. `tell_stream` gets a description of each stream, with
    digests if `with_digests`."""

    def __init__(
        self,
        writer: SnapshotWriter,
        wanted: Wanted,
        now_ms: int,
        seed: int,
        tell_stream: Tell,
        *,
        with_digests: bool,
    ) -> None:
        self.findings = Findings()
        self._writer = writer
        self._wanted = wanted
        self._now_ms = now_ms
        self._seed = seed
        self._tell_stream = tell_stream
        self._with_digests = with_digests
        self._keys = Patterns(wanted.patterns)
        self._incarnation = now_ms << 10
        self._batch = SmallStreams(_BATCH_BYTES)
        self._is_open = False  # blocks of the current key have been written
        self._digest = new_digest()
        self._known = SeenKeys()
        self._has_consumer_times = True
        self._source: Source | None = None
        self._sources = 0

    @property
    def incarnation(self) -> int:
        """The last number that was given to a stream."""
        return self._incarnation

    # ------------------------------------------------------------ a file

    def add_file(self, file: RdbFile, name: str) -> None:
        """Add the keys of a file. ImportFailure when it is damaged, or has what is not wanted."""
        self._sources += 1
        file.tell_passed = self.leave_out
        losses = len(self.findings.lost)
        try:
            file.begin()
            for head in file.key_heads():
                self._add_key(file, head, name)
            # A value that does not load is the reason for a wrong checksum.
            if not file.is_checksum_right and len(self.findings.lost) == losses:
                raise _Damage("its checksum is wrong, although all values load")
            if not file.reader.is_at_end():
                raise _Damage(f"bytes follow its end at offset {file.reader.offset}")
        except NotRdbError as error:
            raise ImportFailure(f"{name} cannot be imported: {error}") from None
        except _Damage as damage:
            self._lose(f"{name}: {damage}", "everything")
        except PayloadError as error:
            self._drop_open()
            self._lose(damage_sentence(file, name, file.reader.offset, str(error)), "them")
        self._note_source(file)

    def _note_source(self, file: RdbFile) -> None:
        facts = file.facts
        if facts.keys() >= {b"repl-id", b"repl-offset", b"repl-stream-db"}:
            self._source = Source(
                facts[b"repl-id"].decode("ascii", "replace"),
                _number(facts[b"repl-offset"]),
                _number(facts[b"repl-stream-db"]),
            )

    def _lose(self, sentence: str, rest: str) -> None:
        """Note a loss; it ends the import unless the rest is wanted."""
        if not self._wanted.salvage:
            raise ImportFailure(f"{sentence}; nothing was written; --salvage keeps {rest}")
        self.findings.lost.append(sentence)

    # ------------------------------------------------------------ a key

    def _add_key(self, file: RdbFile, head: KeyHead, name: str) -> None:
        database = self._chosen(head, name)
        if database is None:
            file.skip()
        elif not file.is_stream() and not (head.kind == STRING and self._wanted.strings):
            self.leave_out_key(head, file.skip(), name)
        elif not self._is_new(database, head, name):
            file.skip()
        elif file.is_stream():
            self._add_stream(file, head, database, name)
        else:
            self._add_string(file, head, database, name)

    def add_value(self, head: KeyHead, value: bytes | Stream, name: str) -> None:
        """Add a key of a keyspace; `name` is that of its source."""
        database = self._chosen(head, name)
        if database is None:
            return
        if not isinstance(value, Stream) and not self._wanted.strings:
            self.leave_out(Passed("string", head.name, len(value)))
        elif not self._is_new(database, head, name):
            return
        elif isinstance(value, Stream):
            self._incarnation = max(self._incarnation, value.incarnation)
            self._count(value, Adjusted())
            digest = stream_digest(value) if self._with_digests else ""
            self._describe(value, value.first_id or (0, 0), head, database, digest)
            self._put_stream(database, head, value)
        else:
            self._put_string(database, head, value)

    def add_replayed(self, replayed: Replayed, name: str) -> None:
        """Add the keys of an AOF that was replayed; `name` is that of its source."""
        self._sources += 1
        for head, value in replayed.values():
            self.add_value(head, value, name)
        for head, passed in replayed.others():
            self.leave_out_key(head, passed, name)
        for passed in replayed.passed:
            self.leave_out(passed)
        self.findings.adjusted.add(replayed.adjusted)
        self.findings.notes += replayed.notes
        self.findings.lost += replayed.lost
        self._has_consumer_times = self._has_consumer_times and not replayed.has_requests

    def leave_out_key(self, head: KeyHead, passed: Passed, name: str) -> None:
        """Count a key that has no place here, if it is one of those that are wanted."""
        if self._chosen(head, name) is None:
            return
        if passed.what != "string" and not self._wanted.may_leave_out:
            raise ImportFailure(
                f"{name} has {_shown(head)}, which is a {passed.what}: this server has"
                " streams and strings; --other skip leaves it out"
            )
        self.leave_out(passed)

    def _chosen(self, head: KeyHead, name: str) -> int | None:
        """The database to which a key goes; None if it is not wanted, or due."""
        database = self._database_of(head, name)
        if database is None or not self._keys.has(head.name):
            return None
        if head.expires_ms is not None and head.expires_ms <= self._now_ms:
            self.findings.expired += 1
            return None
        return database

    def _database_of(self, head: KeyHead, name: str) -> int | None:
        """The database to which a key goes; None if it is not wanted."""
        number = head.database
        if self._wanted.databases is not None:
            return self._wanted.databases.get(number)
        count = self._wanted.databases_count
        if number >= count:
            raise ImportFailure(database_missing(name, number, count))
        return number

    def _is_new(self, database: int, head: KeyHead, name: str) -> bool:
        """True if a key was not imported before. A key in two sources ends the import; so does a
        key that comes twice in one, unless it is salvaged."""
        number = xxh3_64_intdigest(database.to_bytes(4, "little") + head.name, self._seed)
        if self._known.add(number):
            return True
        sentence = f"{name} has {_shown(head)}, which was imported before"
        if self._sources > 1:
            raise ImportFailure(sentence)
        self._lose(sentence, "the first one")
        return False

    def leave_out(self, passed: Passed) -> None:
        """Count what has no place here."""
        kind = self.findings.left_out.setdefault(passed.what, LeftOut())
        kind.add(shown_key(passed.name), passed.size_bytes)

    def _add_string(self, file: RdbFile, head: KeyHead, database: int, name: str) -> None:
        try:
            value = file.reader.string()
        except CutOffError:
            raise
        except PayloadError as error:
            sentence = damage_sentence(file, name, file.reader.offset, str(error))
            self._lose(sentence, "the other keys")
            return
        self._put_string(database, head, value)

    def _put_string(self, database: int, head: KeyHead, value: bytes) -> None:
        meta = with_expiry({"value": value}, head.expires_ms)
        self._writer.add(Captured(database, head.name, "string", meta, []))
        self.findings.totals.strings += 1

    def _add_stream(self, file: RdbFile, head: KeyHead, database: int, name: str) -> None:
        self._incarnation += 1
        reading = StreamReader(
            file.reader, head.kind, self._incarnation, self._now_ms, self._take_blocks
        )
        if self._with_digests:
            self._digest = new_digest()
        try:
            stream = whole(reading.read())
        except CutOffError:
            raise
        except PayloadError as error:
            self._drop_open()
            sentence = damage_sentence(file, name, reading.fault_offset, str(error))
            self._lose(sentence, "the other keys")
            return
        self._count(stream, reading.adjusted)
        self._digest_blocks(list(stream.blocks()))
        self._describe(stream, reading.first_id, head, database, self._digest.hexdigest())
        self._put_stream(database, head, stream)

    def _put_stream(self, database: int, head: KeyHead, stream: Stream) -> None:
        if self._is_open:
            self._is_open = False
            meta, blocks = dump_stream(stream, shared=True)
            self._writer.add_blocks(blocks)
            self._writer.end_key(database, head.name, "stream", with_expiry(meta, head.expires_ms))
        elif self._batch.add(database, head.name, stream, head.expires_ms):
            if self._batch.is_full:
                self._end_batch()
        else:
            self._writer.add(captured_stream(database, head.name, stream, head.expires_ms))

    def _end_batch(self) -> None:
        if self._batch.keys:
            self._writer.add(self._batch)
            self._batch = SmallStreams(_BATCH_BYTES)

    def _take_blocks(self, blocks: list[Block]) -> None:
        """Write the first blocks of a stream that is being read."""
        if not self._is_open:
            self._is_open = True
            self._writer.begin_key()
        self._writer.add_blocks(blocks)
        self._digest_blocks(blocks)

    def _drop_open(self) -> None:
        """Forget the blocks of a stream that does not load."""
        if self._is_open:
            self._is_open = False
            self._writer.drop_key()

    def _digest_blocks(self, blocks: list[Block]) -> None:
        if self._with_digests:
            for block in blocks:
                self._digest.update(digest_form(block))

    # ------------------------------------------------------------ findings

    def _count(self, stream: Stream, adjusted: Adjusted) -> None:
        totals = self.findings.totals
        totals.streams += 1
        totals.entries += stream.length
        for group in stream.groups.values():
            totals.groups += 1
            totals.consumers += len(group.pending.consumers)
            totals.pending += group.pending.count
        self.findings.adjusted.add(adjusted)

    def _describe(
        self, stream: Stream, first_id: tuple[int, int], head: KeyHead, database: int, digest: str
    ) -> None:
        groups = stream.groups.values()
        window = stream.idempotence
        facts = {
            "db": database,
            "key": shown_key(head.name),
            "length": stream.length,
            "first_id": id_text(first_id if stream.length else (0, 0)),
            "last_id": id_text(stream.last_id),
            "entries_added": stream.entries_added,
            "max_deleted_id": id_text(stream.max_deleted_id),
            "groups": len(groups),
            "consumers": sum(len(group.pending.consumers) for group in groups),
            "pending": sum(group.pending.count for group in groups),
            "producers": 0 if window is None else len(window.producers),
            "expiry": head.expires_ms,
        }
        if self._with_digests:
            facts["entries_digest"] = digest
            facts["groups_digest"] = groups_digest(map(group_row, groups))
        self._tell_stream(facts)

    def finish(self) -> None:
        """Write the end of the base."""
        self._end_batch()
        self.findings.notes += map(no_match, self._keys.unmatched)
        meta: dict[str, Any] = {"incarnation": self._incarnation, "steady_ms": self._now_ms}
        # The commands after a position fit all of its data, and nothing else.
        is_whole = self._wanted.is_everything and not self.findings.lost
        if self._source is not None and self._sources == 1 and is_whole:
            meta["source"] = self._source._asdict()
        if not self._has_consumer_times:
            meta[WITHOUT_CONSUMER_TIMES] = True
        self._writer.finish(meta)


class _Damage(Exception):
    """Something is wrong with a file whose values all load."""


def shown_key(key: bytes) -> str:
    """A key in a report: one that is not UTF-8 has `\\x` escapes, and its backslashes doubled."""
    try:
        return key.decode()
    except UnicodeDecodeError:
        doubled = key.replace(b"\\", b"\\\\")
        return doubled.decode("utf-8", "backslashreplace")


def no_match(pattern: bytes) -> str:
    """The sentence about a pattern that has matched no key."""
    return f"no key matches --key {printable(readable(pattern))}"


def keys_of(text: str) -> list[bytes]:
    """The keys that a report shows as this text: one or two."""
    key = text.encode()
    unescaped = _ESCAPE.sub(_unescape, key)
    return [one for one in dict.fromkeys((key, unescaped)) if shown_key(one) == text]


def _unescape(found: re.Match[bytes]) -> bytes:
    return b"\\" if found[1] is None else bytes.fromhex(found[1].decode())


def _shown(head: KeyHead) -> str:
    return f'key "{printable(readable(head.name))}" of database {head.database}'


def id_text(entry_id: tuple[int, int]) -> str:
    return f"{entry_id[0]}-{entry_id[1]}"


def _number(word: bytes) -> int:
    try:
        number = int(word)
    except ValueError:
        return 0
    return number if 0 <= number < 2**63 else 0


def database_missing(name: str, number: int, databases_count: int) -> str:
    """The sentence about keys in a database that a server does not have."""
    return (
        f"{name} has keys in database {number}, and a server has {databases_count} (the directive"
        f" `databases`): --db {number}:0 imports that one into database 0"
    )


def damage_sentence(file: RdbFile, name: str, offset: int, reason: str) -> str:
    """A damage in words."""
    where = f", in {_shown(file.key)}" if file.key is not None else ""
    keys = (
        "1 key before it is whole"
        if file.keys_read == 1
        else (f"{file.keys_read} keys before it are whole")
    )
    return f"{name} is damaged at offset {offset}{where}: {reason}; {keys}"
