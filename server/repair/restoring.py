"""Makes a new data directory with the state of an earlier moment: the base, and the frames after it
up to that moment.

The old directory is only read, so a server may be using it. The new one gets copies of the files,
the last journal cut after the frame; the manifest is written last. A moment is a frame, which is
included, or a time: everything up to the first frame that is later. Frames are ordered by their
numbers, so a clock that went back does not change what "later" means; the result says so. A moment
may also be given as an effect: everything before the last run of frames that have it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from millstream.errors import DamageError, DataError, counted
from millstream.server.repair.destination import Destination, Unusable
from millstream.server.repair.frames import (
    DataInUse,
    Moment,
    Place,
    Run,
    last_run,
    open_data,
    read_frames,
)
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.frame_times import time_of
from millstream.storage.files.journal_format import read_head
from millstream.storage.files.journal_reader import Gap, JournalReader
from millstream.storage.files.manifest import Manifest, store_manifest

_COPY_BYTES = 1 << 20
_RECORDED_AS_DEL = (b"UNLINK", b"GETDEL", b"EXPIRE")


class Wanted(NamedTuple):
    """The moment, or the effect before which to stop: on keys that match a pattern, in a
    database."""

    moment: Moment
    effect: bytes | None = None
    pattern: bytes | None = None
    database: int | None = None


@dataclass
class Restored:
    """The result: the last frame that is kept, and the frames and entries after it."""

    last: int
    last_time_s: int | None
    frames_left_out: int = 0
    entries_left_out: int = 0
    first_left_out_s: int | None = None
    last_left_out_s: int | None = None
    went_back: int | None = None  # a later frame with an earlier time
    unreadable: bool = False  # more frames may follow that cannot be read
    effect: str | None = None  # with --before
    run: Run | None = None


class _Cut(NamedTuple):
    """The last frame to keep: the end of it in a journal, counted from 0. -1: the base's last."""

    number: int
    time_s: int | None
    journal: int
    offset: int


def shown_time(time_s: int | None) -> str:
    """A time as it can be given to --until, in local time."""
    if time_s is None:
        return "unknown time"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time_s))


def restore(disk: Disk, target: Path, wanted: Wanted) -> Restored:
    """Write the state of `disk` at the wanted moment to the new directory `target`. DataError,
    without any new file, if that is not possible."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise DataError(f"{target} is not an empty directory: name a new one")
    if disk.directory.resolve() in (target.resolve(), *target.resolve().parents):
        raise DataError(f"{target} is inside of {disk.directory}: name a directory elsewhere")
    with open_data(disk) as data:
        cut, run = _find(data, wanted)
        _copy(data, cut, target)
        result = _count_rest(data, cut, wanted)
    if wanted.effect is not None:
        result.effect, result.run = wanted.effect.decode("utf-8", "replace"), run
    return result


# ---------------------------------------------------------------- finding the last frame


def _find(data: DataInUse, wanted: Wanted) -> tuple[_Cut, Run | None]:
    if wanted.effect is not None:
        run = _run_of_effect(data, wanted.effect, wanted)
        return _find_frame(data, run.first - 1), run
    if wanted.moment.number is not None:
        return _find_frame(data, wanted.moment.number), None
    assert wanted.moment.time_s is not None
    return _find_time(data, wanted.moment.time_s), None


def _run_of_effect(data: DataInUse, effect: bytes, wanted: Wanted) -> Run:
    run = last_run(data, effect, Place(wanted.pattern, wanted.database))
    if run is None:
        on = "" if wanted.pattern is None else " on such a key"
        on += "" if wanted.database is None else f" in database {wanted.database}"
        name = effect.decode("utf-8", "replace")
        hint = f" (the effect of {name} is DEL)" if effect in _RECORDED_AS_DEL else ""
        raise DataError(f"no frame has the effect {name}{on}{hint}; {_earliest(data)}")
    return run


def _earliest(data: DataInUse) -> str:
    if data.base is None:
        return "the journal has every frame from the first one on"
    return (
        f"the earliest moment in these files is frame {data.base_seq}"
        f" ({shown_time(data.base_time_s)}), that of {data.manifest.base}: a rewrite or a snapshot"
        " removed the frames before it; look for a backup that is older"
    )


def _frames(data: DataInUse) -> Iterator[_Cut]:
    """Every frame, as a place to cut after it. DamageError at the first one that cannot be read."""
    reader = JournalReader(data.journals, data.base_seq + 1)
    places = {file.name: index for index, file in enumerate(data.journals)}
    sizes = {file.name: read_head(file).format.frame_size for file in data.journals}
    time_s: int | None = None
    try:
        for file, offset, payload in reader.frames():
            time_s = time_of(payload) or time_s
            end = offset + sizes[file.name] + len(payload)
            yield _Cut(reader.next_seq, time_s, places[file.name], end)
    except DamageError as damage:
        raise DataError(
            f"{damage.file} is damaged at offset {damage.offset}, before the wanted moment"
            f" ({damage.reason}): repair a copy of the directory first, with check --repair"
        ) from damage


def _start(data: DataInUse) -> _Cut:
    time_s = data.base_time_s if data.base is not None else None
    return _Cut(data.base_seq, time_s, -1, 0)


def _find_frame(data: DataInUse, number: int) -> _Cut:
    cut = _start(data)
    if number < data.base_seq:
        raise DataError(f"frame {number} is not in these files; {_earliest(data)}")
    if number == data.base_seq:
        return cut
    for cut in _frames(data):
        if cut.number == number:
            return cut
    raise DataError(
        f"frame {number} does not exist: the last one is {cut.number} ({shown_time(cut.time_s)})"
    )


def _find_time(data: DataInUse, time_s: int) -> _Cut:
    cut = _start(data)
    if data.base is not None and time_s < data.base_time_s:
        raise DataError(f"{shown_time(time_s)} is not in these files; {_earliest(data)}")
    for following in _frames(data):
        if following.time_s is not None and following.time_s > time_s:
            if cut.journal >= 0 and cut.time_s is None:
                raise DataError(
                    f"the frames up to {cut.number} have no times, because an earlier version wrote"
                    " them: give the number of a frame"
                )
            return cut
        cut = following
    if cut.journal >= 0 and cut.time_s is None:
        raise DataError("these frames have no times: give the number of a frame")
    return cut


# ---------------------------------------------------------------- writing the new directory


def _copy(data: DataInUse, cut: _Cut, target: Path) -> None:
    try:
        destination = Destination(target)
        with destination.discarded_on_error():
            _copy_files(data, cut, destination.disk)
            destination.publish()
    except Unusable as problem:
        raise DataError(str(problem)) from None


def _copy_files(data: DataInUse, cut: _Cut, disk: Disk) -> None:
    """Copy the base and the journals up to the cut; the manifest comes last."""
    journals = data.journals[: cut.journal + 1]
    if data.base is not None:
        _copy_file(data.base, data.base.size, disk)
    for file in journals:
        _copy_file(file, cut.offset if file is journals[-1] else file.size, disk)
    old = data.manifest
    names = tuple(file.name for file in journals)
    manifest = Manifest(old.base, names, old.next_number, old.directory, old.since, old.replaced)
    store_manifest(disk, manifest)


def _copy_file(source: File, size_bytes: int, disk: Disk) -> None:
    file = disk.create(source.name)
    try:
        for offset in range(0, size_bytes, _COPY_BYTES):
            file.write(source.read_at(offset, min(_COPY_BYTES, size_bytes - offset)))
        file.sync()
    finally:
        file.close()


# ---------------------------------------------------------------- what is left out


def _count_rest(data: DataInUse, cut: _Cut, wanted: Wanted) -> Restored:
    result = Restored(cut.number, cut.time_s)
    limit_s = wanted.moment.time_s
    for one in read_frames(data):
        if isinstance(one, Gap):
            result.unreadable = True
            continue
        if one.number <= cut.number:
            continue
        if not result.frames_left_out:
            result.first_left_out_s = one.time_s
        result.frames_left_out += 1
        result.entries_left_out += one.added
        result.last_left_out_s = one.time_s
        if limit_s is not None and one.time_s is not None and one.time_s <= limit_s:
            result.went_back = result.went_back or one.number
    return result


def sentences(result: Restored) -> list[str]:
    """The result in words."""
    kept = f"kept: everything up to frame {result.last} ({shown_time(result.last_time_s)})"
    if not result.frames_left_out:
        lines = [kept, "left out: nothing"]
    else:
        lines = [
            kept,
            f"left out: {counted(result.frames_left_out, 'frame')} with"
            f" {counted(result.entries_left_out, 'added entry')}, from"
            f" {shown_time(result.first_left_out_s)} to {shown_time(result.last_left_out_s)}",
        ]
    if result.run is not None:
        lines += _sentences_about(result.run, str(result.effect))
    if result.went_back is not None:
        lines.append(
            f"the clock went back: frame {result.went_back}, which is left out, has an earlier time"
            " than frames before it; to keep it, give the number of a frame"
        )
    if result.unreadable:
        lines.append("frames after that cannot be read: a torn end, a write in progress, or damage")
    return lines


def _sentences_about(run: Run, effect: str) -> list[str]:
    lines = []
    if run.first != run.last:
        lines.append(
            f"{effect} is in {counted(run.frames, 'frame')} of the run from {run.first} to"
            f" {run.last}, all of which are left out"
        )
    if run.before is not None:
        lines.append(
            f"warning: frame {run.before} begins an earlier run with {effect}, which is kept; if"
            f" that was the mistake, use --until {run.before - 1} with another new directory"
        )
    return lines


def sentence_about_contents(target: Path, keys: int, entries: int) -> str:
    """The number of keys and entries in the new directory; a warning if there are none."""
    if not keys:
        return f"warning: {target} is empty: no key existed at that moment"
    return f"{target} has {counted(keys, 'key')} with {counted(entries, 'entry')}"
