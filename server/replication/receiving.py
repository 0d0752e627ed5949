"""A full sync at the replica: the base goes to the disk first, and replaces the data when it is
complete.

1. receive (worker of replicas): write `base-N.msnap.tmp`; every record's checksum was checked
   before.
2. finish (the same): give the base this directory's ID, sync it, check its ends.
3. keep (worker of snapshots), if this server has data that the primary has not: copy the files into
   the folder `discarded-DATE-TIME`.
4. publish (worker of snapshots, the only one that changes the manifest): make the base and a new
   empty journal current, remove the old files.
5. load (loop, in slices): empty the keyspace and read the base.

Until step 4 the old data is served and kept, whatever happens. After it the new data is complete on
the disk, and step 5 only repeats what a start would do.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from millstream.errors import DataError
from millstream.server.durability.data_files import temporary
from millstream.server.durability.workers import TaskWorker, post
from millstream.server.replication.discarded import keep_copy, remove_copy, remove_older
from millstream.server.replication.records import LinkError
from millstream.server.replication.reloading import Reload
from millstream.storage.files.adoption import AdoptedBase
from millstream.storage.files.journal_file import JournalFile, create_journal
from millstream.storage.files.manifest import base_name, journal_name

if TYPE_CHECKING:
    from millstream.server.replication.link import FullSync
    from millstream.server.replication.node import Node

log = logging.getLogger("millstream.replication")

_QUEUED_PIECES_MAX = 8
_AGAIN_S = 0.01


class Replacement:
    """The data of this server is replaced by that of its primary. `on_done(error)` is called once:
    None when the new data is loaded; otherwise the old data is untouched."""

    def __init__(
        self,
        node: Node,
        worker: TaskWorker,
        full: FullSync,
        on_done: Callable[[Exception | None], None],
    ) -> None:
        self.full = full
        self.is_published = False  # or about to be: it cannot be cancelled any more
        self.received_bytes = 0
        self._node = node
        self._on_done = on_done
        self._files = node.persistence.files
        self._snapshots = node.persistence.snapshots
        self._worker = worker
        self._number = self._final = self._files.new_number()
        self._base: AdoptedBase | None = None
        self._journal: JournalFile | None = None
        self._queued = 0
        self._kept_in = ""  # the folder with the old data
        self._error: Exception | None = None
        self._ended = False
        self._is_over = False
        self.on_written: Callable[[], None] = lambda: None
        self.on_published: Callable[[], None] = lambda: None
        if full.size_bytes:
            self._submit(self._create)
        else:
            self.end()

    # What arrives

    @property
    def has_ended(self) -> bool:
        """Whether all of the base has arrived."""
        return self._ended

    @property
    def is_busy(self) -> bool:
        """Whether to receive no more for now: the disk is slower than the network."""
        return self._queued >= _QUEUED_PIECES_MAX

    def piece(self, offset: int, data: bytes) -> None:
        if offset != self.received_bytes or offset + len(data) > self.full.size_bytes:
            raise LinkError(f"a piece at {offset}, {self.received_bytes} bytes have arrived")
        self.received_bytes += len(data)
        self._submit(lambda: self._write(data))

    def end(self) -> None:
        if self.received_bytes != self.full.size_bytes or self._ended:
            raise LinkError(f"the base ends at {self.received_bytes} of {self.full.size_bytes}")
        self._ended = True
        self._submit(self._finish, self._written)

    def link_lost(self) -> None:
        """Give up, unless all of the base has arrived."""
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
    ) -> None:
        """Run a step on the worker of replicas, or where `submit` takes it; `then` follows it."""
        self._queued += 1

        def task() -> None:
            if self._error is None:
                try:
                    step()
                except Exception as error:
                    self._error = error
            post(self._node.loop, self._on_step, then)

        (submit or self._worker.submit)(task)

    def _on_step(self, then: Callable[[], None] | None) -> None:
        self._queued -= 1
        if self._is_over:
            return
        if self._error is not None:
            self._fail(self._error)
        elif then is not None:
            then()
        else:
            self.on_written()

    def _create(self) -> None:
        name = temporary(base_name(self._number))
        self._files.unfinished.add(name)
        file = self._files.disk.create(name)
        self._base = AdoptedBase(file, self._files.directory)

    def _write(self, data: bytes) -> None:
        assert self._base is not None
        self._base.write(data)

    def _finish(self) -> None:
        if self._base is not None:
            seq = self._base.finish().seq
            self._base.file.close()
            if seq != self.full.seq:
                raise DataError(f"the base ends with frame {seq}, {self.full.seq} was announced")
        if self._node.config.appendonly:
            name = temporary(journal_name(self._number))
            self._files.unfinished.add(name)
            self._journal = create_journal(self._files.disk, name, self._files.directory)

    def _written(self) -> None:
        """Publish when no snapshot runs that would publish the old data after it."""
        if self._is_over:
            return
        if not self._snapshots.suspend():
            self._node.loop.call_later(_AGAIN_S, self._written)
        elif self._removes_data():
            self._submit(self._keep, self._begin_publishing, self._snapshots.submit)
        else:
            self._begin_publishing()

    def _removes_data(self) -> bool:
        """Whether this server has frames that the primary has not."""
        frames, full = self._node.persistence, self.full
        is_ahead = 0 <= full.common_seq < frames.last_seq
        return is_ahead or full.frame_bytes < frames.frame_bytes

    def _keep(self) -> None:
        journals = self._files.manifest.journals
        self._kept_in = keep_copy(self._files, self._node.now_ms(), journals[-1:])

    def _begin_publishing(self) -> None:
        if self._is_over:
            return
        if self._kept_in:
            log.warning(
                "the full sync replaces data that the primary has not: %s has a copy", self._kept_in
            )
        self.is_published = True
        self._final = self._files.new_number()  # above those of all files of the old data
        self._submit(self._publish, self._published, self._snapshots.submit)

    def _publish(self) -> None:
        base: str | None = None
        journals: tuple[str, ...] = ()
        renames: list[tuple[str, str]] = []
        if self._base is not None:
            base = base_name(self._final)
            renames.append((self._base.file.name, base))
        if self._journal is not None:
            journals = (journal_name(self._final),)
            renames.append((temporary(journal_name(self._number)), *journals))
        self._files.publish_replacement(base, journals, self._final, renames)
        self._files.unfinished.difference_update(self._temporary_names())
        self._files.remove_replaced()
        if self._kept_in:
            remove_older(self._files, self._kept_in)

    def _temporary_names(self) -> list[str]:
        return [temporary(base_name(self._number)), temporary(journal_name(self._number))]

    def _published(self) -> None:
        node = self._node
        node.executor.close_held()
        node.persistence.take_over(self._journal, self.full.seq)
        self.on_published()
        Reload(node, self._end)

    def _fail(self, error: Exception) -> None:
        """Before the new data is published: remove its files. The old data stays."""
        self._worker.submit(self._close)  # after the step that is running
        self._end(error)

    def _close(self) -> None:
        for opened in (self._base, self._journal):
            if opened is not None:
                with contextlib.suppress(OSError):
                    opened.file.close()
        self._snapshots.submit(self._remove)

    def _remove(self) -> None:
        self._files.unfinished.difference_update(self._temporary_names())
        for number in {self._number, self._final}:
            self._files.remove_unfinished(number)
        if not self.is_published:
            remove_copy(self._files, self._kept_in)

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._snapshots.suspended = False
        self._on_done(error)
