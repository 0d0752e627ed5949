"""What lies in a data directory beside the files that count: may a start remove it?

Only what is empty, what was never finished, and what the base that counts has replaced. A file that
holds more than that was named once: the manifest is older than the file, or another directory's
files were put here. Such a file is never removed; the server does not start.

How a crash between any two steps of a snapshot is told from that: files get their final names only
after `manifest.tmp`, which names them, is on the disk. What that file names, and the manifest does
not, never counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from millstream.errors import DamageError, DataError
from millstream.storage.disk import Disk, File
from millstream.storage.journal import HEADER_SIZE, frame_numbers
from millstream.storage.manifest import (
    NAME,
    TEMPORARY,
    Manifest,
    is_base,
    is_ours,
    number_of,
)
from millstream.storage.snapshot import OLD_HEADER_SIZE, SnapshotEnds

T = TypeVar("T")


@dataclass(frozen=True)
class Leftover:
    """A file that the manifest does not name; `holds` says why it must stay, "": it need not."""

    name: str
    holds: str = ""

    def error(self) -> DamageError:
        """What keeps the server from starting."""
        return DamageError(
            self.name,
            None,
            f"{self.holds} and {NAME} does not name it",
            "put back the manifest that names it, or move this file out of the directory",
        )


def find_leftovers(disk: Disk, manifest: Manifest) -> list[Leftover]:
    """Every file of our naming that does not count. DamageError: the base cannot be read."""
    kept = {NAME, *manifest.files}
    names = [name for name in disk.names() if is_ours(name) and name not in kept]
    if not names:
        return []
    judge = _Judge(disk, manifest)
    return [Leftover(name, judge.holds(name)) for name in names]


def remove_leftovers(disk: Disk, manifest: Manifest) -> list[str]:
    """At start: remove them; their names. DamageError when one must stay: nothing is removed."""
    found = find_leftovers(disk, manifest)
    for one in found:
        if one.holds:
            raise one.error()
    names = [one.name for one in found]
    for name in names:
        if name != TEMPORARY:
            disk.remove(name)
    if TEMPORARY in names:  # it tells what the others are: it goes when they are gone
        disk.sync_directory()
        disk.remove(TEMPORARY)
    return names


class _Judge:
    def __init__(self, disk: Disk, manifest: Manifest) -> None:
        self._disk = disk
        self._manifest = manifest
        self._base_seq = 0
        self._base_number = 0
        if manifest.base is not None and manifest.base in disk.names():
            self._base_seq = self._read(manifest.base, _seq_of_base)
            self._base_number = number_of(manifest.base)
        self._unpublished = self._read_unpublished()

    def holds(self, name: str) -> str:
        if name.endswith(".tmp") or name in self._unpublished:
            return ""
        return self._base_holds(name) if is_base(name) else self._journal_holds(name)

    def _base_holds(self, name: str) -> str:
        try:
            seq = self._read(name, _seq_of_base)
        except DataError:
            return "holds a snapshot that cannot be read" if self._is_newer(name) else ""
        if seq <= self._base_seq or seq <= self._last_frame():
            return ""
        return f"holds a snapshot up to frame {seq}"

    def _journal_holds(self, name: str) -> str:
        size, first, last = self._read(name, _frames)
        if size <= HEADER_SIZE and first is None:
            return ""
        if not self._is_newer(name) and (first is None or last <= self._base_seq):
            return ""
        if first is None:
            return f"holds {size - HEADER_SIZE} bytes of frames that cannot be read"
        return f"holds frame {first}" if first == last else f"holds the frames {first} to {last}"

    def _is_newer(self, name: str) -> bool:
        """Whether the base that counts cannot have replaced it."""
        return number_of(name) >= self._base_number

    def _last_frame(self) -> int:
        """The last frame in what counts."""
        there = set(self._disk.names())
        names = [name for name in self._manifest.journals if name in there]
        return max((self._read(name, _frames)[2] for name in names), default=0)

    def _read_unpublished(self) -> set[str]:
        """What a manifest names that was about to count."""
        if TEMPORARY not in self._disk.names():
            return set()
        file = self._disk.read(TEMPORARY)
        try:
            planned = Manifest.from_bytes(file.read_at(0, file.size))
        except DataError:
            return set()
        finally:
            file.close()
        if self._manifest.directory not in (planned.directory, b""):
            return set()
        if planned.next_number < self._manifest.next_number:
            return set()
        return set(planned.files)

    def _read(self, name: str, read: Callable[[File], T]) -> T:
        file = self._disk.read(name)
        try:
            return read(file)
        finally:
            file.close()


def _seq_of_base(file: File) -> int:
    if file.size < OLD_HEADER_SIZE:
        return 0  # nothing can be in it
    return SnapshotEnds(file).read_header().seq


def _frames(file: File) -> tuple[int, int | None, int]:
    """(size, first frame, last frame that follows it without a gap)."""
    return (file.size, *frame_numbers(file))
