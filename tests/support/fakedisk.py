"""A disk in memory that loses or tears unsynced writes, fails on request, and counts every
operation.

A file stores durable bytes separately from bytes written since the last sync. A crash keeps an
arbitrary prefix of the latter, in which arbitrary aligned 512-byte sectors are zeros, as on real
disks. Each creation, rename or removal since the last directory sync survives or is lost. A seed
decides all of this, so a failure can be replayed.

`crash_at = n` makes the n-th changing operation, and all later ones, raise Crashed: the machine is
off. `fail(...)` makes operations raise OSError instead.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millstream.errors import DataError
from millstream.storage.files.disk import Bytes

SECTOR = 512

Contents = tuple[tuple[str, bytes], ...]  # of a disk: the files by name


class Crashed(BaseException):
    """The machine is off. Not an Exception: nothing may handle it."""


@dataclass
class Inode:
    """A file's content: all of it, and the durable part."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    reserved: int = 0
    was_cut: bool = False  # truncated below the durable size since the last sync

    def sync(self) -> None:
        """Make the content durable. Only bytes appended since the last sync are copied, unless the
        file was truncated."""
        if self.was_cut:
            self.durable = bytearray(self.data)
            self.was_cut = False
        else:
            self.durable += self.data[len(self.durable) :]

    def truncate(self, size: int) -> None:
        self.was_cut = self.was_cut or size < len(self.durable)
        del self.data[size:]
        self.reserved = 0

    def after_crash(self, chance: random.Random, tear: bool) -> bytes:
        """The content after a crash and a restart of the machine."""
        data, durable = bytes(self.data), bytes(self.durable)
        if data[: len(durable)] != durable:  # truncated since the last sync: either state
            return chance.choice([data, durable])
        end = chance.choice([len(durable), len(data), chance.randint(len(durable), len(data))])
        kept = bytearray(data[:end])
        if tear and chance.random() < 0.5:
            self._lose_sectors(kept, len(durable), chance)
        return bytes(kept)

    @staticmethod
    def _lose_sectors(kept: bytearray, start: int, chance: random.Random) -> None:
        for sector in range(start - start % SECTOR, len(kept), SECTOR):
            if chance.random() < 0.3:
                first, last = max(sector, start), min(sector + SECTOR, len(kept))
                kept[first:last] = bytes(last - first)


@dataclass
class Failure:
    operation: str
    number: int
    name: str
    times: int | None


class FakeFile:
    def __init__(self, disk: FakeDisk, name: str, inode: Inode) -> None:
        self.name = name
        self.inode = inode
        self.closed = False
        self.reserved_end = 0
        self._disk = disk

    @property
    def size(self) -> int:
        return len(self.inode.data)

    def write(self, data: Bytes) -> None:
        assert not self.closed, f"{self.name} is closed"
        with self._disk.lock_all:
            data = bytes(data)
            try:
                self._disk.step("write", self.name)
                written = self._disk.room_for(self.inode, len(self.inode.data) + len(data))
            except (Crashed, OSError):
                # A failed write may have written any part of the data.
                if not self._disk.off:
                    self.inode.data += data[: self._disk.chance.randint(0, len(data))]
                raise
            if not written:
                self.inode.data += data[: self._disk.free_for(self.inode)]
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
            self.inode.data += data

    def begin_sync(self) -> None:
        """No effect: it guarantees nothing."""

    def sync(self) -> None:
        assert not self.closed, f"{self.name} is closed"
        with self._disk.lock_all:
            self._disk.step("sync", self.name)
            self.inode.sync()

    def reserve(self, end: int) -> None:
        assert not self.closed, f"{self.name} is closed"
        with self._disk.lock_all:
            self._disk.step("reserve", self.name)
            if not self._disk.room_for(self.inode, end):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.name)
            self.inode.reserved = max(self.inode.reserved, end)
            self.reserved_end = max(self.reserved_end, end)

    def read_at(self, offset: int, length: int) -> bytes:
        with self._disk.lock_all:
            self._disk.check("read", self.name)
            return bytes(self.inode.data[offset : offset + length])

    def truncate(self, size: int) -> None:
        with self._disk.lock_all:
            self._disk.step("truncate", self.name)
            self.inode.truncate(size)
            self.reserved_end = size

    def close(self) -> None:
        self.closed = True


def _rename(files: dict[str, Inode], old: str, new: str) -> None:
    if old in files:
        files[new] = files.pop(old)


class FakeDisk:
    """One directory. `capacity` limits the bytes of all files, reserved space included."""

    directory = Path("fake")

    def __init__(self, seed: int = 0, capacity: int | None = None) -> None:
        self.chance = random.Random(seed)
        self.capacity = capacity
        self.files: dict[str, Inode] = {}
        self.durable_files: dict[str, Inode] = {}
        self.steps = 0
        self.log: list[str] = []
        self.crash_at: int | None = None
        self.off = False
        self.locked = False
        self.held_bytes = 0
        self.failures: list[Failure] = []
        self.lock_all = threading.RLock()
        # Changes of names since the last directory sync: each of them survives a crash or does not.
        self._changes: list[Callable[[dict[str, Inode]], object]] = []
        self._secrets = random.Random(f"secrets {seed}")

    # For tests.

    def fail(
        self, operation: str, number: int = errno.EIO, name: str = "", times: int | None = None
    ) -> None:
        """`operation` on files whose name contains `name` fails, `times` times or until `mend`."""
        self.failures.append(Failure(operation, number, name, times))

    def mend(self) -> None:
        self.failures.clear()
        self.capacity = None

    def fill_or_free(self, left_bytes: int) -> None:
        """Leave this much space, or remove the limit if space is already limited."""
        if self.capacity is not None:
            self.mend()
        else:
            self.capacity = self.used_bytes() + left_bytes

    def used_bytes(self) -> int:
        files = self.files.values()
        return self.held_bytes + sum(max(len(inode.data), inode.reserved) for inode in files)

    def after_crash(self, seed: int, tear: bool = True) -> FakeDisk:
        """The disk after a crash, for the next start; this disk is not changed."""
        chance = random.Random(seed)
        disk = FakeDisk(seed)
        files = dict(self.durable_files)
        for change in self._changes:
            if chance.random() < 0.5:
                change(files)
        inodes: dict[int, bytes] = {}
        for name, inode in sorted(files.items()):
            content = inodes.setdefault(id(inode), inode.after_crash(chance, tear))
            disk.put(name, content)
        return disk

    def put(self, name: str, content: bytes) -> None:
        """Store a durable file."""
        self.files[name] = self.durable_files[name] = Inode(bytearray(content), bytearray(content))

    def content(self, name: str) -> bytes:
        return bytes(self.files[name].data)

    def contents(self) -> Contents:
        """All files: equal for disks on which a server finds the same."""
        return tuple((name, self.content(name)) for name in self.names())

    def copy(self) -> FakeDisk:
        disk = FakeDisk()
        for name, inode in self.files.items():
            disk.put(name, bytes(inode.data))
        return disk

    # Disk

    lock_doubt = ""

    def lock(self) -> None:
        if self.locked:
            raise DataError("the data directory is used by another server")
        self.locked = True

    def unlock(self) -> None:
        self.locked = False

    def holds(self, name: str) -> bool:
        with self.lock_all:
            return name in self.files

    def names(self) -> list[str]:
        with self.lock_all:
            return sorted(self.files)

    def create(self, name: str) -> FakeFile:
        with self.lock_all:
            self.step("create", name)
            inode = self.files[name] = Inode()
            self._changes.append(lambda files: files.__setitem__(name, inode))
            return FakeFile(self, name, inode)

    def append(self, name: str) -> FakeFile:
        with self.lock_all:
            self.check("open", name)
            if name not in self.files:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
            return FakeFile(self, name, self.files[name])

    read = append

    def rename(self, old: str, new: str) -> None:
        with self.lock_all:
            self.step("rename", old)
            self.files[new] = self.files.pop(old)
            self._changes.append(lambda files: _rename(files, old, new))

    def remove(self, name: str) -> None:
        with self.lock_all:
            self.step("remove", name)
            del self.files[name]
            self._changes.append(lambda files: files.pop(name, None))

    def sync_directory(self) -> None:
        with self.lock_all:
            self.step("sync_directory", "")
            self.durable_files = dict(self.files)
            self._changes.clear()

    def hold_space(self, size_bytes: int) -> None:
        with self.lock_all:
            self.held_bytes = 0
            self.check("hold", "")
            if self.capacity is not None and self.used_bytes() + size_bytes > self.capacity:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.held_bytes = size_bytes

    def release_space(self) -> None:
        with self.lock_all:
            self.held_bytes = 0

    def random(self, size: int) -> bytes:
        with self.lock_all:
            return self._secrets.randbytes(size)

    def keep(self, names: Sequence[str], folder: str, written: Collection[str] = ()) -> None:
        with self.lock_all:
            made = {}
            for name in names:
                self.step("keep", name)
                inode = self.files[name]
                copied_bytes = len(inode.data) if name in written else 0
                if copied_bytes and not self.room_for(Inode(), copied_bytes):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
                if name in written:
                    inode = Inode(bytearray(inode.data), bytearray(inode.data))
                made[f"{folder}/{name}"] = inode
            self.step("keep", folder)
            self.files.update(made)
            self._changes.append(lambda files: files.update(made))
            self.sync_directory()

    def remove_kept(self, folder: str) -> None:
        with self.lock_all:
            for name in self.names():
                if name.startswith(f"{folder}/"):
                    self.remove(name)

    # Inside

    def step(self, operation: str, name: str) -> None:
        """Count a changing operation; crash or fail instead of it."""
        self.check(operation, name)
        self.steps += 1
        self.log.append(f"{operation} {name}")
        if self.crash_at is not None and self.steps >= self.crash_at:
            self.off = True
            raise Crashed(f"{operation} {name}")

    def check(self, operation: str, name: str) -> None:
        if self.off:
            raise Crashed(f"{operation} {name}")
        for failure in self.failures:
            if failure.operation == operation and failure.name in name and failure.times != 0:
                if failure.times is not None:
                    failure.times -= 1
                raise OSError(failure.number, os.strerror(failure.number), name)

    def room_for(self, inode: Inode, end: int) -> bool:
        return self.capacity is None or end <= self._limit(inode)

    def free_for(self, inode: Inode) -> int:
        return max(self._limit(inode) - len(inode.data), 0)

    def _limit(self, inode: Inode) -> int:
        """The maximum size of this file."""
        assert self.capacity is not None
        others = sum(
            max(len(other.data), other.reserved)
            for other in self.files.values()
            if other is not inode
        )
        return max(self.capacity - others, inode.reserved)
