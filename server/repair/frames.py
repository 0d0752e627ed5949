"""The frames in the journals of a data directory: numbers, times, effects and keys.

Nothing is written and no lock is taken, so a server may be using the directory. The files are
opened together, one frame is in memory at a time, and damaged places are skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from millstream.commands.runtime.effects import KEYS, EffectError, keys_of, split_effects
from millstream.commands.table.loader import load_table
from millstream.errors import DamageError
from millstream.glob import matcher
from millstream.server.repair.check_report import ADDING
from millstream.server.repair.destination import without_data
from millstream.storage.files.damaged_base import open_base
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.frame_times import TIME, time_of
from millstream.storage.files.journal_reader import Gap, surviving_frames
from millstream.storage.files.manifest import Manifest, load_manifest, read_manifest
from millstream.storage.files.snapshot_reader import SnapshotEnds

_OF_A_DATABASE = (b"FLUSHDB",)
_OF_ALL = (b"FLUSHALL", b"SWAPDB")  # they change any key
FLUSHES = (*_OF_A_DATABASE, b"FLUSHALL")
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
    load_table()  # the effects state their keys
    with ExitStack() as stack:
        yield _open_again(disk, stack)


def _open_again(disk: Disk, stack: ExitStack) -> DataInUse:
    for left in reversed(range(_TRIES)):
        manifest = read_manifest(disk)
        if manifest is None:
            raise without_data(disk)
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


class Place:
    """The keys that match a pattern, in one database or in all; without a pattern, all keys."""

    def __init__(self, pattern: bytes | None = None, database: int | None = None) -> None:
        self._matches = None if pattern is None else matcher(pattern)
        self._database = database

    def has_database(self, number: int) -> bool:
        return self._database is None or self._database == number

    def has(self, key: Key) -> bool:
        return self.has_database(key[0]) and (self._matches is None or bool(self._matches(key[1])))


@dataclass
class Frame:
    """One frame. `time_s` is the second in which it was made, None if it is not known. `effects`
    counts its effects by name; `added` is the number of entries that it adds."""

    number: int
    time_s: int | None
    file: str
    size_bytes: int
    effects: Counter[bytes] = field(default_factory=Counter)
    keys: dict[Key, set[bytes]] = field(default_factory=dict)  # with the names of their effects
    databases: dict[int, None] = field(default_factory=dict)  # that it changes as a whole
    changes_all: bool = False
    added: int = 0

    def touches(self, place: Place) -> bool:
        """True if the frame changes anything in the place."""
        return (
            self.changes_all
            or any(place.has_database(db) for db in self.databases)
            or any(place.has(key) for key in self.keys)
        )

    def has(self, effect: bytes, place: Place) -> bool:
        """True if the frame has this effect on anything in the place."""
        if effect in _OF_A_DATABASE:
            return any(place.has_database(db) for db in self.databases)
        if effect == TIME or KEYS.get(effect) == ():
            return effect in self.effects
        return any(effect in names and place.has(key) for key, names in self.keys.items())


def read_frames(data: DataInUse) -> Iterator[Frame | Gap]:
    """Every readable frame, in order, and a Gap wherever frames cannot be read."""
    time_s: int | None = None
    for one in surviving_frames(data.journals, data.base_seq + 1):
        if isinstance(one, Gap):
            time_s = None  # the next time may be in the gap
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
            if name == TIME:  # it is in the payload, but is no effect on data
                continue
            frame.effects[name] += 1
            frame.added += name in ADDING
            for key in keys_of(db, words):
                frame.keys.setdefault(key, set()).add(name)
            if name in _OF_A_DATABASE:
                frame.databases[db] = None
            frame.changes_all = frame.changes_all or name in _OF_ALL
    return frame


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

    def matches(self, frame: Frame, place: Place | None) -> bool:
        first, last = self.first, self.last
        if first.number is not None and frame.number < first.number:
            return False
        if last.number is not None and frame.number > last.number:
            return False
        if first.time_s is not None and (frame.time_s is None or frame.time_s < first.time_s):
            return False
        if last.time_s is not None and frame.time_s is not None and frame.time_s > last.time_s:
            return False
        return place is None or frame.touches(place)


def select_frames(data: DataInUse, selection: Selection) -> Iterator[Frame | Gap]:
    """The frames that match, and every Gap."""
    place = None if selection.pattern is None else Place(selection.pattern)
    for one in read_frames(data):
        if isinstance(one, Gap) or selection.matches(one, place):
            yield one


class Run(NamedTuple):
    """Consecutive frames with an effect, not counting frames that change nothing in the place."""

    first: int
    last: int
    frames: int
    before: int | None = None  # the first frame of the run before this one


def last_run(data: DataInUse, effect: bytes, place: Place) -> Run | None:
    """The last run of frames with this effect.

    A flush continues a run of other flushes, because there is nothing between them to lose. A
    policy evicts in several frames; the frame that set it, if it comes directly before, is in the
    run, or the policy would evict the same entries again.
    """
    run: Run | None = None  # without `frames`, the current run does not have the effect
    earlier: int | None = None
    found: Run | None = None
    for one in read_frames(data):
        if isinstance(one, Gap) or not one.touches(place):
            continue
        has = one.has(effect, place)
        if not has and not _belongs(one, effect, place, begun=run is not None):
            run = None
            continue
        starts = run is None or (not has and b"POLICY" in one.effects and effect == b"EVICT")
        first = one.number if starts or run is None else run.first
        if starts:
            earlier = None if found is None else found.first
        count = has + (0 if starts or run is None else run.frames)
        run = Run(first, one.number, count, earlier)
        if has:
            found = run
    return found


def _belongs(frame: Frame, effect: bytes, place: Place, *, begun: bool) -> bool:
    """True if a frame without the effect does not end a run of it."""
    if effect in FLUSHES:
        return any(frame.has(flush, place) for flush in FLUSHES)
    if effect == b"POLICY":  # its evictions, after which the policy may have been removed again
        return begun and not frame.added and frame.has(b"EVICT", place)
    return effect == b"EVICT" and frame.has(b"POLICY", place)
