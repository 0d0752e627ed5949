"""Copies of data that a full sync or a rewind removes: each is a folder `discarded-DATE`, a data
directory of its own. Only the newest one remains."""

from __future__ import annotations

import time
from collections.abc import Collection

from millstream.server.durability.data_files import DataFiles
from millstream.storage.files.manifest import NAME

PREFIX = "discarded-"


def keep_copy(files: DataFiles, now_ms: int, written: Collection[str]) -> str:
    """Copy the current files durably into a new folder, and return its name. Files that will still
    be written are named in `written`; the others may become links. OSError when it fails: then
    there is no folder."""
    folder = _new_name(files, now_ms)
    files.disk.keep([NAME, *files.manifest.files], folder, written)
    return folder


def _new_name(files: DataFiles, now_ms: int) -> str:
    first = PREFIX + time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_ms / 1000))
    there = {name.partition("/")[0] for name in files.disk.names()}
    names = [first, *(f"{first}-{number}" for number in range(2, len(there) + 3))]
    return next(name for name in names if name not in there)
