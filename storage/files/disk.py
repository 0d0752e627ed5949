"""The only module that opens files.

Persistence accesses a data directory only through a `Disk`. Tests replace it with one that loses
unsynced writes, tears them, or fails. Names are plain file names in one directory. Files are
append-only, which is all that journals and snapshots need and makes crashes easy to reason about.

Durability: bytes are durable after `File.sync()`; names (created, renamed, removed) are durable
after `Disk.sync_directory()`.
"""

import contextlib
import errno
import fcntl
import os
import signal
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

from millstream.errors import DataError
from millstream.storage.files.file_space import allocate, begin_writing
from millstream.storage.files.lock_guard import LOCKED, LockGuard, this_process

_SHRINK_STEP_BYTES = 256 << 10

Bytes = bytes | bytearray | memoryview


def write_all(descriptor: int, data: Bytes) -> None:
    """Write to a descriptor that may take less at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class File(Protocol):
    """An open file. `size` is its length in bytes; space is reserved up to `reserved_end`. Every
    method may raise OSError."""

    name: str
    size: int
    reserved_end: int

    def write(self, data: Bytes) -> None:
        """Append all of `data`. After an error the file contains an unknown part of it."""

    def sync(self) -> None:
        """Return when everything written is on the disk (fdatasync)."""

    def begin_sync(self) -> None:
        """Start writing data to the disk without waiting, so that a later `sync` takes less
        time."""

    def reserve(self, end: int) -> None:
        """Reserve space up to offset `end`; the size does not change. ENOSPC if there is none."""

    def read_at(self, offset: int, length: int) -> bytes:
        """`length` bytes from `offset`; fewer at the end of the file."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes and release reserved space."""

    def close(self) -> None:
        """Close the file without a sync. May be called twice."""


class Disk(Protocol):
    """One data directory. Every method may raise OSError."""

    directory: Path

    def lock(self) -> None:
        """Lock the directory for this process; create it if it does not exist.

        DataError when another server has locked it or it cannot be used.
        """

    def unlock(self) -> None: ...

    @property
    def lock_doubt(self) -> str:
        """The reason why the file system cannot lock the directory; empty if it is locked."""

    def holds(self, name: str) -> bool:
        """True if the path is still the locked directory and contains a file of this name."""

    def names(self) -> list[str]:
        """All file names in the directory, sorted."""

    def create(self, name: str) -> File:
        """A new empty file for appending; an existing file of that name is truncated."""

    def append(self, name: str) -> File:
        """An existing file, for appending and reading."""

    def read(self, name: str) -> File:
        """An existing file, for reading."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing any file with the new name."""

    def remove(self, name: str) -> None: ...

    def sync_directory(self) -> None:
        """Return when all creations, renames and removals so far are on the disk."""

    def hold_space(self, size_bytes: int) -> None:
        """Reserve space that no file uses, until `release_space` or the end of the process."""

    def release_space(self) -> None: ...

    def random(self, size: int) -> bytes:
        """Unpredictable bytes, for the IDs and salts of files."""

    def keep(self, names: Sequence[str], folder: str, written: Collection[str] = ()) -> None:
        """Copy these files durably into a new folder of the directory. It has all of them or does
        not exist.

        The copies are hard links where possible. The originals may be removed and renamed
        afterwards, but not written, except those in `written`.
        """

    def remove_kept(self, folder: str) -> None:
        """Remove a folder that `keep` made."""


def size_of(disk: Disk, name: str) -> int:
    """The size of a file in bytes."""
    file = disk.read(name)
    try:
        return file.size
    finally:
        file.close()


def unusable(directory: Path, error: OSError) -> DataError:
    """The error for a directory that cannot be opened."""
    return DataError(f"cannot use the data directory {directory}: {error.strerror}")


def make_directory(directory: Path) -> None:
    """Create a directory and its missing parents durably: each new name is synced in its parent
    directory, if the parent is readable. OSError when that fails."""
    missing = [directory]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        # A directory may be writable but not readable. Linux requires read permission to sync it.
        with contextlib.suppress(PermissionError):
            _sync_path(path.parent)


def _sync_path(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


_fdatasync = getattr(os, "fdatasync", os.fsync)
_CANNOT_LOCK = {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}
_CANNOT_RESERVE = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}


class SystemFile:
    """A file of the operating system, with one descriptor."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.name = path.name
        self._path = path
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.reserved_end = 0

    @property
    def descriptor(self) -> int:
        """For another process."""
        return self._descriptor

    def write(self, data: Bytes) -> None:
        try:
            written = os.write(self._descriptor, data)
            self.size += written
            while written < len(data):
                count = os.write(self._descriptor, memoryview(data)[written:])
                self.size += count
                written += count
        except OSError as error:
            raise self._named(error) from None

    def sync(self) -> None:
        try:
            _fdatasync(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def begin_sync(self) -> None:
        begin_writing(self._descriptor)

    def reserve(self, end: int) -> None:
        if end <= self.size:
            return
        number = allocate(self._descriptor, self.size, end - self.size)
        if number and number not in _CANNOT_RESERVE:  # the file system may not support it
            raise OSError(number, os.strerror(number), str(self._path))
        self.reserved_end = max(self.reserved_end, end)

    def read_at(self, offset: int, length: int) -> bytes:
        try:
            return self._read_at(offset, length)
        except OSError as error:
            raise self._named(error) from None

    def _named(self, error: OSError) -> OSError:
        """The error with the file's path, which errors of calls on descriptors lack."""
        return OSError(error.errno, error.strerror, str(self._path))

    def _read_at(self, offset: int, length: int) -> bytes:
        data = os.pread(self._descriptor, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]
        have = len(data)
        while have < length:  # Linux reads at most 2 GiB per call
            data = os.pread(self._descriptor, length - have, offset + have)
            if not data:
                break
            parts.append(data)
            have += len(data)
        return b"".join(parts)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self.size = self.reserved_end = size

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


def _is_unused(descriptor: int) -> bool:
    """True if a file has no name and no other process has it open: the kernel grants a write lease
    only then.

    The lease is returned immediately. If a process opened the file through /proc meanwhile, the
    kernel would send SIGIO, which would terminate this process; SIGURG is ignored.
    """
    if sys.platform != "linux" or os.fstat(descriptor).st_nlink:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # another process has it open, or the file system has no leases
        return False
    return True


def _shrink(descriptor: int) -> None:
    """Free a file's space in small steps. If the kernel freed 50 MB in one step, processes on the
    same processor would wait some 10 ms."""
    size = os.fstat(descriptor).st_size
    with contextlib.suppress(OSError):  # closing the descriptor frees the rest
        for end in range(size - _SHRINK_STEP_BYTES, 0, -_SHRINK_STEP_BYTES):
            os.ftruncate(descriptor, end)


class SystemDisk:
    """A directory of the operating system.

    `lock` locks the directory itself, because a lock file could be removed while a server runs. It
    also locks a file, because network file systems do not lock directories. The text of the file
    names the owner.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._locks: list[int] = []
        self._is_locked = False
        self._guard: LockGuard | None = None
        self._lock_error = ""
        self._identity: tuple[int, int] | None = None
        self._held = -1  # a file without a name, which has the reserved space

    def lock(self) -> None:
        other = "another server"
        try:
            self._make_directory()
            itself = self._lock_directory(
                fcntl.LOCK_EX, other, "or give this one another directory"
            )
            file = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._take(file, fcntl.LOCK_EX, other, "or give this one another directory")
            status = os.fstat(itself)
            self._guard_unlocked(takes=True)
        except OSError as error:
            self.unlock()
            raise unusable(self.directory, error) from None
        except DataError:
            self.unlock()
            raise
        self._identity = status.st_dev, status.st_ino
        if self._guard is not None:
            return
        with contextlib.suppress(OSError):  # a full disk can still be read
            os.ftruncate(file, 0)
            os.pwrite(file, this_process().encode(0, LOCKED), 0)

    def _make_directory(self) -> None:
        if not self.directory.is_dir():
            make_directory(self.directory)
            return
        # A killed process may have created the directory without syncing its name.
        with contextlib.suppress(OSError):  # the parent may be unreadable for this user
            _sync_path(self.directory.parent)

    def lock_for(self, purpose: str, *, alone: bool) -> None:
        """Lock an existing directory against servers, without writing anything.

        `alone` locks it against other programs, too. DataError when a server has the directory;
        `purpose` ends the sentence "stop it first, or ...".
        """
        operation = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
        try:
            self._lock_directory(operation, "a server", purpose)
            with contextlib.suppress(FileNotFoundError, PermissionError):
                # Network file systems lock a file exclusively only for a descriptor that may write.
                access = os.O_RDWR if alone else os.O_RDONLY
                file = os.open(self.directory / "lock", access | os.O_CLOEXEC)
                self._take(file, operation, "a server", purpose)
            self._guard_unlocked(takes=alone)
        except OSError as error:
            self.unlock()
            raise unusable(self.directory, error) from None
        except DataError:
            self.unlock()
            raise

    def _lock_directory(self, operation: int, holder: str, otherwise: str) -> int:
        itself = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._take(itself, operation, holder, otherwise)
        return itself

    def _take(self, descriptor: int, operation: int, holder: str, otherwise: str) -> None:
        self._locks.append(descriptor)
        try:
            fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
            self._is_locked = True
        except BlockingIOError:
            raise DataError(
                f"the data directory {self.directory} is used by {holder} (process"
                f" {self._holder()}); stop that one, {otherwise}"
            ) from None
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
            self._lock_error = error.strerror or str(error)

    @property
    def lock_doubt(self) -> str:
        return "" if self._guard is None else self._lock_error

    def _guard_unlocked(self, *, takes: bool) -> None:
        """If the file system cannot lock: use the lock file as a guard, or only check it. A lock
        does not replace the check: another process may have begun when locking failed. DataError
        when another process uses the directory."""
        guard = LockGuard(self.directory / "lock")
        if self._is_locked or not takes:
            guard.check()
            return
        self._guard = guard
        guard.take()

    def _holder(self) -> str:
        try:
            return (self.directory / "lock").read_text("ascii").split("\n")[0] or "unknown"
        except (OSError, ValueError):
            return "unknown"

    def unlock(self) -> None:
        self._is_locked = False
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.release()
        while self._locks:
            os.close(self._locks.pop())

    def holds(self, name: str) -> bool:
        try:
            status = os.stat(self.directory)
            os.stat(self.directory / name)
        except FileNotFoundError:
            return False
        except OSError:  # unknown: reading or writing will report it
            return True
        return (status.st_dev, status.st_ino) == self._identity

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))

    def create(self, name: str) -> SystemFile:
        return self._open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)

    def append(self, name: str) -> SystemFile:
        return self._open(name, os.O_RDWR | os.O_APPEND)

    def read(self, name: str) -> SystemFile:
        return self._open(name, os.O_RDONLY | os.O_NONBLOCK)  # it may be a pipe without a writer

    def rename(self, old: str, new: str) -> None:
        os.rename(self.directory / old, self.directory / new)

    def remove(self, name: str) -> None:
        path = self.directory / name
        descriptor = -1
        with contextlib.suppress(OSError):  # it can be removed anyway
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.unlink(path)
            if descriptor >= 0 and _is_unused(descriptor):
                _shrink(descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def sync_directory(self) -> None:
        _sync_path(self.directory)

    def hold_space(self, size_bytes: int) -> None:
        self.release_space()
        flags = os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC
        descriptor = os.open(self.directory, flags, 0o600)
        number = allocate(descriptor, 0, size_bytes)
        if number:
            os.close(descriptor)
            raise OSError(number, os.strerror(number), str(self.directory))
        self._held = descriptor

    def release_space(self) -> None:
        descriptor, self._held = self._held, -1
        if descriptor >= 0:
            os.close(descriptor)

    def random(self, size: int) -> bytes:
        return os.urandom(size)

    def keep(self, names: Sequence[str], folder: str, written: Collection[str] = ()) -> None:
        from shutil import rmtree

        kept = self.directory / (folder + ".tmp")
        rmtree(kept, ignore_errors=True)
        kept.mkdir()
        try:
            for name in names:
                self._keep_one(self.directory / name, kept / name, name not in written)
            SystemDisk(kept).sync_directory()
            kept.rename(self.directory / folder)
            self.sync_directory()
        except OSError:
            rmtree(kept, ignore_errors=True)
            raise

    def _keep_one(self, source: Path, target: Path, may_link: bool) -> None:
        if may_link:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(source, target)
                return
        self._copy(source, target)

    def remove_kept(self, folder: str) -> None:
        from shutil import rmtree

        rmtree(self.directory / folder)

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        from shutil import copyfile

        copyfile(source, target)
        with target.open("rb") as file:
            os.fsync(file.fileno())

    def _open(self, name: str, flags: int) -> SystemFile:
        path = self.directory / name
        return SystemFile(path, os.open(path, flags | os.O_CLOEXEC, 0o644))
