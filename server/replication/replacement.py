"""A full sync at the replica: everything goes to the disk first, and replaces the data when it is
complete.

1. receive (worker of replicas): write the base to `base-N.msnap.tmp`, and the frames after it to
   `journal-N.mjrnl.tmp`; every record's checksum was checked before.
2. complete: when all frames are there that the primary had when it was asked. Later frames are
   applied after step 6, so a full sync ends under any load.
3. finish (the same worker): sync the journal.
4. keep (worker of snapshots), if this server has data that the primary has not: copy the files into
   the folder `discarded-DATE-TIME`.
5. publish (worker of snapshots, the only one that changes the manifest): make the new files
   current, remove the old ones.
6. load (loop, in slices): empty the keyspace and read the files.

Until step 5 the old data is served and kept, whatever happens. After it the new data is complete on
the disk, and step 6 only repeats what a start would do.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence

from millstream.errors import DataError
from millstream.server.durability.data_files import DataFiles, temporary
from millstream.server.durability.workers import TaskWorker, post
from millstream.server.replication.discarded import keep_copy, remove_copy, remove_older
from millstream.server.replication.link_protocol import FullSync
from millstream.server.replication.records import LinkError, Record
from millstream.server.replication.reload import ChangeTools
from millstream.storage.files.adoption import AdoptedBase
from millstream.storage.files.journal_file import JournalFile, create_journal
from millstream.storage.files.journal_format import U32_MAX
from millstream.storage.files.manifest import base_name, journal_name

log = logging.getLogger("millstream.replication")

_QUEUED_MAX = 2 << 20  # received and not written, before nothing more is read
_AGAIN_S = 0.01
_FRAMES_PER_PAUSE = 32


class ReceivedFiles:
    """The files while they are received. They have temporary names, so that a start removes them,
    and get their final names when they become current. All methods run on the worker of replicas.

    `base_frame_bytes` is the size of all frames that the base contains, known when the base is
    whole. `pause` is called often: it yields the interpreter to the event loop."""

    def __init__(
        self, files: DataFiles, number: int, base_seq: int, pause: Callable[[], None]
    ) -> None:
        self.journal: JournalFile | None = None
        self.base_frame_bytes = 0
        self._files = files
        self._number = number
        self._base_seq = self._last_seq = base_seq
        self._pause = pause
        self._base: AdoptedBase | None = None

    @property
    def temporary_names(self) -> list[str]:
        return [temporary(base_name(self._number)), temporary(journal_name(self._number))]

    @property
    def has_base(self) -> bool:
        return self._base is not None

    @property
    def names(self) -> tuple[str | None, str | None]:
        """The present names of the base and the journal, as far as there are such files."""
        base, journal = self.temporary_names
        return base if self.has_base else None, journal if self.journal else None

    def begin_base(self) -> None:
        name = temporary(base_name(self._number))
        self._files.unfinished.add(name)
        self._base = AdoptedBase(self._files.disk.create(name), self._files.directory)

    def write_base(self, data: bytes) -> None:
        assert self._base is not None
        self._base.write(data)

    def finish_base(self) -> None:
        """Give the base this directory's ID, sync it, and check its ends."""
        assert self._base is not None
        summary = self._base.finish()
        self._base.file.close()
        if summary.seq != self._base_seq:
            raise DataError(
                f"the base ends with frame {summary.seq}, {self._base_seq} was announced"
            )
        self.base_frame_bytes = summary.global_meta.get("frame_bytes", 0)

    def append(self, payloads: Sequence[bytes]) -> None:
        """Add the next frames to the journal."""
        if self.journal is None:
            self.begin_journal()
        assert self.journal is not None
        file, form = self.journal.file, self.journal.format
        frames: list[bytes] = []
        end = file.size
        for payload in payloads:
            # No frame of this file is known to be on the disk before the sync at its end.
            unsynced = min(self._last_seq - self._base_seq, U32_MAX)
            self._last_seq += 1
            frames.append(form.encode(end, self._last_seq, unsynced, payload))
            end += len(frames[-1])
            if len(frames) % _FRAMES_PER_PAUSE == 0:
                self._pause()
        file.write(frames[0] if len(frames) == 1 else b"".join(frames))

    def begin_journal(self) -> None:
        name = temporary(journal_name(self._number))
        self._files.unfinished.add(name)
        self.journal = create_journal(self._files.disk, name, self._files.directory)

    def finish_journal(self) -> None:
        if self.journal is not None:
            self.journal.file.sync()

    def close(self) -> None:
        for opened in (self._base, self.journal):
            if opened is not None:
                with contextlib.suppress(OSError):
                    opened.file.close()


class DataReplacement:
    """The data of this server is replaced by files that are received, the last of which has the
    frames up to `last_seq`. `on_written` is called when more may be received, and `on_done(error)`
    once: None when the new data is loaded. After an error the old data is untouched, unless the new
    data `is_published`."""

    def __init__(
        self,
        tools: ChangeTools,
        received: ReceivedFiles,
        number: int,
        last_seq: int,
        worker: TaskWorker,
        on_written: Callable[[], None],
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self.is_published = False  # or about to be: it cannot be cancelled any more
        self._tools = tools
        self._machine = tools.machine
        self._persistence = tools.persistence
        self._on_written = on_written
        self._on_done = on_done
        self._files = tools.persistence.files
        self._snapshots = tools.persistence.snapshots
        self._worker = worker
        self._number = self._final = number
        self._received = received
        self._last_seq = last_seq
        self._queued_bytes = 0
        self._kept_in = ""  # the folder with the old data
        self._error: Exception | None = None
        self._ended = False
        self._is_over = False

    # Progress

    @property
    def has_ended(self) -> bool:
        """True if everything has arrived that the primary had when it was asked."""
        return self._ended

    @property
    def is_busy(self) -> bool:
        """True if no more should be received for now: the disk is slower than the network."""
        return self._queued_bytes >= _QUEUED_MAX

    @property
    def received_bytes(self) -> int:
        """Of the base and of what follows it."""
        raise NotImplementedError

    @property
    def total_bytes(self) -> int:
        """The number of bytes that are to be received, as far as it is known."""
        raise NotImplementedError

    def _removes_data(self) -> bool:
        """True if this server has data that the primary has not."""
        raise NotImplementedError

    def link_lost(self) -> None:
        """Give up, unless everything has arrived."""
        if not self._ended:
            self.cancel()

    def cancel(self) -> None:
        """Give up, unless the new data is about to count."""
        if not self.is_published and not self._is_over:
            self._fail(DataError("the link was lost"))

    # Steps

    def _submit(
        self,
        step: Callable[[], None],
        then: Callable[[], None] | None = None,
        submit: Callable[[Callable[[], None]], None] | None = None,
        size_bytes: int = 0,
    ) -> None:
        """Run a step on the worker of replicas, or where `submit` takes it; `then` follows it.
        `size_bytes`: the memory that it holds until it is done."""
        self._queued_bytes += size_bytes

        def task() -> None:
            if self._error is None:
                try:
                    step()
                except Exception as error:
                    self._error = error
            post(self._machine.scheduler, self._on_step, then, size_bytes)

        (submit or self._worker.submit)(task)

    def _on_step(self, then: Callable[[], None] | None, size_bytes: int) -> None:
        self._queued_bytes -= size_bytes
        if self._is_over:
            return
        if self._error is not None:
            self._fail(self._error)
        elif then is not None:
            then()
        else:
            self._on_written()

    def _finish(self) -> None:
        if self._persistence.appendonly and self._received.journal is None:
            self._received.begin_journal()
        self._received.finish_journal()

    def _written(self) -> None:
        """Publish when no snapshot runs that would publish the old data after it."""
        if self._is_over:
            return
        if not self._snapshots.suspend():
            self._machine.scheduler.call_later(_AGAIN_S, self._written)
        elif self._removes_data():
            self._submit(self._keep, self._begin_publishing, self._snapshots.worker.submit)
        else:
            self._begin_publishing()

    def _keep(self) -> None:
        journals = self._files.manifest.journals
        self._kept_in = keep_copy(self._files, self._machine.clock(), journals[-1:])

    def _begin_publishing(self) -> None:
        if self._is_over:
            return
        if self._kept_in:
            log.warning(
                "the full sync replaces data that the primary has not: %s has a copy", self._kept_in
            )
        self.is_published = True
        self._final = self._files.new_number()  # above those of all files of the old data
        self._submit(self._publish, self._published, self._snapshots.worker.submit)

    def _publish(self) -> None:
        base, journal = self._received.names
        new_base, new_journal = base_name(self._final), journal_name(self._final)
        renames = [(old, new) for old, new in ((base, new_base), (journal, new_journal)) if old]
        self._files.publish_replacement(
            new_base if base else None, (new_journal,) if journal else (), self._final, renames
        )
        self._files.unfinished.difference_update(self._received.temporary_names)
        self._files.remove_replaced()
        if self._kept_in:
            remove_older(self._files, self._kept_in)

    def _published(self) -> None:
        self._tools.executor.close_held()
        self._persistence.take_over(self._received.journal, self._last_seq)
        self._tools.on_published()
        self._tools.reload(self._end)

    def _fail(self, error: Exception) -> None:
        """Before the new data is published: remove its files. The old data stays."""
        self._worker.submit(self._close)  # after the step that is running
        self._end(error)

    def _close(self) -> None:
        self._received.close()
        self._snapshots.worker.submit(self._remove)

    def _remove(self) -> None:
        self._files.unfinished.difference_update(self._received.temporary_names)
        for number in {self._number, self._final}:
            self._files.remove_unfinished(number)
        if not self.is_published:
            remove_copy(self._files, self._kept_in)

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._snapshots.resume()
        self._on_done(error)


class Replacement(DataReplacement):
    """The data of this server is replaced by that of its primary, another millstream."""

    def __init__(
        self,
        tools: ChangeTools,
        full: FullSync,
        worker: TaskWorker,
        on_written: Callable[[], None],
        on_done: Callable[[Exception | None], None],
    ) -> None:
        number = tools.persistence.files.new_number()
        received = ReceivedFiles(tools.persistence.files, number, full.seq, worker.pause)
        super().__init__(tools, received, number, full.seq, worker, on_written, on_done)
        self.full = full
        self._base_bytes = 0  # of the base, that have arrived
        self._has_base = self._is_base_whole = full.size_bytes == 0
        self._batch: list[bytes] = []  # frames that have arrived in this turn
        self._frame_bytes = 0  # of the frames that have arrived, as `FullSync` counts them
        if full.size_bytes:
            self._submit(self._received.begin_base)
        else:
            self._end_if_complete()

    # Arriving records

    @property
    def received_bytes(self) -> int:
        """Of the base and of frames."""
        return self._base_bytes + self._frame_bytes

    @property
    def total_bytes(self) -> int:
        """Of the base and of the frames after it. Those of the frames are known after the base."""
        total_bytes = self.full.size_bytes
        if self._is_base_whole:
            total_bytes += self.full.frame_bytes - self._received.base_frame_bytes
        return max(total_bytes, self.received_bytes)

    def piece(self, offset: int, data: bytes) -> None:
        if offset != self._base_bytes or offset + len(data) > self.full.size_bytes:
            raise LinkError(f"a piece at {offset}, {self._base_bytes} bytes have arrived")
        self._base_bytes += len(data)
        self._submit(lambda: self._received.write_base(data), size_bytes=len(data))

    def end_base(self) -> None:
        if self._base_bytes != self.full.size_bytes or self._has_base:
            raise LinkError(f"the base ends at {self._base_bytes} of {self.full.size_bytes}")
        self._has_base = True
        self._submit(self._received.finish_base, self._base_finished)

    def frame(self, record: Record) -> None:
        """A frame has arrived, in order; `batch_arrived` follows in the same turn."""
        if not self._has_base:
            raise LinkError(f"frame {record.number} arrived before the end of the base")
        self._batch.append(record.payload)
        self._frame_bytes += record.size
        self._last_seq = record.number

    def batch_arrived(self) -> None:
        """Write the frames that have arrived in this turn."""
        if not self._batch:
            return
        batch, self._batch = self._batch, []
        self._submit(lambda: self._received.append(batch), size_bytes=sum(map(len, batch)))
        self._end_if_complete()

    def _base_finished(self) -> None:
        self._is_base_whole = True
        self._end_if_complete()
        self._on_written()

    def _end_if_complete(self) -> None:
        """A frame more than necessary does no harm: the size of all frames says which is the last
        one that the primary had when it was asked."""
        if not self._is_base_whole:
            return
        if self._received.base_frame_bytes + self._frame_bytes >= self.full.frame_bytes:
            self._ended = True
            self._submit(self._finish, self._written)

    def _removes_data(self) -> bool:
        """True if this server has frames that the primary has not."""
        commits, full = self._persistence.commits, self.full
        is_ahead = 0 <= full.common_seq < commits.last_seq
        return is_ahead or full.frame_bytes < commits.frame_bytes
