"""The conversion of the RDB that a server has received from the Redis that it follows."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from millstream.errors import DataError

if TYPE_CHECKING:
    from millstream.server.moving.converting import Task
    from millstream.server.replication.redis_conversion import Conversion, Converted

_ENDED = "the conversion of the full sync was ended"


class SpoolConverter:
    """Converts in a process of its own, with a memory limit: a file can end that process, never the
    server. `memory_bytes()` is the limit."""

    def __init__(self, memory_bytes: Callable[[], int]) -> None:
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()  # of the process, which another thread may end
        self._process = 0  # 0: none runs
        self._is_stopped = False
        self._signal = 0  # that has ended the process

    def convert(self, conversion: Conversion) -> Converted:
        # Servers that follow no Redis do not load this.
        from millstream.server.moving.converting import CANNOT_WRITE, Source, Task, messages_in
        from millstream.server.replication.redis_conversion import ConversionError, Converted

        limit = self._memory_bytes()
        task = Task(
            sources=[Source("the full sync", conversion.rdb, conversion.size_bytes)],
            base=conversion.base,
            directory=conversion.directory.hex(),
            memory_bytes=limit,
            seq=conversion.seq,
            databases_count=conversion.databases,
        )
        converted = Converted()
        failed: str | None = None
        is_whole = False
        with self._messages(task, conversion.is_over) as lines:
            for message in messages_in(lines):
                if "stream" in message and conversion.with_streams:
                    facts = message["stream"]
                    converted.added[facts["db"], facts["key"]] = facts["entries_added"]
                elif "failed" in message:
                    failed = message["failed"].partition("; nothing was written")[0]
                elif "note" in message:
                    failed = failed or message["note"]
                elif "done" in message:
                    is_whole = True
                    _take(converted, message["done"])
        if is_whole:
            return converted
        if failed == "memory":
            failed = f"it needs more memory than import-memory-limit {limit}"
        if self._is_stopped:
            raise DataError(_ENDED)
        if failed is None and self._signal:  # by an administrator, or for lack of memory
            raise DataError(f"the process that converts the full sync got signal {self._signal}")
        reason = failed or "its process has ended"
        kind = DataError if reason.startswith(CANNOT_WRITE) else ConversionError
        raise kind(f"the full sync cannot be converted: {reason}")

    @contextlib.contextmanager
    def _messages(self, task: Task, is_over: Callable[[], bool]) -> Iterator[Iterator[str]]:
        """The messages of a process for this task, which is waited for."""
        ours, theirs = os.pipe()
        try:
            self._begin(task, is_over, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        try:
            with os.fdopen(ours, encoding="utf-8", errors="replace") as lines:
                yield iter(lines)
        finally:
            with self._lock:  # its number may be that of another process afterwards
                process, self._process = self._process, 0
            with contextlib.suppress(ChildProcessError):
                _, status = os.waitpid(process, 0)
                self._signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0

    def _begin(self, task: Task, is_over: Callable[[], bool], output: int) -> None:
        """Start the process, unless its result is not needed any more."""
        from millstream.server.moving.converting import begin

        with self._lock:
            if is_over():
                raise DataError(_ENDED)
            self._is_stopped, self._signal = False, 0
            os.lseek(task.sources[0].descriptor, 0, os.SEEK_SET)
            self._process = begin(task, output)

    def stop(self) -> None:
        with self._lock:
            if self._process:
                self._is_stopped = True
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)


def _take(converted: Converted, done: dict[str, Any]) -> None:
    converted.keys = done["totals"]["streams"] + done["totals"]["strings"]
    converted.left_out = {name: one["keys"] for name, one in done["left_out"].items()}
