"""A process of its own that converts something, and can be ended from any thread."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator


class ChildProcess:
    """One process after the other. `is_stopped` and `status` tell how the last one has ended: by
    `stop`; with this exit code, or by the signal -`status`."""

    def __init__(self) -> None:
        self.is_stopped = False
        self.status = 0
        self._lock = threading.Lock()  # of the process, which another thread may end
        self._process = 0  # 0: none runs

    @contextlib.contextmanager
    def lines(self, begin: Callable[[int], int]) -> Iterator[Iterator[str]]:
        """The output of a process, which is waited for. `begin` starts it, with a descriptor for
        the output, and returns its number; after an error of `begin` there is none. The process
        is ended if the caller fails."""
        ours, theirs = os.pipe()
        try:
            with self._lock:
                self._process = begin(theirs)
                self.is_stopped, self.status = False, 0
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        try:
            with os.fdopen(ours, encoding="utf-8", errors="replace") as lines:
                yield iter(lines)
        except BaseException:
            self.stop()
            raise
        finally:
            with self._lock:  # its number may be that of another process afterwards
                process, self._process = self._process, 0
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(process, 0)
                self.status = os.waitstatus_to_exitcode(status)

    def stop(self) -> None:
        """End the process, if one runs."""
        with self._lock:
            if self._process:
                self.is_stopped = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)
