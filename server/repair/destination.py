"""The folder of a copy: an incomplete copy is never taken for a complete one.

A copy is written to a folder next to its destination, whose name ends in `.partial`, and gets its
name in one step at the end. If the destination is the root of a file system, which
cannot be replaced, the copy is written into it: without a manifest, which comes last, it is no data
directory. A folder that an earlier run left is removed by the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from millstream.errors import DataError
from millstream.server.repair.backup_description import DESCRIPTION, directory_id
from millstream.storage.files.disk import Disk, SystemDisk
from millstream.storage.files.manifest import (
    NAME,
    NODES_BACKUP_NAME,
    NODES_NAME,
    is_ours,
    nodes_hint,
)

PARTIAL = ".partial"
CLUSTER_BACKUP = NODES_BACKUP_NAME  # the description of a backup of a cluster
USERS_NAME = "users.acl"
_MODE = 0o700  # a copy has all data, and the files of a server can be read by all users
_OF_EVERY_COPY = {NAME, "lock", DESCRIPTION, DESCRIPTION + ".tmp"}
_OF_CLUSTERS = {CLUSTER_BACKUP, NODES_NAME, USERS_NAME}  # files next to the folders of copies
_OF_EVERY_DISK = {"lost+found"}


class Unusable(Exception):
    """The destination cannot be used. The text is a sentence."""


def without_data(disk: Disk) -> DataError:
    """The error for a directory that is not that of a server. It says where the data may be."""
    hint = nodes_hint(disk.names(), disk.directory)
    return DataError(f"{disk.directory} holds no data of a server{hint}")


class Stopped(BaseException):
    """SIGTERM or SIGHUP has arrived: the unfinished copy is removed."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Let a signal that ends the program remove the unfinished copy first."""

    def stop(number: int, frame: object) -> NoReturn:
        raise Stopped(number)

    earlier = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    except Stopped as error:
        raise SystemExit(128 + error.args[0]) from None
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class Destination:
    """One copy on its way to the folder `final`. `disk` is the folder with its files, locked
    against other programs; `publish` gives them their place, and `discard` removes them."""

    def __init__(self, final: Path) -> None:
        """Prepare the folder. Unusable when `final` has files, or its parent does not exist."""
        if final.name in ("", "..") or (final.is_symlink() and final.is_dir()):
            final = final.resolve()  # the folder itself gets its name at the end, not the link
        self.final = final
        self._in_place = _is_root(final)
        self._before = _require_empty(final)
        self.folder = final if self._in_place else final.with_name(final.name + PARTIAL)
        self.disk = SystemDisk(self.folder)
        if not self._in_place:
            remove_partial(self.folder)
            try:
                self.folder.mkdir(mode=_MODE)
            except OSError as error:
                raise Unusable(f"{self.folder} cannot be made: {error.strerror}") from None
        try:
            self.disk.lock()
        except DataError as error:
            raise Unusable(str(error)) from None

    def describe(self, facts: dict[str, Any]) -> None:
        """Add the description of a backup, with its ID and the sizes of its files."""
        files = sizes_in(self.folder)
        facts = {**facts, "directory_id": directory_id(self.disk), "files": files}
        temporary = DESCRIPTION + ".tmp"
        file = self.disk.create(temporary)
        try:
            file.write(json.dumps(facts, indent=2).encode() + b"\n")
            file.sync()
        finally:
            file.close()
        self.disk.rename(temporary, DESCRIPTION)

    def publish(self) -> None:
        """Give the complete copy its place, durably. Unusable when something else took it."""
        with contextlib.suppress(FileNotFoundError):
            self.disk.remove("lock")
        self._take_over_owner()
        self.disk.sync_directory()
        if not self._in_place:
            try:
                os.rename(self.folder, self.final)
            except OSError as error:
                raise Unusable(f"{self.final} cannot be made: {error.strerror}") from None
            SystemDisk(self.final.parent.absolute()).sync_directory()
        self.disk.unlock()

    def _take_over_owner(self) -> None:
        """Give the copy the owner and the mode of the empty folder that it replaces."""
        before = self._before
        if before is None or self._in_place:
            return
        with contextlib.suppress(PermissionError):
            for path in (self.folder, *self.folder.rglob("*")):
                os.chown(path, before.st_uid, before.st_gid)
            self.folder.chmod(stat.S_IMODE(before.st_mode))

    @contextlib.contextmanager
    def discarded_on_error(self) -> Iterator[None]:
        """Remove the copy if the block raises."""
        try:
            yield
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove the files of a copy that is not complete."""
        with contextlib.suppress(OSError):
            if self._in_place:
                for path in self.folder.iterdir():
                    if path.is_dir() and _is_of_a_copy(path):
                        shutil.rmtree(path)
                    elif _is_of_a_copy(path):
                        path.unlink()
            else:
                shutil.rmtree(self.folder)
        self.disk.unlock()


def sizes_in(folder: Path) -> dict[str, int]:
    """The size of each file of a copy, except those that change without a change of the data."""
    return {
        path.name: path.stat().st_size
        for path in sorted(folder.iterdir())
        if path.name not in ("lock", DESCRIPTION, DESCRIPTION + ".tmp")
    }


def _is_root(final: Path) -> bool:
    """True if this is the root of a file system, as a volume of a container is."""
    return final.is_dir() and os.path.ismount(final)


def _require_empty(final: Path) -> os.stat_result | None:
    """The status of an empty folder, None if there is none. Unusable for anything else."""
    try:
        if not os.path.lexists(final):
            if not final.parent.is_dir():
                raise Unusable(
                    f"{final.parent} is not a folder: make it first, or mount the disk that has it"
                )
            return None
        if not final.is_dir():
            raise Unusable(f"{final} exists and is not a folder: a copy replaces nothing")
        if set(os.listdir(final)) - _OF_EVERY_DISK:
            raise Unusable(f"{final} is not empty: a copy replaces nothing")
        return final.stat()
    except OSError as error:
        raise Unusable(f"{final} cannot be used: {error.strerror}") from None


def remove_partial(folder: Path) -> None:
    """Remove what an earlier run has left. Unusable while another program writes to it, or if it
    has files that no copy has."""
    if not os.path.lexists(folder):
        return
    disk = SystemDisk(folder)
    try:
        disk.lock_for("or choose another destination", alone=True)
        foreign = [path for path in folder.iterdir() if not _is_of_a_copy(path)]
        if folder.is_symlink() or foreign:
            raise Unusable(f"{folder} is not the rest of a copy; move it away")
        shutil.rmtree(folder)
    except DataError:
        raise Unusable(f"{folder} is in use: another program writes to it") from None
    except OSError as error:
        raise Unusable(f"{folder} cannot be removed: {error.strerror}") from None
    finally:
        disk.unlock()


def _is_of_a_copy(path: Path) -> bool:
    """True for a file of a copy, and for the folder of one in a copy of a cluster."""
    if path.is_dir() and not path.is_symlink():
        return path.name not in _OF_EVERY_DISK and all(map(_is_of_a_copy, path.iterdir()))
    return is_ours(path.name) or path.name in _OF_EVERY_COPY | _OF_CLUSTERS
