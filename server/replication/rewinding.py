"""A rewind: the newest frames here belong to a line of history that has ended. They are cut off,
and the server continues with those that its primary has, too.

1. wait (loop): until no snapshot runs and all frames are on the disk.
2. keep (worker): find where the journals are cut, count what is cut off, and copy the files into
   the folder `discarded-DATE-TIME`, which is a data directory of its own.
3. stop writing (loop): replies that were not sent yet never are; clients get LOADING.
4. cut (worker): as a start cuts a torn end. After a crash here the directory has a first part of
   the old frames, and the next link asks for the rewind again.
5. load (loop, in slices).

Until step 3 the old data is served and kept. When a step before it fails, a full sync follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from millstream.commands.runtime.effects import split_effects
from millstream.errors import DataError
from millstream.server.durability.directory_loader import LoadReport
from millstream.server.durability.persistence import Persistence
from millstream.server.durability.workers import post
from millstream.server.replication.discarded import keep_copy, remove_copy, remove_older
from millstream.server.replication.reload import ChangeTools
from millstream.storage.files.disk import File
from millstream.storage.files.journal_file import JournalFile
from millstream.storage.files.journal_reader import JournalReader, TornEnd
from millstream.storage.files.manifest import Manifest

log = logging.getLogger("millstream.replication")

_AGAIN_S = 0.01
_ENTRY_EFFECTS = frozenset((b"APPEND", b"APPENDONCE", b"COMPLETE", b"FIRE"))
_FRAMES_PER_PAUSE = 64


class Cut(NamedTuple):
    """The end of the journals after the cut, and the parts that are cut off."""

    end: TornEnd
    frames: int
    streams: int
    entries: int


def why_impossible(frames: Persistence, seq: int) -> str:
    """The reason why this server cannot be cut back to frame `seq`; "" if it can."""
    if not frames.appendonly or frames.commits.on_disk_seq < 0:
        return "there is no journal that works"
    if frames.base_seq > seq:
        return f"the base here has the frames up to {frames.base_seq}"
    if seq >= frames.commits.last_seq:
        return f"frame {frames.commits.last_seq} is the last one here"
    return ""


class Rewinding:
    """Cuts the data back to frame `seq`. `on_done(error)` is called once: None when the data up to
    `seq` is loaded. `is_published`: the journals are being cut, or are cut already."""

    def __init__(
        self, tools: ChangeTools, seq: int, on_done: Callable[[Exception | None], None]
    ) -> None:
        self.is_published = False
        self._seq = seq
        self._tools = tools
        self._machine = tools.machine
        self._persistence = tools.persistence
        self._executor = tools.executor
        self._on_done = on_done
        self._files = tools.persistence.files
        self._folder = ""
        self._is_over = False
        self._cut: Cut | None = None
        self._machine.scheduler.call_soon(self._wait)

    def cancel(self) -> None:
        """Give up, unless the journals are being cut."""
        if not self.is_published and not self._is_over:
            self._end(DataError("it was cancelled"))

    def link_lost(self) -> None:
        """The link has ended before: the next one begins after the rewind."""

    # Steps on the loop

    def _wait(self) -> None:
        if self._is_over:
            return
        frames = self._persistence
        snapshots = frames.snapshots
        if snapshots.suspend():
            reason = why_impossible(frames, self._seq)
            if reason:  # the snapshot that was running has become the base
                self._end(DataError(reason))
                return
            if frames.commits.on_disk_seq >= frames.commits.last_seq:
                snapshots.worker.submit(self._keep_in_worker)
                return
            frames.commits.sync_soon()
        self._machine.scheduler.call_later(_AGAIN_S, self._wait)

    def _kept(self, found: Cut | Exception) -> None:
        if self._is_over:  # cancelled: nothing is cut off
            snapshots = self._persistence.snapshots
            snapshots.worker.submit(lambda: remove_copy(self._files, self._folder))
            return
        if isinstance(found, Exception):
            self._end(found)
            return
        self._cut = found
        self.is_published = True
        log.warning(
            "frames %d to %d belong to a line of history that has ended: they are cut off and kept"
            " in %s (streams: %d, entries: %d)",
            self._seq + 1, self._seq + found.frames, self._folder, found.streams, found.entries,
        )  # fmt: skip
        self._executor.close_held()
        self._executor.begin_loading()
        self._persistence.end_writing(self._stopped)

    def _stopped(self) -> None:
        self._persistence.snapshots.worker.submit(self._cut_in_worker)

    def _was_cut(self, made: tuple[JournalFile, int] | Exception) -> None:
        if isinstance(made, Exception):
            self._executor.end_loading()
            self._persistence.journal_was_lost(made)
            self._end(made)
            return
        opened, older_bytes = made
        self._persistence.take_over(opened, self._seq, older_bytes)
        self._tools.on_published()
        self._tools.reload(self._end)

    def _end(self, error: Exception | None) -> None:
        self._is_over = True
        self._persistence.snapshots.resume()
        self._on_done(error)

    # Steps on the worker of snapshots, the only one that changes the manifest

    def _keep_in_worker(self) -> None:
        found: Cut | Exception
        try:
            manifest = self._files.manifest
            found = self._find_cut(manifest)
            written = manifest.journals[found.end.number :]
            self._folder = keep_copy(self._files, self._machine.clock(), written)
        except Exception as error:
            found = error
        post(self._machine.scheduler, self._kept, found)

    def _find_cut(self, manifest: Manifest) -> Cut:
        disk = self._files.disk
        files: list[File] = []
        try:
            for name in manifest.journals:
                files.append(disk.read(name))
            return self._cut_of(files)
        finally:
            for file in files:
                file.close()

    def _cut_of(self, files: list[File]) -> Cut:
        """Read all frames, and count those after the cut."""
        reader = JournalReader(files, self._persistence.base_seq + 1)
        at: tuple[File, int] | None = None
        frames = entries = 0
        streams: set[tuple[int, bytes]] = set()
        for file, offset, payload in reader.frames():
            if reader.next_seq % _FRAMES_PER_PAUSE == 0:
                self._persistence.snapshots.worker.pause()
            if reader.next_seq <= self._seq:
                continue
            at = at or (file, offset)
            frames += 1
            for db, words, _ in split_effects(payload):
                if words[0] in _ENTRY_EFFECTS:
                    entries += 1
                    streams.add((db, words[1]))
        if at is None:
            raise DataError(f"there is no frame after {self._seq} in the journals")
        index = files.index(at[0])
        cut_bytes = sum(file.size for file in files[index:]) - at[1]
        return Cut(TornEnd(index, at[1], cut_bytes), frames, len(streams), entries)

    def _cut_in_worker(self) -> None:
        made: tuple[JournalFile, int] | Exception
        try:
            assert self._cut is not None
            self._files.cut(self._cut.end, LoadReport(), self._seq)
            opened = self._files.continued_journal()
            made = opened, self._files.sizes_of(self._files.manifest.journals[:-1])
        except Exception as error:
            made = error
        else:
            remove_older(self._files, self._folder)
        post(self._machine.scheduler, self._was_cut, made)
