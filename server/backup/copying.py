"""A new data directory made of a base and the frames after it, as they arrive.

The files have temporary names, and the manifest is written last, after everything else is on the
disk: a server does not start on an unfinished copy. The copy is a data directory of its own, with
an ID of its own.
"""

from __future__ import annotations

from millstream.errors import DataError
from millstream.server.durability.data_files import DataFiles
from millstream.server.replication.replacement import ReceivedFiles
from millstream.storage.files.disk import Disk
from millstream.storage.files.journal_format import ID_SIZE
from millstream.storage.files.manifest import Manifest, base_name, journal_name

_BATCH_BYTES = 1 << 20  # of frames, written together
_NUMBER = 1  # of the files


class CopyWriter:
    """Writes one copy: the pieces of the base, if it has `base_bytes`, then the frames from
    `base_seq` + 1 on. DataError for data that does not continue where the last data ended, OSError
    when the disk fails.

    `last_seq` is the last frame so far, and `size_bytes` counts what was written."""

    def __init__(self, disk: Disk, base_seq: int, base_bytes: int) -> None:
        self.last_seq = base_seq
        self.size_bytes = 0
        self._files = DataFiles(disk)
        self._files.directory = disk.random(ID_SIZE)
        self._received = ReceivedFiles(self._files, _NUMBER, base_seq, lambda: None)
        self._base_bytes = base_bytes
        self._base_left = base_bytes
        self._is_base_whole = base_bytes == 0
        self._batch: list[bytes] = []
        self._batch_bytes = 0
        if base_bytes:
            self._received.begin_base()

    def piece(self, offset: int, data: bytes) -> None:
        """The next bytes of the base."""
        if offset != self._base_bytes - self._base_left or len(data) > self._base_left:
            raise DataError("the pieces of the base are not in order")
        self._base_left -= len(data)
        self.size_bytes += len(data)
        self._received.write_base(data)

    def end_base(self) -> None:
        if self._base_left or self._is_base_whole:
            raise DataError(f"the base ends {self._base_left} bytes too early")
        self._received.finish_base()
        self._is_base_whole = True

    def frame(self, seq: int, payload: bytes) -> None:
        if not self._is_base_whole or seq != self.last_seq + 1:
            raise DataError(f"frame {seq} arrived after frame {self.last_seq}")
        self.last_seq = seq
        self.size_bytes += len(payload)
        self._batch.append(payload)
        self._batch_bytes += len(payload)
        if self._batch_bytes >= _BATCH_BYTES:
            self._write_batch()

    def _write_batch(self) -> None:
        if self._batch:
            batch, self._batch = self._batch, []
            self._batch_bytes = 0
            self._received.append(batch)

    def finish(self, last_seq: int) -> None:
        """Sync everything, and write the manifest. DataError when frames up to `last_seq` are
        missing."""
        if not self._is_base_whole or self.last_seq != last_seq:
            raise DataError(f"the copy ends at frame {self.last_seq} of {last_seq}")
        self._write_batch()
        self._received.finish_journal()
        self._received.close()
        base, journal = self._received.names
        new_base, new_journal = base_name(_NUMBER), journal_name(_NUMBER)
        renames = [(old, new) for old, new in ((base, new_base), (journal, new_journal)) if old]
        journals = (new_journal,) if journal else ()
        manifest = Manifest(new_base if base else None, journals, _NUMBER + 1, b"")
        self._files.publish(manifest, renames)

    def close(self) -> None:
        """Close the files of a copy that is not finished."""
        self._received.close()
