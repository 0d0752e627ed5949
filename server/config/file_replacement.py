"""Replacing a small file as a whole, so that a crash leaves the old text or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, text: bytes, *, mode: int | None = None) -> None:
    """Write a new file, sync it, and rename it to the old one. `mode` None: that of the old file.

    OSError when that fails; the old file is unchanged then.
    """
    import tempfile

    target = path.resolve()  # preserves a symbolic link
    if mode is None:
        mode = target.stat().st_mode if target.exists() else 0o644
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
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
