"""The files of a full sync at the replica, while they are received: a base, and a journal with the
frames after it.

They have temporary names, so that a start removes them, and get their final names when they become
current. All methods run on the worker of replicas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from millstream.errors import DataError
from millstream.server.durability.data_files import temporary
from millstream.storage.files.adoption import AdoptedBase
from millstream.storage.files.journal_file import JournalFile, create_journal
from millstream.storage.files.journal_format import U32_MAX
from millstream.storage.files.manifest import base_name, journal_name

if TYPE_CHECKING:
    from millstream.server.durability.data_files import DataFiles

_FRAMES_PER_PAUSE = 32


class ReceivedFiles:
    """`base_frame_bytes` is the size of all frames that the base contains, known when the base is
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
    def names(self) -> tuple[str | None, str | None]:
        """The present names of the base and the journal, as far as there are such files."""
        base, journal = self.temporary_names
        return base if self._base is not None else None, journal if self.journal else None

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
        file, form = self.journal
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
