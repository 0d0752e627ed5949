"""A folder with dated backups, of which the newest are kept.

A backup is removed only if it is complete, was made by `millstream backup` into this folder, and
still has exactly the files that it had: a folder with which a server was started is left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from millstream.errors import DataError
from millstream.server.repair.backup_description import fault_of_files, read_description, unreadable
from millstream.server.repair.destination import (
    PARTIAL,
    Destination,
    Unusable,
    remove_partial,
    sizes_in,
)
from millstream.storage.files.disk import SystemDisk

_NAME = re.compile(r"millstream-\d{8}T\d{6}Z(-\d+)?")
_REMOVED = ".removed"


def make_folder(folder: Path) -> bool:
    """Make the folder of the backups, if its parent exists. False if it is there already."""
    if folder.is_dir():
        return False
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if not folder.is_dir():
            raise Unusable(f"{folder} exists and is not a folder") from None
        return False
    except OSError as error:
        raise Unusable(f"{folder} cannot be made: {error.strerror}") from None
    return True


def new_destination(folder: Path, now_ms: int) -> Destination:
    """The place of a backup that begins now. Two that begin in the same second get two names."""
    try:
        with choosing(folder):
            return Destination(_new_name(folder, now_ms))
    except OSError as error:
        raise Unusable(f"{folder} cannot be used: {error.strerror}") from None


def _new_name(folder: Path, now_ms: int) -> Path:
    name = time.strftime("millstream-%Y%m%dT%H%M%SZ", time.gmtime(now_ms / 1000))
    found, number = folder / name, 2
    while os.path.lexists(found) or os.path.lexists(f"{found}{PARTIAL}"):
        found, number = folder / f"{name}-{number}", number + 1
    return found


def remove_old(folder: Path, keep: int) -> tuple[list[str], list[str]]:
    """Remove all but the newest `keep` backups, and what interrupted runs have left. The names of
    the removed backups, and a sentence for each that could not be removed."""
    with choosing(folder):
        return _remove_old(folder, keep)


def _remove_old(folder: Path, keep: int) -> tuple[list[str], list[str]]:
    removed: list[str] = []
    notes: list[str] = []
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(PARTIAL).removesuffix(_REMOVED)
        if name != path.name and _NAME.fullmatch(name):
            with contextlib.suppress(Unusable):  # another run writes to it
                remove_partial(path)
    complete, others = _backups_in(folder)
    notes += others
    for path in complete[:-keep]:
        try:
            _remove(path)
        except (Unusable, OSError) as error:
            notes.append(f"{path} is kept: {error}")
        else:
            removed.append(path.name)
    return removed, notes


def _backups_in(folder: Path) -> tuple[list[Path], list[str]]:
    """The complete backups, the oldest first, and a sentence for each whose description cannot be
    read."""
    found, notes = [], []
    for path in sorted(folder.iterdir()):
        if not _NAME.fullmatch(path.name) or path.is_symlink():
            continue
        try:
            if read_description(SystemDisk(path)) is not None:
                found.append(path)
        except OSError:
            continue  # it is no folder, or not ours
        except ValueError as problem:
            notes.append(f"{path} is kept: {unreadable(problem)}")
    return sorted(found, key=_order), notes


def _order(path: Path) -> tuple[str, int]:
    stamp, _, number = path.name.removeprefix("millstream-").partition("-")
    return stamp, int(number or 1)


def description(path: Path) -> dict[str, Any] | None:
    """The facts about a backup; None if the folder is not one."""
    try:
        return read_description(SystemDisk(path))
    except (OSError, ValueError):
        return None


def is_unchanged(path: Path) -> bool:
    """True for a backup whose files have the sizes that its description states."""
    facts = description(path)
    return facts is not None and sizes_in(path) == facts["files"]


def cut_off(path: Path) -> str | None:
    """A sentence if a copy of a backup is incomplete."""
    disk = SystemDisk(path)
    try:
        facts = read_description(disk)
    except ValueError as problem:
        return f"{path}: {unreadable(problem)}"
    return None if facts is None else fault_of_files(disk, facts)


@contextlib.contextmanager
def choosing(folder: Path) -> Iterator[None]:
    """Let no other run with `--keep` choose a name in this folder, or remove anything from it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a backup in two steps, so that a part of it is never taken for a whole one."""
    disk = SystemDisk(path)
    try:
        disk.lock_for("or keep it", alone=True)
        facts = description(path)
        if facts is None or sizes_in(path) != facts["files"]:
            raise Unusable("its files have changed since it was made")
        going = path.with_name(path.name + _REMOVED)
        path.rename(going)
        shutil.rmtree(going)
    except DataError as error:
        raise Unusable(str(error)) from None
    finally:
        disk.unlock()
