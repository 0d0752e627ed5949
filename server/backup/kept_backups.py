"""A folder with dated backups, of which the newest are kept.

A backup is removed only if it is complete, was made by `millstream backup` into this folder, and
still has exactly the files that it had: a folder with which a server was started is left alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

from millstream.errors import DataError
from millstream.server.backup.destination import PARTIAL, Unusable, remove_partial, sizes_in
from millstream.server.repair.checking import DESCRIPTION
from millstream.storage.files.disk import SystemDisk
from millstream.storage.files.manifest import is_ours

_NAME = re.compile(r"millstream-\d{8}T\d{6}Z(-\d+)?")
_REMOVED = ".removed"


def new_name(folder: Path, now_ms: int) -> Path:
    """The place of a backup that begins now. The folder is made if its parent exists."""
    if not folder.is_dir():
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise Unusable(f"{folder} cannot be made: {error.strerror}") from None
    name = time.strftime("millstream-%Y%m%dT%H%M%SZ", time.gmtime(now_ms / 1000))
    found, number = folder / name, 2
    while os.path.lexists(found):
        found, number = folder / f"{name}-{number}", number + 1
    return found


def remove_old(folder: Path, keep: int) -> tuple[list[str], list[str]]:
    """Remove all but the newest `keep` backups, and what interrupted runs have left. The names of
    the removed backups, and a sentence for each that could not be removed."""
    removed: list[str] = []
    notes: list[str] = []
    for path in sorted(folder.iterdir()):
        name = path.name.removesuffix(PARTIAL).removesuffix(_REMOVED)
        if name != path.name and _NAME.fullmatch(name):
            with contextlib.suppress(Unusable):  # another run writes to it
                remove_partial(path)
    for path in _complete(folder)[:-keep]:
        try:
            _remove(path)
        except (Unusable, OSError) as error:
            notes.append(f"{path} is kept: {error}")
        else:
            removed.append(path.name)
    return removed, notes


def _complete(folder: Path) -> list[Path]:
    """The complete backups, the oldest first."""
    found = [
        path
        for path in folder.iterdir()
        if _NAME.fullmatch(path.name) and not path.is_symlink() and description(path) is not None
    ]
    return sorted(found, key=_order)


def _order(path: Path) -> tuple[str, int]:
    stamp, _, number = path.name.removeprefix("millstream-").partition("-")
    return stamp, int(number or 1)


def description(path: Path) -> dict[str, Any] | None:
    """The facts about a backup; None if the folder is not one."""
    try:
        facts = json.loads((path / DESCRIPTION).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and isinstance(facts.get("files"), dict) else None


def is_unchanged(path: Path) -> bool:
    """True for a backup whose files have the sizes that its description states."""
    facts = description(path)
    return facts is not None and sizes_in(path) == facts["files"]


def cut_off(path: Path) -> str | None:
    """A sentence if a copy of a backup is incomplete. If a file is new or longer, a server has used
    the folder: its sizes say nothing then."""
    facts = description(path)
    if facts is None:
        return None
    found = {name: size for name, size in sizes_in(path).items() if is_ours(name)}
    stated = facts["files"]
    if any(name not in stated or size > stated[name] for name, size in found.items()):
        return None
    for name, size in stated.items():
        if is_ours(name) and found.get(name) != size:
            has = "is missing" if name not in found else f"has {found[name]} bytes"
            return (
                f"{path} is not the whole backup: {name} {has}, and {DESCRIPTION} states {size}"
                " bytes; copy the backup again"
            )
    return None


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
