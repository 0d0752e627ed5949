"""The report of a crash: which version crashed, after how long, in which command, and the stack of
each thread.

A crash of compiled code leaves no Python exception: the operating system ends the process by a
signal. Python's faulthandler then writes the stacks. Before it ends the process, it calls the
earlier handler of the signal, which is that of `crash_line`. Both write to a descriptor of their
own, a copy of the log's, so that reopening the log file never leaves them without one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os

from millstream import __version__
from millstream.server.execution import crash_line
from millstream.server.execution.executor import Executor
from millstream.server.monitor import log


class CrashReport:
    """Writes nothing until `begin`, since the handlers of signals are those of the process."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._is_wanted = True
        self._descriptor = -1

    def begin(self) -> None:
        """Report crashes from now on."""
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            self._descriptor = os.dup(log.descriptor())
            self.set_enabled(self._is_wanted)

    def set_enabled(self, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        if self._descriptor < 0:
            return
        faulthandler.disable()  # which restores the handlers before it
        crash_line.end()
        if is_wanted:
            crash_line.begin(self._descriptor, __version__, self._executor)
            faulthandler.enable(self._descriptor)

    def follow_log(self) -> None:
        """The log file was opened again."""
        if self._descriptor >= 0:
            os.dup2(log.descriptor(), self._descriptor, inheritable=False)
