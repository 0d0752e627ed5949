"""Files of a data directory that its manifest does not name, and whether a start may remove them.

A start removes only files that are empty, that were never finished, or that the current base has
replaced. If a file contains more, a manifest once named it, and the current manifest is older than
the file. A file of another data directory, or of an unknown one, was copied into this directory;
its number proves nothing. Such files are never removed; the server does not start.

A crash between two steps of a snapshot is recognized as follows: files get their final names only
after `manifest.tmp`, which names them, is on the disk. A file that is named in `manifest.tmp` but
not in the manifest was never valid.

After a full sync the manifest says which files the data of another server has replaced. They may
have frames with higher numbers, and are removed nevertheless.

A manifest of version 1 has no ID, and every start chooses a new one. A file with an ID may then
come from an earlier start that was interrupted. This is the case if the file has a temporary name
and an unused number, or if such a manifest.tmp names it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from millstream.errors import DamageError, DataError, ForeignError
from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_format import HEADER_SIZE, readable_owner
from millstream.storage.files.journal_reader import frame_numbers, frame_numbers_so_far
from millstream.storage.files.manifest import (
    NAME,
    TEMPORARY,
    Manifest,
    check_owner,
    is_base,
    is_ours,
    is_owned,
    number_of,
)

if TYPE_CHECKING:
    from millstream.storage.files.snapshot_reader import SnapshotEnds

T = TypeVar("T")
Slices = Generator[None, None, T]


class Leftover:
    """A file that the manifest does not name. `holds` is the reason to keep it, "" if it can be
    removed. `is_foreign`: it belongs to another data directory."""

    def __init__(
        self,
        name: str,
        holds: str = "",
        is_foreign: bool = False,
    ) -> None:
        self.name = name
        self.holds = holds
        self.is_foreign = is_foreign

    @property
    def reason(self) -> str:
        """The fault of a file that must be kept; the text follows the file's name."""
        return self.holds if self.is_foreign else f"{self.holds} and {NAME} does not name it"

    def error(self) -> DamageError:
        """The error that prevents a start."""
        move = "move this file out of the directory"
        if self.is_foreign:
            return ForeignError(self.name, None, self.reason, move)
        return DamageError(
            self.name, None, self.reason, f"restore the manifest that names it, or {move}"
        )


def find_leftovers(disk: Disk, manifest: Manifest) -> list[Leftover]:
    """Every file with a name of ours that the manifest does not name. DamageError when the base
    cannot be read."""
    return [one for one in leftovers_in_slices(disk, manifest) if one is not None]


def leftovers_in_slices(disk: Disk, manifest: Manifest) -> Iterator[Leftover | None]:
    """Like `find_leftovers`, one by one, with None between two slices of a large file."""
    kept = {NAME, *manifest.files}
    names = [name for name in disk.names() if is_ours(name) and name not in kept]
    if not names:
        return
    judge = _Judge(disk, manifest)
    for name in names:
        yield (yield from judge.judge(name))


def remove_leftovers(disk: Disk, manifest: Manifest, removed: list[str]) -> Iterator[None]:
    """At start: remove leftovers, in slices; their names are added to `removed`. DamageError when
    one must be kept; then nothing is removed."""
    names: list[str] = []
    for one in leftovers_in_slices(disk, manifest):
        if one is None:
            yield
            continue
        if one.holds:
            raise one.error()
        names.append(one.name)
    _remove(disk, names)
    removed += names


def _remove(disk: Disk, names: list[str]) -> None:
    for name in names:
        if name != TEMPORARY:
            disk.remove(name)
    if TEMPORARY in names:  # it identifies the other files, so it is removed last
        disk.sync_directory()
        disk.remove(TEMPORARY)


class _Judge:
    def __init__(self, disk: Disk, manifest: Manifest) -> None:
        self._disk = disk
        self._manifest = manifest
        self._base_seq = 0
        self._base_number = 0
        self._last_seq: int | None = None
        if manifest.base is not None and manifest.base in disk.names():
            self._base_seq = self._read(manifest.base, _seq_of_base)
            self._base_number = number_of(manifest.base)
        self._planned = self._read_planned()

    def judge(self, name: str) -> Slices[Leftover]:
        if name == TEMPORARY or self._read(name, _is_empty):
            return Leftover(name)
        directory = self._read(name, _owner_of)
        if directory is not None and not self._is_ours(name, directory):
            return Leftover(name, self._whose(name, directory), is_foreign=True)
        if name.endswith(".tmp") or name in self._planned.files:
            return Leftover(name)
        if directory is not None and number_of(name) < self._manifest.replaced:
            return Leftover(name)
        return Leftover(name, (yield from self._holds(name, directory)))

    def _is_ours(self, name: str, directory: bytes) -> bool:
        manifest = self._manifest
        if manifest.directory:
            return is_owned(manifest, name, directory)
        if not directory or directory == self._planned.directory:
            return True
        return name.endswith(".tmp") and number_of(name) >= manifest.next_number

    def _whose(self, name: str, directory: bytes) -> str:
        try:
            check_owner(self._manifest, name, directory)
        except ForeignError as error:
            return error.reason
        raise AssertionError("it is not ours")

    def _holds(self, name: str, directory: bytes | None) -> Slices[str]:
        if is_base(name):
            return (yield from self._base_holds(name))
        return (yield from self._journal_holds(name, directory))

    def _base_holds(self, name: str) -> Slices[str]:
        try:
            seq = self._read(name, _seq_of_base)
        except DataError:
            return "holds a snapshot that cannot be read"
        if seq <= self._base_seq or seq <= (yield from self._last_frame()):
            return ""
        return f"holds a snapshot up to frame {seq}"

    def _journal_holds(self, name: str, directory: bytes | None) -> Slices[str]:
        size, first, last = yield from self._frames(name)
        # The current base replaced it.
        is_older = directory is not None and number_of(name) < self._base_number
        if is_older and (first is None or last <= self._base_seq):
            return ""
        if first is None:
            return f"holds {size - HEADER_SIZE} bytes of frames that cannot be read"
        return f"holds frame {first}" if first == last else f"holds the frames {first} to {last}"

    def _last_frame(self) -> Slices[int]:
        """The last frame in the files that the manifest names."""
        if self._last_seq is None:
            self._last_seq = 0
            there = set(self._disk.names())
            for name in self._manifest.journals:
                if name in there:
                    _, _, last = yield from self._frames(name)
                    self._last_seq = max(self._last_seq, last)
        return self._last_seq

    def _frames(self, name: str) -> Slices[tuple[int, int | None, int]]:
        """(size, first frame, last frame without a gap after the first) of a journal."""
        found: tuple[int | None, int] = (None, 0)
        file = self._disk.read(name)
        try:
            for so_far in frame_numbers_so_far(file):
                found = so_far
                yield
            return (file.size, *found)
        finally:
            file.close()

    def _read_planned(self) -> Manifest:
        """The manifest in manifest.tmp; an empty manifest if there is none."""
        nothing = self._manifest._replace(base=None, journals=())
        if TEMPORARY not in self._disk.names():
            return nothing
        file = self._disk.read(TEMPORARY)
        try:
            planned = Manifest.from_bytes(file.read_at(0, file.size))
        except DataError:
            return nothing
        finally:
            file.close()
        return planned if self._would_follow(planned) else nothing

    def _would_follow(self, planned: Manifest) -> bool:
        """True if this directory's server wrote it to replace the manifest."""
        manifest = self._manifest
        if planned.next_number < manifest.next_number:
            return False
        if manifest.directory or not planned.directory:
            return planned.directory == manifest.directory
        return planned.since == manifest.next_number

    def _read(self, name: str, read: Callable[[File], T]) -> T:
        file = self._disk.read(name)
        try:
            return read(file)
        finally:
            file.close()


def _is_empty(file: File) -> bool:
    """True if a file is too short to contain more than a header."""
    if is_base(file.name.removesuffix(".tmp")):
        from millstream.storage.files.snapshot_format import OLD_HEADER_SIZE

        return file.size < OLD_HEADER_SIZE
    return file.size <= HEADER_SIZE and frame_numbers(file)[0] is None


def _owner_of(file: File) -> bytes | None:
    """The ID of the directory that a file belongs to: b"" for version 1, which had no ID; None if
    the file is damaged or has a later version."""
    if not is_base(file.name.removesuffix(".tmp")):
        return readable_owner(file)
    ends = _ends_of(file)
    with suppress(DataError):
        return ends.read_header().directory
    with suppress(DataError):
        return ends.read_summary().directory
    return None


def _seq_of_base(file: File) -> int:
    return _ends_of(file).read_header().seq


def _ends_of(base: File) -> SnapshotEnds:
    """Most starts find no unfinished base, and do not load this."""
    from millstream.storage.files.snapshot_reader import SnapshotEnds

    return SnapshotEnds(base)
