"""Copies of data that a full sync or a rewind removes.

Each is a folder `discarded-DATE-TIME`, a data directory of its own. Only the newest one remains.
All of this runs on the worker of snapshots.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from millstream.server.durability.data_files import DataFiles, in_words
from millstream.storage.files.manifest import NAME

log = logging.getLogger("millstream.replication")

PREFIX = "discarded-"


def keep_copy(files: DataFiles, now_ms: int, written: Collection[str]) -> str:
    """Copy the current files durably into a new folder, and return its name. Files that will still
    be written are named in `written`; the others may become links. OSError when it fails: then
    there is no folder."""
    folder = _new_name(files, now_ms)
    files.disk.keep([NAME, *files.manifest.files], folder, written)
    return folder


def remove_older(files: DataFiles, newest: str) -> None:
    """Remove all copies but this one. A failure is logged."""
    for name in _folders(files):
        if name.startswith(PREFIX) and name != newest:
            _remove(files, name)


def remove_copy(files: DataFiles, folder: str) -> None:
    """Remove this copy, if there is one ("": none): nothing was removed. A failure is logged."""
    if folder:
        _remove(files, folder)


def _remove(files: DataFiles, folder: str) -> None:
    try:
        files.disk.remove_kept(folder)
    except OSError as error:
        log.warning("the old folder %s cannot be removed: %s", folder, in_words(error))


def _folders(files: DataFiles) -> set[str]:
    """The names of the folders, and of the files that are in none."""
    return {name.partition("/")[0] for name in files.disk.names()}


def _new_name(files: DataFiles, now_ms: int) -> str:
    first = PREFIX + time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ms / 1000))
    there = _folders(files)
    names = [first, *(f"{first}-{number}" for number in range(2, len(there) + 3))]
    return next(name for name in names if name not in there)
