"""The conversion of the RDB that a server has received from the Redis that it follows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

from millstream.errors import DataError
from millstream.server.moving.converting import CANNOT_WRITE, Source, Task
from millstream.server.replication.redis_conversion import Conversion, ConversionError, Converted


class SpoolConverter:
    """Converts in a process of its own, with a memory limit: a file can end that process, never the
    server. `memory_bytes()` is the limit."""

    def __init__(self, memory_bytes: Callable[[], int]) -> None:
        self._memory_bytes = memory_bytes
        self._process = 0  # 0: none runs
        self._is_stopped = False

    def convert(self, conversion: Conversion) -> Converted:
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
        with self._messages(task) as lines:
            for line in lines:
                message: dict[str, Any] = (
                    json.loads(line) if line.startswith("{") else {"note": line.strip()}
                )
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
            raise DataError("the conversion of the full sync was ended")
        reason = failed or "its process has ended"
        kind = DataError if reason.startswith(CANNOT_WRITE) else ConversionError
        raise kind(f"the full sync cannot be converted: {reason}")

    @contextlib.contextmanager
    def _messages(self, task: Task) -> Iterator[Iterator[str]]:
        """The messages of a process for this task, which is waited for."""
        ours, theirs = os.pipe()
        source = task.sources[0]
        words = [sys.executable, "-m", "millstream.server.moving.converting", task.to_text()]
        os.set_inheritable(source.descriptor, True)
        os.set_inheritable(task.base, True)
        os.lseek(source.descriptor, 0, os.SEEK_SET)
        self._is_stopped = False
        try:
            self._process = os.posix_spawn(
                sys.executable,
                words,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 2)],
            )
        finally:
            os.close(theirs)
        try:
            with os.fdopen(ours, encoding="utf-8", errors="replace") as lines:
                yield iter(lines)
        finally:
            process, self._process = self._process, 0
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)

    def stop(self) -> None:
        process = self._process
        if process:
            self._is_stopped = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def _take(converted: Converted, done: dict[str, Any]) -> None:
    converted.keys = done["totals"]["streams"] + done["totals"]["strings"]
    converted.program = done["source"][0]["program"]
    converted.left_out = {name: one["keys"] for name, one in done["left_out"].items()}
