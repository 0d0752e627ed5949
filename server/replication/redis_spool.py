"""Files without names for what a Redis sends or gets in a full sync. They end with the process.

Everything is stored as fast as it arrives, so that the source has to buffer nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO

from millstream.server.durability.workers import Scheduler, TaskWorker, post
from millstream.storage.files.disk import write_all

READ_BYTES = 256 << 10


class SpoolFile:
    """A file to which bytes are appended, and from which they are read, on one worker. A given
    `file` has `size_bytes` already.

    `on_written` is called on the loop after each write, `on_error` once. `queued_bytes` wait for
    the disk."""

    def __init__(
        self,
        folder: Path,
        worker: TaskWorker,
        scheduler: Scheduler,
        on_written: Callable[[], None],
        on_error: Callable[[Exception], None],
        file: IO[bytes] | None = None,
        size_bytes: int = 0,
    ) -> None:
        self.size_bytes = size_bytes
        self.queued_bytes = 0
        self._read_bytes = 0
        self._folder = folder
        self._worker = worker
        self._scheduler = scheduler
        self._on_written = on_written
        self._on_error = on_error
        self._file = file
        self._is_over = False

    @property
    def left_bytes(self) -> int:
        """Bytes that were not read yet."""
        return self.size_bytes - self._read_bytes

    def append(self, data: bytes) -> None:
        self.size_bytes += len(data)
        self.queued_bytes += len(data)
        self._submit(lambda: self._write(data), lambda nothing: self._written(len(data)))

    def _written(self, count: int) -> None:
        self.queued_bytes -= count
        self._on_written()

    def read(self, then: Callable[[bytes], None]) -> None:
        """Read the next bytes; `then` gets them on the loop."""

        def read() -> bytes:
            return os.pread(self.descriptor(), READ_BYTES, self._read_bytes)

        def take(data: bytes) -> None:
            self._read_bytes += len(data)
            then(data)

        self._submit(read, take)

    def descriptor(self) -> int:
        """The open file; on the worker."""
        if self._file is None:
            import tempfile  # few servers need a spool

            self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
        return self._file.fileno()

    def _write(self, data: bytes) -> bytes:
        write_all(self.descriptor(), data)
        return b""

    def _submit(self, step: Callable[[], bytes], then: Callable[[bytes], None]) -> None:
        def task() -> None:
            try:
                result = step()
            except OSError as error:
                post(self._scheduler, self._fail, error)
            else:
                post(self._scheduler, self._end_step, then, result)

        self._worker.submit(task)

    def _end_step(self, then: Callable[[bytes], None], result: bytes) -> None:
        if not self._is_over:
            then(result)

    def _fail(self, error: Exception) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_error(error)

    def close(self) -> None:
        """Forget the file, after the steps that were begun."""
        self._is_over = True
        self._worker.submit(self._close)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
