"""The journal: frames of effects, written with group commit.

`Journal` writes. Under `appendfsync always` the loop only queues frames. A worker writes all queued
frames, syncs once and reports the sequence number: this is group commit. The loop waits for the
worker only in `close`. A frame that need not be synced is written by the loop while the queue is
empty, and synced with a later frame or within a second. After a change from `always` to another
mode, frames still go to the worker until its queue is empty. `queued_bytes` counts the queued
frames; the owner bounds the queue by adding none while `is_full`. Under `everysec` and `no` the
loop itself writes, because a write(2) of a small frame costs less than passing the frame to a
thread. Under `everysec` the worker syncs; under `no` there is no sync.

Rejected: a Condition or a raw lock to wake the worker (within 5 % of a SimpleQueue, because the
disk dominates the round trip), and one pwritev with RWF_DSYNC (saves a thread switch, but leaves
frames written before a change of modes unsynced).
"""

import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

from millstream.memory_reserve import RESERVE
from millstream.storage.files.disk import File
from millstream.storage.files.journal_file import (
    RESERVE_LEAST,
    JournalFile,
    give_back,
    reserve_after,
    reserve_ahead,
)
from millstream.storage.files.journal_format import FRAME_SIZE, U32_MAX

UNBOUNDED = 1 << 62
# Maximum payload of a frame. Its length has four bytes in the file.
PAYLOAD_MAX = 1 << 30
# Memory that a queued frame uses in addition to its bytes.
FRAME_OVERHEAD = 64

# Shorter frames are joined up to this size, to be written together. The payload of a longer frame
# is written from its own memory: memory for a copy would be mapped and returned for each frame.
_JOIN_BYTES = 64 << 10


class Frame:
    """A frame in the queue that is written in two parts, or need not be synced. Any other frame is
    a bytes object there."""

    __slots__ = ("head", "must_sync", "payload")

    def __init__(self, head: bytes, payload: bytes, must_sync: bool) -> None:
        self.head = head
        self.payload = payload
        self.must_sync = must_sync

    def __len__(self) -> int:
        """Its size in the file, as that of a bytes object."""
        return len(self.head) + len(self.payload)

    def write_to(self, file: File) -> None:
        file.write(self.head)
        if self.payload:
            file.write(self.payload)


class Worker(Protocol):
    """Runs tasks one after the other, outside the event loop."""

    def submit(self, task: Callable[[], None]) -> None: ...

    def drain(self, tell: Callable[[float], None] | None = None) -> None:
        """Return when all tasks submitted so far have run. `tell(seconds)` is called from time to
        time during a long wait."""


class JournalOwner(Protocol):
    """Callbacks of a journal; called on the worker's thread or on the loop's."""

    def journal_synced(self, journal: "Journal", seq: int) -> None:
        """All frames up to `seq` are on the disk."""

    def journal_failed(self, journal: "Journal", error: OSError) -> None:
        """A write or sync failed; the journal writes no more. Called once."""

    def journal_written(self, journal: "Journal", seq: int) -> None:
        """The worker has written all frames up to `seq` but not synced them. Called in the modes
        everysec and no; in the mode always only after `tell_written` was set."""

    def journal_released(self, journal: "Journal", seq: int) -> None:
        """In the mode always: the frames up to `seq` are written, and those that must be synced
        are."""

    def journal_space(self, journal: "Journal", error: OSError | None) -> None:
        """Reserving space failed, or works again (None)."""


class Journal:
    """The journal that is written, one file at a time; `rotate` continues in another file.

    `sync_file(file)` syncs a file with frames, on the worker's thread; the owner may replace it to
    measure the time. `append` accepts consecutive sequence numbers. After a failure the journal
    drops all frames; the owner abandons it and begins another one.
    """

    def __init__(
        self,
        opened: JournalFile,
        first_seq: int,
        mode: str,
        worker: Worker,
        owner: JournalOwner,
        reserve_bytes: int,
    ) -> None:
        """Write to `opened`, beginning with frame `first_seq`."""
        self.mode = mode
        self.synced_seq = first_seq - 1
        self.error: OSError | None = None
        self.sync_file: Callable[[File], None] = lambda file: file.sync()
        self._worker = worker
        self._owner = owner
        self._file = file = opened.file
        self._seq = first_seq - 1
        self._pending: deque[bytes | Frame | File] = deque()
        self._kicked = False
        # Whether frames go to the worker. The worker counts an item as done only after its last
        # access to the file for it. When both counts are equal, the loop may write.
        self._queues = mode == "always"
        self._queued_items = 0  # the loop's count
        self._taken_items = self._done_items = 0  # the worker's
        self._task = self._write_pending
        self._written_seq = first_seq - 1
        self._reserve_bytes = reserve_bytes
        self._ahead_bytes = reserve_bytes // 2  # reserve more when less than this is left
        self._spare_bytes = min(reserve_bytes, RESERVE_LEAST) // 4
        # Frames in memory: those queued by the loop minus those written by the worker. Each side
        # changes only its own count, so no lock is needed.
        self._queued_total = 0
        self._written_total = 0
        self.tell_written = False
        self._due_seq = 0  # the worker's: the first frame that it has written and must sync
        self._has_free = False  # the worker's: the batch has a frame that need not be synced
        self._free_seq = 0  # the loop's: the last such frame
        # Used by the loop: the file for new frames, and its end after all queued frames.
        self._last_file = file
        self._format = opened.format
        self._end = file.size
        self._reserving = False
        self._space_error = False
        # While a base is written on a full disk, the space is for the base.
        self.leaves_space = False

    @property
    def size_bytes(self) -> int:
        """Bytes in the current file, without queued frames."""
        return self._file.size

    @property
    def name(self) -> str:
        """The name of the file in the manifest, or in the manifest of the base being written."""
        return self._file.name.removesuffix(".tmp")

    @property
    def last_seq(self) -> int:
        """The last frame that was appended."""
        return self._seq

    @property
    def written_seq(self) -> int:
        """The last frame that is written to the file; it may not be on the disk yet."""
        return self._written_seq

    @property
    def queued_bytes(self) -> int:
        """Memory used by frames that are not written yet."""
        return self._queued_total - self._written_total

    def is_full(self, limit_bytes: int) -> bool:
        """True if to add no frames until the worker has written: more than `limit_bytes` are
        queued, or the queue has used the reserved space. The worker reserves more after its batch;
        if the loop did it, it would wait for the disk."""
        queued_bytes = self.queued_bytes
        if queued_bytes == 0 or self.error is not None:
            return False
        return queued_bytes > limit_bytes or (
            self._reserve_bytes > 0 and self._room_bytes() < self._ahead_bytes // 4
        )

    def append(self, seq: int, payload: bytes, must_sync: bool = True) -> bool:
        """Add a frame; True when replies may be sent immediately: in the modes everysec and no, and
        for a frame that need not be synced. `must_sync` counts only in the mode always.

        Any error fails the journal, because no later frame may follow the gap.
        """
        self._seq = seq
        if self.error is not None:
            return False
        try:
            return self._append(seq, payload, must_sync)
        except Exception as error:
            self.fail(error)
            return False

    def _append(self, seq: int, payload: bytes, must_sync: bool) -> bool:
        if len(payload) > PAYLOAD_MAX:
            raise OSError(errno.EFBIG, f"{len(payload)} bytes are too large for one frame")
        unsynced = min(seq - 1 - self.synced_seq, U32_MAX)
        if len(payload) >= _JOIN_BYTES:
            head = self._format.encode_head(self._end, seq, unsynced, payload)
            return self._add(Frame(head, payload, must_sync), seq)
        try:
            frame = self._format.encode(self._end, seq, unsynced, payload)
        except MemoryError:
            if not RESERVE.give_back():
                raise
            frame = self._format.encode(self._end, seq, unsynced, payload)
        return self._add(frame if must_sync else Frame(frame, b"", must_sync=False), seq)

    def _add(self, frame: bytes | Frame, seq: int) -> bool:
        must_sync = isinstance(frame, bytes) or frame.must_sync
        self._end += len(frame)
        if not must_sync:
            self._free_seq = seq
        if not self._must_queue(must_sync):
            return self._write_now(frame, seq)
        self._queued_total += len(frame) + FRAME_OVERHEAD
        self._queue(frame)
        return False

    def rotate(self, opened: JournalFile) -> None:
        """Continue in a file without frames; the old file is synced and closed."""
        file, self._format = opened.file, opened.format
        self._last_file = file
        self._end = file.size
        if self._must_queue():
            self._queue(file)
            return
        old, self._file = self._file, file
        last_seq = self._seq
        self._worker.submit(lambda: self._retire(old, last_seq))
        self.request_space()

    def set_mode(self, mode: str) -> None:
        """Change `appendfsync` from the next frame on, without waiting for the worker."""
        if mode == self.mode:
            return
        self.mode = mode
        if mode == "always":
            self._queues = True
            self._sync_soon()  # for frames written before; later ones wait for it

    def tick_second(self) -> None:
        """Called once a second: sync under everysec, and retry a failed reservation."""
        if self.error is not None:
            return
        if self.mode == "everysec" and self.synced_seq < self._seq:
            self._sync_soon()
        elif self.mode == "always":
            self._sync_free()
        if self._space_error:
            self.request_space()

    def sync_soon(self) -> None:
        """Sync written frames, unless the sync is automatic (`always`) or nothing is unsynced."""
        if self.error is not None or self.synced_seq >= self._seq:
            return
        if self.mode != "always":
            self._sync_soon()
        else:
            self._sync_free()

    def make_room(self, payload_bytes: int) -> int:
        """Ensure space for a payload of this size in the next frame; return the maximum payload.

        OSError when the disk is full, and for more than PAYLOAD_MAX, the limit of a frame. The
        reserved space is mostly enough. For a very large frame, or on a disk that is nearly full,
        the caller waits for the disk.
        """
        if payload_bytes > PAYLOAD_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if not self._reserve_bytes or self.error is not None:
            return PAYLOAD_MAX
        if self._room_bytes() < payload_bytes:
            least_bytes = payload_bytes + FRAME_SIZE + self._spare_bytes
            reserve_after(
                self._last_file, self._end, least_bytes + self._reserve_bytes, least_bytes
            )
        return min(self._room_bytes(), PAYLOAD_MAX)

    def make_last_room(self, payload_bytes: int) -> int:
        """Like `make_room`, for commands that only remove: with all reserved space, and with the
        last space on the disk."""
        if not self._reserve_bytes or self.error is not None:
            return PAYLOAD_MAX
        if self._last_room_bytes() < payload_bytes:
            size_bytes = payload_bytes + FRAME_SIZE
            reserve_after(self._last_file, self._end, size_bytes, size_bytes)
        return min(self._last_room_bytes(), PAYLOAD_MAX)

    def is_short(self) -> bool:
        """True if there is hardly any space for another frame."""
        return self._reserve_bytes > 0 and self._room_bytes() < self._spare_bytes

    def _room_bytes(self) -> int:
        return self._last_room_bytes() - self._spare_bytes

    def _last_room_bytes(self) -> int:
        return self._last_file.reserved_end - self._end - FRAME_SIZE

    def close(self, tell: Callable[[float], None] | None = None) -> None:
        """Write and sync all frames, and release reserved space. OSError when that fails.
        `tell(seconds)` is called from time to time while the disk takes long."""
        self.end()
        self._worker.drain(tell)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Like `close`, but without waiting: the owner is notified when the last frame is synced or
        the journal has failed. No frame may follow."""
        self._worker.submit(self._finish)

    def abandon(self) -> None:
        """Close the file of a failed journal without a sync: its end is the same as after a
        crash."""
        if self.error is None:
            self.error = OSError(errno.EIO, "abandoned")
        self._kick()  # drops queued frames
        self._worker.submit(lambda: self._file.close())

    # Methods that run on the loop.

    def _must_queue(self, must_sync: bool = True) -> bool:
        """True if the next frame goes to the worker: under `always` one that must be synced, and
        any other one while the worker has unfinished items."""
        if self.mode != "always" and self._queues:
            self._queues = self._done_items < self._queued_items
        elif self._queues and not must_sync:
            return self._done_items < self._queued_items
        return self._queues

    def _queue(self, item: bytes | Frame | File) -> None:
        self._queued_items += 1
        self._pending.append(item)
        self._kick()

    def _write_now(self, frame: bytes | Frame, seq: int) -> bool:
        if self.error is not None:
            return False
        file = self._file
        try:
            if isinstance(frame, bytes):
                file.write(frame)
            else:
                frame.write_to(file)
        except Exception as error:  # any error: later frames would leave a gap
            self.fail(error)
            return False
        self._written_seq = seq
        if file.size + self._ahead_bytes > file.reserved_end:
            self.request_space()
        return True

    def _sync_free(self) -> None:
        """Under `always`, sync the frames that need not be synced, if no later frame has done so.
        The worker counts it as an item only while it has others, so frames need not wait for it."""
        if self.synced_seq >= self._free_seq:
            return
        if self._done_items < self._queued_items:
            self._sync_soon()
            return
        file, seq = self._file, self._written_seq
        self._worker.submit(lambda: self._sync(file, seq))

    def _sync_soon(self) -> None:
        # File and number must be read on the thread that writes them. Otherwise a rotation between
        # the two reads would report the old file's end as synced.
        if self._queues:
            self._queued_items += 1
            self._worker.submit(self._sync_written)
            return
        file, seq = self._file, self._written_seq
        self._worker.submit(lambda: self._sync(file, seq))

    def _kick(self) -> None:
        if not self._kicked:
            self._kicked = True
            self._worker.submit(self._task)

    def request_space(self) -> None:
        """Reserve more space on the worker. Called before the first write, too, so that a full disk
        is detected then."""
        if not self._reserving:
            self._reserving = True
            self._worker.submit(self._reserve)

    # Methods that run on the worker.

    def _write_pending(self) -> None:
        # Cleared before the queue is read, so that a frame queued later kicks again.
        self._kicked = False
        try:
            # The loop may fail the journal while a batch is synced.
            while self._pending and self.error is None:
                self._write_batch()
        except Exception as error:
            # After any error, frames taken from the queue may be lost, and later frames would leave
            # a gap.
            self.fail(error)
        if self.error is not None:
            self._drop_pending()

    def _drop_pending(self) -> None:
        while self._pending:
            item = self._pending.popleft()
            if isinstance(item, bytes | Frame):
                self._written_total += len(item) + FRAME_OVERHEAD
            else:
                item.close()

    def _write_batch(self) -> None:
        # Frames queued meanwhile belong to the next batch, so that this batch reaches its sync.
        mode = self.mode  # read once: the loop may change it, and its sync or this one must run
        next_file = self._write_queued(len(self._pending))
        if self.tell_written or mode != "always":
            self.tell_written = False
            self._owner.journal_written(self, self._written_seq)
        if mode == "always" and self._has_free:
            released_seq = (self._due_seq or self._written_seq + 1) - 1
            self._owner.journal_released(self, released_seq)
        self._has_free = False
        if (mode == "always" and self._due_seq) or next_file is not None:
            self._sync_file(self._file, self._written_seq)
            self._due_seq = 0
        if next_file is not None:
            give_back(self._file)
            self._file.close()
            self._file = next_file
        if self._file.size + self._ahead_bytes > self._file.reserved_end:
            self._reserve()
        self._done_items = self._taken_items

    def _write_queued(self, count: int) -> File | None:
        """Write the next `count` items of the queue, at most up to a rotation; return the next
        file."""
        frames: list[bytes] = []
        size_bytes = 0
        for _ in range(count):
            item = self._pending.popleft()
            self._taken_items += 1
            if isinstance(item, bytes):
                self._due_seq = self._due_seq or self._written_seq + len(frames) + 1
                frames.append(item)
                size_bytes += len(item)
                if size_bytes < _JOIN_BYTES:
                    continue
            self._write_frames(frames)
            size_bytes = 0
            if isinstance(item, Frame):
                self._write_frame(item)
            elif not isinstance(item, bytes):
                return item
        self._write_frames(frames)
        return None

    def _write_frame(self, frame: Frame) -> None:
        frame.write_to(self._file)
        self._written_seq += 1
        if frame.must_sync:
            self._due_seq = self._due_seq or self._written_seq
        else:
            self._has_free = True
        self._written_total += len(frame) + FRAME_OVERHEAD

    def _write_frames(self, frames: list[bytes]) -> None:
        if not frames:
            return
        data = frames[0] if len(frames) == 1 else b"".join(frames)
        self._file.write(data)
        self._written_seq += len(frames)
        self._written_total += len(data) + FRAME_OVERHEAD * len(frames)
        frames.clear()

    def _sync_file(self, file: File, seq: int) -> None:
        self.sync_file(file)
        if seq > self.synced_seq:
            self.synced_seq = seq
            self._owner.journal_synced(self, seq)

    def _sync_written(self) -> None:
        self._sync(self._file, self._written_seq)
        self._taken_items += 1
        self._done_items = self._taken_items

    def _finish(self) -> None:
        try:
            if self.error is None:
                self._file.sync()
                self._file.truncate(self._file.size)
            self._file.close()
        except Exception as error:  # any error must reach the callers that wait for the journal
            self.fail(error)
        if self.error is None:
            self.synced_seq = self._seq
            self._owner.journal_synced(self, self._seq)

    def _sync(self, file: File, seq: int) -> None:
        if self.error is not None or seq <= self.synced_seq:
            return  # several callers may request the same sync
        try:
            self._sync_file(file, seq)
        except OSError as error:
            self.fail(error)

    def _retire(self, file: File, seq: int) -> None:
        try:
            if self.error is None:
                self._sync_file(file, seq)
                give_back(file)
            file.close()
        except OSError as error:
            self.fail(error)

    def _reserve(self) -> None:
        self._reserving = False
        if self.error is not None or self.leaves_space:
            return
        file = self._file
        try:
            step_bytes = reserve_ahead(file, self._reserve_bytes)
        except OSError as error:
            self._space_error = True
            self._owner.journal_space(self, error)
            return
        if file is self._file:  # the loop may have rotated meanwhile
            self._ahead_bytes = step_bytes // 2
        if self._space_error:
            self._space_error = False
            self._owner.journal_space(self, None)

    def fail(self, error: Exception) -> None:
        """Fail the journal, after a write error or because the owner cannot provide the next frame;
        from any thread."""
        if self.error is None:
            failure = error if isinstance(error, OSError) else _as_os_error(error)
            self.error = failure
            self._owner.journal_failed(self, failure)


def _as_os_error(error: Exception) -> OSError:
    """Convert a failure of another kind to the OSError that the journal's owner expects."""
    if isinstance(error, MemoryError):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")
