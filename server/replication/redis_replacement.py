"""A full sync with a Redis: its RDB goes to a file, becomes a base, and replaces the data here.

1. receive (worker of replicas): the RDB, into a file without a name.
2. convert (another process, and a thread that waits for it): into `base-N.msnap.tmp`.
3. decide (loop): data of this source is not replaced by less of it.
4. the steps from `finish` on, as for another millstream (`replacement`).

The commands that arrive meanwhile are stored by `redis_following`, and run afterwards.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from itertools import islice

from millstream.errors import DataError, counted
from millstream.server.durability.data_files import DataFiles, temporary
from millstream.server.durability.workers import TaskWorker
from millstream.server.replication.redis_conversion import Conversion, Converted, Converter
from millstream.server.replication.redis_spool import SpoolFile
from millstream.server.replication.reload import ChangeTools
from millstream.server.replication.replacement import DataReplacement, ReceivedFiles
from millstream.storage.dump.base_making import keys_of
from millstream.storage.files.manifest import base_name
from millstream.storage.keyspace.keyspace import Keyspace
from millstream.storage.streams.stream import Stream

log = logging.getLogger("millstream.replication")

_COMPARED = 500  # streams in one turn


class LessDataError(DataError):
    """The source has less data than before. The text is a sentence."""


class ConvertedFiles(ReceivedFiles):
    """The base and an empty journal. Another process writes the base."""

    def __init__(self, files: DataFiles, number: int, base_seq: int) -> None:
        super().__init__(files, number, base_seq, lambda: None)
        self._descriptor = -1

    @property
    def has_base(self) -> bool:
        return self._descriptor >= 0

    def begin_base(self) -> None:
        name = temporary(base_name(self._number))
        self._files.unfinished.add(name)
        path = self._files.disk.directory / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)

    @property
    def descriptor(self) -> int:
        return self._descriptor

    def finish_base(self) -> None:
        os.fsync(self._descriptor)

    def close(self) -> None:
        super().close()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class RedisReplacement(DataReplacement):
    """One full sync. `may_lose`: the new data may be less than that here. `convert_worker` is the
    thread that waits for the conversion."""

    def __init__(
        self,
        tools: ChangeTools,
        keyspace: Keyspace,
        worker: TaskWorker,
        convert_worker: TaskWorker,
        converter: Converter,
        on_written: Callable[[], None],
        on_done: Callable[[Exception | None], None],
        *,
        may_lose: bool,
    ) -> None:
        files = tools.persistence.files
        number, last_seq = files.new_number(), tools.persistence.commits.last_seq + 1
        self._new_files = ConvertedFiles(files, number, last_seq)
        super().__init__(tools, self._new_files, number, last_seq, worker, on_written, on_done)
        self.converted = Converted()
        self._keyspace = keyspace
        self._convert_worker = convert_worker
        self._converter = converter
        self._may_lose = may_lose
        self._announced_bytes = -1
        self._is_converting = False
        self._is_given_up = False
        self._rdb = SpoolFile(
            files.disk.directory, worker, tools.machine.scheduler, on_written, self._spool_failed
        )

    # The RDB

    @property
    def is_busy(self) -> bool:
        return self._rdb.queued_bytes >= 2 << 20

    @property
    def received_bytes(self) -> int:
        return self._rdb.size_bytes

    @property
    def total_bytes(self) -> int:
        return max(self._announced_bytes, self._rdb.size_bytes)

    def announce(self, size_bytes: int) -> None:
        """The RDB has this size; -1: it is not known."""
        self._announced_bytes = size_bytes

    def piece(self, data: bytes) -> None:
        self._rdb.append(data)

    def end_rdb(self) -> None:
        """The RDB is complete: convert it."""
        self._ended = True
        self._submit(self._begin_base, self._convert_soon)

    def _spool_failed(self, error: Exception) -> None:
        if not self._is_over:
            self._fail(error)

    # Steps

    def _begin_base(self) -> None:
        self._rdb.descriptor()
        self._new_files.begin_base()

    def _convert_soon(self) -> None:
        self._is_converting = True
        self._submit(self._convert, self._decide, self._convert_worker.submit)

    def _convert(self) -> None:
        """On the thread of conversions."""
        self.converted = self._converter.convert(
            Conversion(
                rdb=self._rdb.descriptor(),
                size_bytes=self._rdb.size_bytes,
                base=self._new_files.descriptor,
                directory=self._files.directory,
                seq=self._last_seq,
                databases=len(self._keyspace.databases),
                with_streams=not self._may_lose,
                is_over=lambda: self._is_given_up,
            )
        )
        self._new_files.finish_base()

    def _decide(self) -> None:
        self._is_converting = False
        here = sum(map(len, self._keyspace.databases))
        if self._may_lose:
            self._accept()
        elif here and not self.converted.keys:
            self._fail(LessDataError(f"the source has no keys, and this server has {here}"))
        else:
            self._compare_some(iter(self.converted.added.items()))

    def _compare_some(self, left: Iterator[tuple[tuple[int, str], int]]) -> None:
        """Compare streams of the new data with those here, one slice after the other."""
        if self._is_over:
            return
        some = list(islice(left, _COMPARED))
        for (number, name), theirs in some:
            ours = self._entries_added(number, name)
            if theirs < ours:
                self._fail(
                    LessDataError(
                        f'the source has added {theirs} entries to the stream "{name}" of database'
                        f" {number}, and this server has {ours}"
                    )
                )
                return
        if some:
            self._machine.scheduler.call_soon(self._compare_some, left)
        else:
            self._accept()

    def _entries_added(self, number: int, name: str) -> int:
        """Of the stream here with this name; 0 if there is none."""
        for key in keys_of(name):
            value = self._keyspace.databases[number].table.get(key)
            if isinstance(value, Stream):
                return int(value.entries_added)
        return 0

    def _accept(self) -> None:
        for name, count in self.converted.left_out.items():
            log.warning("the full sync leaves out %s of the type %s", counted(count, "key"), name)
        self._submit(self._finish, self._written)

    def _removes_data(self) -> bool:
        """True if there is data here that no Redis has sent."""
        return self._keyspace.source is None and any(map(len, self._keyspace.databases))

    def _fail(self, error: Exception) -> None:
        self._is_given_up = True
        if self._is_converting:
            self._converter.stop()
        self._rdb.close()
        super()._fail(error)

    def _close(self) -> None:
        if self._is_converting:  # the thread may still use the files
            self._convert_worker.submit(super()._close)
        else:
            super()._close()

    def _published(self) -> None:
        self._rdb.close()
        self._worker.submit(self._close_base)
        super()._published()

    def _close_base(self) -> None:
        os.close(self._new_files.descriptor)
