"""The file of the directive `pidfile`: the number of the process, for tools that signal it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from millstream.server.monitor.log import LOGGER


class PidFile:
    """The file at `path`; an empty path means none. As in Redis, a server starts without it when
    it cannot be written: the stock redis.conf names a folder that only root may write to."""

    def __init__(self, path: str) -> None:
        self._path = Path(path) if path else None
        self._is_written = False

    def write(self) -> None:
        """Write the number of this process."""
        if self._path is None:
            return
        try:
            self._path.write_text(f"{os.getpid()}\n")
        except OSError as problem:
            LOGGER.warning("cannot write the pidfile %s: %s", self._path, problem.strerror)
            return
        self._is_written = True

    def remove(self) -> None:
        """Remove the file that `write` has written."""
        if self._path is not None and self._is_written:
            with contextlib.suppress(OSError):
                self._path.unlink()
