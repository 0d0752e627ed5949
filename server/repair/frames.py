"""The frames in the journals of a data directory: numbers, times, effects and keys.

Nothing is written and no lock is taken, so a server may be using the directory. The files are
opened together, one frame is in memory at a time, and damaged places are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from millstream.commands.runtime.effects import EffectError, split_effects
from millstream.errors import DamageError, DataError
from millstream.glob import matcher
from millstream.storage.files.damaged_base import open_base
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.frame_times import TIME, time_of
from millstream.storage.files.journal_reader import Gap, surviving_frames
from millstream.storage.files.manifest import Manifest, load_manifest, read_manifest
from millstream.storage.files.snapshot_reader import SnapshotEnds

ADDING = (b"APPEND", b"APPENDONCE", b"COMPLETE")  # the effects that add an entry
_OF_A_DATABASE = (b"FLUSHDB",)
_OF_ALL = (b"FLUSHALL", b"SWAPDB")  # they change any key
_WITHOUT_KEY = (TIME, b"HISTORY", b"CLOCK", *_OF_A_DATABASE, *_OF_ALL)
_TRIES = 5

Key = tuple[int, bytes]


@dataclass(frozen=True)
class DataInUse:
    """The open files of a directory. The base has the frames up to `base_seq` and was written at
    `base_time_s`; without a base both are 0."""

    manifest: Manifest
    base: File | None
    journals: list[File]
    base_seq: int = 0
    base_time_s: int = 0


@contextmanager
def open_data(disk: Disk) -> Iterator[DataInUse]:
    """Open the files that the manifest names. DataError if there are none. If a server replaces
    files meanwhile, the opening is repeated."""
    with ExitStack() as stack:
        yield _open_again(disk, stack)


def _open_again(disk: Disk, stack: ExitStack) -> DataInUse:
    for left in reversed(range(_TRIES)):
        manifest = read_manifest(disk)
        if manifest is None:
            raise DataError(f"{disk.directory} holds no data of a server")
        try:
            return _open(disk, manifest, stack)
        except FileNotFoundError:
            if not left or read_manifest(disk) == manifest:
                load_manifest(disk)  # its error names the missing file
                raise
    raise AssertionError("the last try returns or raises")


def _open(disk: Disk, manifest: Manifest, stack: ExitStack) -> DataInUse:
    files = []
    for name in manifest.files:
        files.append(disk.read(name))
        stack.callback(files[-1].close)
    if manifest.base is None:
        return DataInUse(manifest, None, files)
    base, *journals = files
    try:
        header = SnapshotEnds(base).read_header()
    except DamageError:
        header = open_base(base).reader.summary.header
    return DataInUse(manifest, base, journals, header.seq, header.created_ms // 1000)


@dataclass
class Frame:
    """One frame. `time_s` is the second in which it was made, None if it is not known. `effects`
    counts its effects by name; `added` is the number of entries that it adds."""

    number: int
    time_s: int | None
    file: str
    size_bytes: int
    effects: Counter[bytes] = field(default_factory=Counter)
    keys: dict[Key, None] = field(default_factory=dict)
    databases: dict[int, None] = field(default_factory=dict)  # that it changes as a whole
    changes_all: bool = False
    added: int = 0

    def changes(self, matches: Callable[[bytes], object]) -> bool:
        """True if the frame changes a key that matches."""
        return self.changes_all or bool(self.databases) or any(matches(key) for _, key in self.keys)


def read_frames(data: DataInUse) -> Iterator[Frame | Gap]:
    """Every readable frame, in order, and a Gap wherever frames cannot be read."""
    time_s: int | None = None
    for one in surviving_frames(data.journals, data.base_seq + 1):
        if isinstance(one, Gap):
            yield one
            continue
        file, number, payload = one
        time_s = time_of(payload) or time_s
        yield describe(Frame(number, time_s, file.name, len(payload)), payload)


def describe(frame: Frame, payload: bytes) -> Frame:
    """Add what the payload says. An effect of a later version is counted under its name."""
    with suppress(EffectError):  # the checksum fits, so another version has written it
        for db, words, _ in split_effects(payload):
            name = words[0]
            if name == TIME:
                continue
            frame.effects[name] += 1
            frame.added += name in ADDING
            for key in keys_of(db, words):
                frame.keys[key] = None
            if name in _OF_A_DATABASE:
                frame.databases[db] = None
            frame.changes_all = frame.changes_all or name in _OF_ALL
    return frame


def keys_of(db: int, words: list[bytes]) -> list[Key]:
    """The keys that an effect changes."""
    name = words[0]
    if name in _WITHOUT_KEY:
        return []
    if name == b"DEL":
        return [(db, key) for key in words[1:]]
    if name in (b"RENAME", b"COPY"):
        return [(db, words[1]), (int(words[2]), words[3])]
    return [(db, key) for key in words[1:2]]


@dataclass(frozen=True)
class Moment:
    """A frame's number, or a second of Unix time."""

    number: int | None = None
    time_s: int | None = None


@dataclass(frozen=True)
class Selection:
    """The frames to list: from and to a moment, both included, and those that change a key."""

    first: Moment = Moment()
    last: Moment = Moment()
    pattern: bytes | None = None

    def matches(self, frame: Frame, matches_key: Callable[[bytes], object] | None) -> bool:
        first, last = self.first, self.last
        if first.number is not None and frame.number < first.number:
            return False
        if last.number is not None and frame.number > last.number:
            return False
        if first.time_s is not None and (frame.time_s is None or frame.time_s < first.time_s):
            return False
        if last.time_s is not None and frame.time_s is not None and frame.time_s > last.time_s:
            return False
        return matches_key is None or frame.changes(matches_key)


def select_frames(data: DataInUse, selection: Selection) -> Iterator[Frame | Gap]:
    """The frames that match, and every Gap."""
    matches_key = None if selection.pattern is None else matcher(selection.pattern)
    for one in read_frames(data):
        if isinstance(one, Gap) or selection.matches(one, matches_key):
            yield one
