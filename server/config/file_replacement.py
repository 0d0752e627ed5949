"""Replacing a small file as a whole, so that a crash leaves the old text or the new one."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path


def replace_file(path: Path, text: bytes, *, mode: int | None = None) -> None:
    """Write a new file, sync it, and rename it to the old one. The new file has the owner and the
    group of the old one, as far as this process may set them. `mode` None: the mode of the old
    file, or 0600 if there is none.

    OSError when that fails; the old file is unchanged then.
    """
    import tempfile

    target = path.resolve()  # preserves a symbolic link
    old = target.stat() if target.exists() else None
    if mode is None:
        mode = 0o600 if old is None else stat.S_IMODE(old.st_mode)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            if old is not None and not _has_owner(file.fileno(), old):
                mode &= ~0o070  # the permissions of another group
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _has_owner(handle: int, old: os.stat_result) -> bool:
    """Give a new file the owner and the group of the old one. False if the group differs."""
    for owner in (old.st_uid, -1):
        with contextlib.suppress(PermissionError):
            os.fchown(handle, owner, old.st_gid)
            return True
    return os.fstat(handle).st_gid == old.st_gid
