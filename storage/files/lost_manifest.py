"""The manifest that follows from the other files, when it is lost; and the owner of each file."""

from __future__ import annotations

from collections.abc import Set

from millstream.errors import DataError
from millstream.storage.files.damaged_base import open_base
from millstream.storage.files.disk import Disk
from millstream.storage.files.journal_format import readable_owner
from millstream.storage.files.journal_reader import frame_numbers
from millstream.storage.files.manifest import Manifest, is_base, is_journal, is_owned, number_of


def guess_manifest(disk: Disk, without: Set[str] = frozenset()) -> Manifest:
    """The manifest that follows unambiguously from the files; DataError when it is ambiguous.
    `without` are files that belong to another directory.

    The newest base is the current one, because a base gets its name only when it is finished. The
    journals are those that continue after the base, each from the end of the one before. A journal
    whose frames are all in the base was replaced by it.
    """
    names = [name for name in disk.names() if name not in without]
    numbers = {number_of(name): name for name in names if is_journal(name)}
    bases = [name for name in names if is_base(name)]
    base = max(bases, key=number_of, default=None)
    due, least = 1, 0
    if base is not None:
        due, least = _seq_of(disk, base) + 1, number_of(base)
    journals: list[str] = []
    for number, name in sorted(numbers.items()):
        first, last = _frames_of(disk, name)
        if first is None:  # named before its first frame was written
            journals += [name] if number >= least else []
        elif last >= due:
            if first != due:
                raise DataError(
                    f"{name} begins with frame {first}, not {due}: it is unknown which files belong"
                    " together"
                )
            journals.append(name)
            due = last + 1
    highest = max([*numbers, *map(number_of, bases)], default=0)
    directory, since = _identity_of(disk, [*([base] if base else []), *journals])
    return Manifest(base, tuple(journals), highest + 1, directory, since)


def _identity_of(disk: Disk, names: list[str]) -> tuple[bytes, int]:
    """The ID of these files, and the number below which files are older than the ID."""
    found = {name: directory_of(disk, name) for name in names}
    directories = {directory for directory in found.values() if directory}
    if len(directories) > 1:
        raise DataError(f"{', '.join(found)} are of different data directories")
    if not directories:
        return b"", 0
    old = [number_of(name) + 1 for name, directory in found.items() if directory == b""]
    return directories.pop(), max(old, default=0)


def directory_of(disk: Disk, name: str) -> bytes | None:
    """The ID of the directory that a base or journal belongs to: b"" for version 1, which had no
    ID; None if the file is too damaged."""
    file = disk.read(name)
    try:
        if is_base(name):
            return open_base(file).reader.summary.directory
        return readable_owner(file)
    except DataError:
        return None
    finally:
        file.close()


def misplaced(disk: Disk, manifest: Manifest) -> list[str]:
    """The files named by a manifest that belong to another data directory."""
    names = disk.names()
    found = []
    for name in manifest.files:
        directory = directory_of(disk, name) if name in names else None
        if directory is not None and not is_owned(manifest, name, directory):
            found.append(name)
    return found


def _seq_of(disk: Disk, base: str) -> int:
    file = disk.read(base)
    try:
        return open_base(file).reader.summary.seq
    finally:
        file.close()


def _frames_of(disk: Disk, name: str) -> tuple[int | None, int]:
    """The numbers of a journal's first frame and of the last frame before any gap."""
    file = disk.read(name)
    try:
        return frame_numbers(file)
    finally:
        file.close()
