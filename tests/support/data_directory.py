"""Inspects and damages the files of a data directory from outside the server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def size_or_nothing(path: Path) -> int:
    """The size of a file in bytes; 0 if the server removed the file meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def last_journal(directory: Path) -> Path:
    """The current journal file: the one with the highest number that is not empty."""
    files = [path for path in directory.rglob("journal-*.log") if size_or_nothing(path)]
    assert files, f"no journal in {sorted(p.name for p in directory.rglob('*'))}"
    return max(files, key=lambda path: int(path.stem.rsplit("-", 1)[1]))


def cut_end(path: Path, size_bytes: int) -> None:
    """Remove the last bytes, like a crash in the middle of a write."""
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - size_bytes)


def flip(path: Path, offset: int) -> None:
    """Invert one byte."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def without_privileges() -> list[str]:
    """root may read every file; without these two capabilities permissions apply to root, too."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    assert setpriv, "setpriv is missing: apt-get install util-linux"
    return [setpriv, "--bounding-set=-dac_override,-dac_read_search"]
