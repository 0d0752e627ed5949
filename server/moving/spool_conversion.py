"""The conversion of the RDB that a server has received from the Redis that it follows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from millstream.errors import DataError
from millstream.server.moving.child_process import ChildProcess

if TYPE_CHECKING:
    from millstream.server.moving.converting import Task
    from millstream.server.replication.redis_conversion import Conversion, Converted

_ENDED = "the conversion of the full sync was ended"


class SpoolConverter:
    """Converts in a process of its own, with a memory limit: a file can end that process, never the
    server. `memory_bytes()` is the limit."""

    def __init__(self, memory_bytes: Callable[[], int]) -> None:
        self._memory_bytes = memory_bytes
        self._child = ChildProcess()

    def convert(self, conversion: Conversion) -> Converted:
        # Servers that follow no Redis do not load this.
        from millstream.server.moving.child_messages import messages_in
        from millstream.server.moving.converting import CANNOT_WRITE, Source, Task
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
        if self._child.is_stopped:
            raise DataError(_ENDED)
        status = self._child.status
        if failed is None and status < 0:  # by an administrator, or for lack of memory
            raise DataError(f"the process that converts the full sync got signal {-status}")
        reason = failed or "its process has ended"
        kind = DataError if reason.startswith(CANNOT_WRITE) else ConversionError
        raise kind(f"the full sync cannot be converted: {reason}")

    def _messages(
        self, task: Task, is_over: Callable[[], bool]
    ) -> AbstractContextManager[Iterator[str]]:
        """The messages of a process for this task, unless its result is not needed any more."""
        from millstream.server.moving.converting import begin

        def begin_unless_over(output: int) -> int:
            if is_over():
                raise DataError(_ENDED)
            os.lseek(task.sources[0].descriptor, 0, os.SEEK_SET)
            return begin(task, output)

        return self._child.lines(begin_unless_over)

    def stop(self) -> None:
        self._child.stop()


def _take(converted: Converted, done: dict[str, Any]) -> None:
    converted.keys = done["totals"]["streams"] + done["totals"]["strings"]
    converted.left_out = {name: one["keys"] for name, one in done["left_out"].items()}
