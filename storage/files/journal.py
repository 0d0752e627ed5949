"""The journal: frames of effects, written with group commit. The reader distinguishes a torn end
from damage.

`Journal` writes. Under `appendfsync always` the loop only queues frames. A worker writes all queued
frames, syncs once and reports the sequence number: this is group commit. The loop waits for the
worker only in `close`. After a change from `always` to another mode, frames still go to the worker
until its queue is empty. `queued_bytes` counts the queued frames; the owner bounds the queue by
adding none while `is_full`. Under `everysec` and `no` the loop itself writes, because a write(2) of
a small frame costs less than passing the frame to a thread. Under `everysec` the worker syncs;
under `no` there is no sync.

`JournalReader` reads all journals of a directory as one sequence. An invalid end is either a torn
end, which is cut, or damage, which is refused; docs/formats.md has the rules. Each frame contains
the number of frames before it that were not yet synced. With this number a later frame can prove
that an unreadable frame had been synced. Without such a proof, out-of-order disk writes after a
power loss could not be distinguished from a damaged file.

Rejected: a Condition or a raw lock to wake the worker (within 5 % of a SimpleQueue, because the
disk dominates the round trip), and one pwritev with RWF_DSYNC (saves a thread switch, but leaves
frames written before a change of modes unsynced).
"""

import contextlib
import errno
import os
import re
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from millstream.errors import DamageError, DataError, FormatError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.disk import Disk, File

MAGIC = b"MILLJRNL"
VERSION = 2
HEADER_SIZE = 128
FRAME_SIZE = 24
ID_SIZE = 16
SALT_SIZE = 8
# Writes are refused when less than this is reserved. A quarter of it is for automatic changes: keys
# that expire, entries that are trimmed and leases that end in one tick, a few thousand short
# effects.
RESERVE_LEAST = 1 << 20
UNBOUNDED = 1 << 62
# Maximum payload of a frame. Its length has four bytes in the file.
PAYLOAD_MAX = 1 << 30
# Memory that a queued frame uses in addition to its bytes.
FRAME_OVERHEAD = 64

_HEADER = struct.Struct("<8sIIQI")  # the same in every version, followed by a crc32
_IDENTITY = struct.Struct("<16s8s4x")
_FRAME = struct.Struct("<IIQI")
_SALTED_FRAME = struct.Struct("<IIQII")  # the same, followed by the checksum of these 20 bytes
_SALT = struct.Struct("<II")
_U32 = struct.Struct("<I")
_CHECKED = struct.Struct("<QI")  # version 1: the part of a frame's header that its crc32 covers
_COMMON_SIZE = 32
_COPY_SIZE = 64  # the file has two copies of the header
_U32_MAX = 2**32 - 1
_SECTOR = 512
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_READ_SIZE = 1 << 20
_SLICE_SIZE = 1 << 18  # bytes of small frames that are read in a few milliseconds
_WRITE_SIZE = 1 << 20  # queued frames are joined up to this size, which bounds the copy


class FrameFormat:
    """The encoding of frames in one file: version 2, with checksums specific to the file.

    The seeds of the checksums come from the file's salt; the seed for a frame's header also depends
    on its offset. Bytes of another file, of a client, or of another offset in this file are
    therefore never a valid frame.
    """

    header_size = HEADER_SIZE
    frame_size = FRAME_SIZE
    is_salted = True

    def __init__(self, salt: bytes, directory: bytes = bytes(ID_SIZE)) -> None:
        self.salt = salt
        self.directory = directory
        self.head_seed, self.payload_seed = _SALT.unpack(salt)

    def encode(self, at: int, seq: int, unsynced: int, payload: bytes) -> bytes:
        """The frame for offset `at`; `unsynced` is the number of frames before it that may not be
        on the disk yet."""
        head = _FRAME.pack(len(payload), crc32(payload, self.payload_seed), seq, unsynced)
        crc = crc32(head, (self.head_seed + at) & _U32_MAX)
        return head + crc.to_bytes(4, "little") + payload

    def head_fits(self, head: bytes | memoryview, at: int) -> bool:
        """Whether these bytes are the header of a frame at offset `at`."""
        crc = crc32(head[:20], (self.head_seed + at) & _U32_MAX)
        return crc == int.from_bytes(head[20:24], "little")

    def payload_end(self, file: File, offset: int, due: int) -> int | None:
        """The end of the damaged payload of frame `due` at `offset`. None: the frame's header is
        damaged too, or does not contain the length."""
        head = file.read_at(offset, FRAME_SIZE)
        if len(head) < FRAME_SIZE or not self.head_fits(head, offset):
            return None
        length, _, seq, _ = _FRAME.unpack_from(head)
        return offset + FRAME_SIZE + int(length) if seq == due else None

    def only_length_is_wrong(self, file: File, offset: int, head: bytes) -> bool:
        """Whether the header of a frame at `offset` becomes valid when its length is replaced by
        the size of the rest of the file."""
        length = ((file.size - offset - FRAME_SIZE) & _U32_MAX).to_bytes(4, "little")
        return length != head[:4] and self.head_fits(length + head[4:], offset)

    def proves(self, file: File, offset: int) -> bool:
        """Whether a valid frame at `offset`, found by a search after a damaged one, was written as
        a frame: bytes of a client cannot imitate it."""
        return True


class OldFormat(FrameFormat):
    """Version 1: no ID, no salt, one checksum. Such files can be read and continued."""

    header_size = 32
    frame_size = 20
    is_salted = False

    def __init__(self) -> None:
        super().__init__(bytes(SALT_SIZE), b"")

    def encode(self, at: int, seq: int, unsynced: int, payload: bytes) -> bytes:
        crc = crc32(payload, crc32(_CHECKED.pack(seq, unsynced)))
        return _FRAME.pack(len(payload), crc, seq, unsynced) + payload

    def head_fits(self, head: bytes | memoryview, at: int) -> bool:
        return True

    def payload_end(self, file: File, offset: int, due: int) -> int | None:
        return None

    def only_length_is_wrong(self, file: File, offset: int, head: bytes) -> bool:
        found = 0
        for position in range(offset + 8, file.size, _READ_SIZE):
            found = crc32(file.read_at(position, _READ_SIZE), found)
        return found == int(_FRAME.unpack_from(head)[1])

    def proves(self, file: File, offset: int) -> bool:
        """A client's value can imitate a frame, but frames do not follow it up to the end of the
        file."""
        end = offset
        for at, _, _, payload in _sound_frames(file, self, offset):
            end = at + self.frame_size + len(payload)
        return end == file.size


OLD_FORMAT = OldFormat()


@dataclass(frozen=True, slots=True)
class Head:
    """A file's header. `first_seq` 0: the first frame was not known when the file was created."""

    format: FrameFormat
    first_seq: int


def encode_header(directory: bytes, salt: bytes) -> bytes:
    """The first bytes of a file. Its first frame is not known when it is created."""
    common = _HEADER.pack(MAGIC, VERSION, 0, 0, 0)
    copy = common + crc32(common).to_bytes(4, "little") + _IDENTITY.pack(directory, salt)
    copy += crc32(copy).to_bytes(4, "little")
    return copy * 2


def read_head(file: File) -> Head:
    """A journal's header, with every byte checked. DamageError, or FormatError for another
    version."""
    head = file.read_at(0, HEADER_SIZE)
    if len(head) < _COMMON_SIZE:
        raise _damage(file, 0, f"it has {len(head)} of {HEADER_SIZE} bytes of its header")
    if int.from_bytes(head[28:32], "little") != crc32(head[:28]):
        raise _damage(file, 0, "the header cannot be read")
    magic, version, _, first_seq, _ = _HEADER.unpack_from(head)
    if magic != MAGIC or version not in (1, VERSION):
        raise FormatError(f"{file.name} has format {version}, which this version does not know")
    if version == 1:
        return Head(OLD_FORMAT, first_seq)
    if len(head) < HEADER_SIZE:
        raise _damage(file, 0, f"it has {len(head)} of {HEADER_SIZE} bytes of its header")
    found = _parse_copy(head[:_COPY_SIZE])
    if found is None or head[:_COPY_SIZE] != head[_COPY_SIZE:]:
        raise _damage(file, 0, "the header cannot be read")
    return found


def readable_head(file: File) -> Head:
    """The header of a file that may be damaged, from either copy. A file without a valid header is
    read as version 1, whose frames contain all information of its header."""
    head = file.read_at(0, HEADER_SIZE)
    found = _parse_copy(head[:_COPY_SIZE]) or _parse_copy(head[_COPY_SIZE:])
    return found or Head(OLD_FORMAT, 0)


def readable_owner(file: File) -> bytes | None:
    """The ID of the directory that a file belongs to; the file may be damaged. b"" for version 1,
    which had no ID. None: unknown, or a later version."""
    form = readable_head(file).format
    return form.directory if form.is_salted or _is_old(file) else None


def _is_old(file: File) -> bool:
    """Whether a file, which may be damaged, has version 1 according to its header or its frames."""
    try:
        return not read_head(file).format.is_salted
    except (DamageError, FormatError):
        return next(_sound_frames(file, OLD_FORMAT, OLD_FORMAT.header_size), None) is not None


def _parse_copy(copy: bytes) -> Head | None:
    if len(copy) < _COPY_SIZE or int.from_bytes(copy[60:], "little") != crc32(copy[:60]):
        return None
    magic, version, _, first_seq, _ = _HEADER.unpack_from(copy)
    if magic != MAGIC or version != VERSION:
        return None
    directory, salt = _IDENTITY.unpack_from(copy, _COMMON_SIZE)
    return Head(FrameFormat(salt, directory), first_seq)


# ---------------------------------------------------------------------------------------- writing


@dataclass(frozen=True, slots=True)
class JournalFile:
    """A journal that is open for writing, and the format of its frames. The event loop gets both,
    so it never reads a header."""

    file: File
    format: FrameFormat


def create_journal(disk: Disk, name: str, directory: bytes) -> JournalFile:
    """A new journal without frames, for the data directory with this ID. Its header is synced, so
    if a manifest names a shorter file, that file has lost data."""
    salt = disk.random(SALT_SIZE)
    file = disk.create(name)
    try:
        file.write(encode_header(directory, salt))
        file.sync()
    except OSError:
        file.close()
        raise
    return JournalFile(file, FrameFormat(salt, directory))


def continue_journal(disk: Disk, name: str) -> JournalFile:
    """An existing journal, for more frames, after a sync: the data that was read may not be on the
    disk yet. DamageError or FormatError when its header is not valid."""
    file = disk.append(name)
    try:
        file.sync()
        return JournalFile(file, read_head(file).format)
    except (OSError, DataError):
        file.close()
        raise


def reserve_ahead(file: File, wanted_bytes: int) -> int:
    """Reserve up to `wanted_bytes` after the end of `file`; return the number of bytes reserved.

    If the disk lacks space, the size is halved down to RESERVE_LEAST; OSError when even that fails.
    """
    return _reserve_after(file, file.size, wanted_bytes, min(wanted_bytes, RESERVE_LEAST))


def _reserve_after(file: File, end: int, wanted_bytes: int, least_bytes: int) -> int:
    """Reserve up to `wanted_bytes` after offset `end`, at least `least_bytes`."""
    step_bytes = wanted_bytes
    while True:
        try:
            file.reserve(end + step_bytes)
        except OSError as error:
            if error.errno not in _NO_SPACE or step_bytes <= least_bytes:
                raise
            step_bytes = max(step_bytes // 2, least_bytes)
        else:
            return step_bytes


def give_back(file: File) -> None:
    """Release the space reserved after the end of a journal that gets no more frames."""
    with contextlib.suppress(OSError):  # the space is freed when the file is removed
        file.truncate(file.size)


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
        self._pending: deque[bytes | File] = deque()
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
        # Used by the loop: the file for new frames, and its end after all queued frames.
        self._last_file = file
        self._format = opened.format
        self._end = file.size
        self._reserving = False
        self._space_error = False

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
        """Whether to add no frames until the worker has written: more than `limit_bytes` are
        queued, or the queue has used the reserved space. The worker reserves more after its batch;
        if the loop did it, it would wait for the disk."""
        queued_bytes = self.queued_bytes
        if queued_bytes == 0 or self.error is not None:
            return False
        return queued_bytes > limit_bytes or (
            self._reserve_bytes > 0 and self._room_bytes() < self._ahead_bytes // 4
        )

    def append(self, seq: int, payload: bytes) -> bool:
        """Add a frame; True when replies may be sent immediately (modes everysec and no).

        Any error fails the journal, because no later frame may follow the gap.
        """
        self._seq = seq
        if self.error is not None:
            return False
        try:
            return self._append(seq, payload)
        except Exception as error:
            self._fail(error)
            return False

    def _append(self, seq: int, payload: bytes) -> bool:
        if len(payload) > PAYLOAD_MAX:
            raise OSError(errno.EFBIG, f"{len(payload)} bytes are too large for one frame")
        unsynced = seq - 1 - self.synced_seq
        frame = self._format.encode(self._end, seq, min(unsynced, _U32_MAX), payload)
        self._end += len(frame)
        if not self._must_queue():
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
        self._want_space()

    def set_mode(self, mode: str) -> None:
        """Change `appendfsync` from the next frame on, without waiting for the worker."""
        if mode == self.mode:
            return
        self.mode = mode
        if mode == "always":
            self._sync_soon()  # for frames written before
            self._queues = True

    def tick_second(self) -> None:
        """Called once a second: sync under everysec, and retry a failed reservation."""
        if self.error is not None:
            return
        if self.mode == "everysec" and self.synced_seq < self._seq:
            self._sync_soon()
        if self._space_error:
            self._want_space()

    def sync_soon(self) -> None:
        """Sync written frames, unless the sync is automatic (`always`) or nothing is unsynced."""
        if self.error is None and self.mode != "always" and self.synced_seq < self._seq:
            self._sync_soon()

    def request_space(self) -> None:
        """Reserve the first space now, so that a full disk is detected before the first write."""
        self._want_space()

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
            _reserve_after(
                self._last_file, self._end, least_bytes + self._reserve_bytes, least_bytes
            )
        return min(self._room_bytes(), PAYLOAD_MAX)

    def is_short(self) -> bool:
        """Whether there is hardly any space for another frame."""
        return self._reserve_bytes > 0 and self._room_bytes() < self._spare_bytes

    def _room_bytes(self) -> int:
        return self._last_file.reserved_end - self._end - FRAME_SIZE - self._spare_bytes

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

    def fail(self, error: OSError) -> None:
        """Fail the journal as after a write error: the owner cannot provide the next frame."""
        self._fail(error)

    def abandon(self) -> None:
        """Close the file of a failed journal without a sync: its end is the same as after a
        crash."""
        if self.error is None:
            self.error = OSError(errno.EIO, "abandoned")
        self._kick()  # drops queued frames
        self._worker.submit(lambda: self._file.close())

    # Methods that run on the loop.

    def _must_queue(self) -> bool:
        """Whether the next frame goes to the worker: under `always`, and under another mode while
        the worker has unfinished items."""
        if self._queues and self.mode != "always":
            self._queues = self._done_items < self._queued_items
        return self._queues

    def _queue(self, item: bytes | File) -> None:
        self._queued_items += 1
        self._pending.append(item)
        self._kick()

    def _write_now(self, frame: bytes, seq: int) -> bool:
        if self.error is not None:
            return False
        file = self._file
        try:
            file.write(frame)
        except Exception as error:  # the same here
            self._fail(error)
            return False
        self._written_seq = seq
        if file.size + self._ahead_bytes > file.reserved_end:
            self._want_space()
        return True

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

    def _want_space(self) -> None:
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
            self._fail(error)
        if self.error is not None:
            self._drop_pending()

    def _drop_pending(self) -> None:
        while self._pending:
            item = self._pending.popleft()
            if isinstance(item, bytes):
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
        if mode == "always" or next_file is not None:
            self._sync_file(self._file, self._written_seq)
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
            if not isinstance(item, bytes):
                self._write_frames(frames)
                return item
            frames.append(item)
            size_bytes += len(item)
            if size_bytes >= _WRITE_SIZE:
                self._write_frames(frames)
                frames, size_bytes = [], 0
        self._write_frames(frames)
        return None

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
            self._fail(error)
        if self.error is None:
            self.synced_seq = self._seq
            self._owner.journal_synced(self, self._seq)

    def _sync(self, file: File, seq: int) -> None:
        if self.error is not None or seq <= self.synced_seq:
            return  # several callers may request the same sync
        try:
            self._sync_file(file, seq)
        except OSError as error:
            self._fail(error)

    def _retire(self, file: File, seq: int) -> None:
        try:
            if self.error is None:
                self._sync_file(file, seq)
                give_back(file)
            file.close()
        except OSError as error:
            self._fail(error)

    def _reserve(self) -> None:
        self._reserving = False
        if self.error is not None:
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

    def _fail(self, error: Exception) -> None:
        if self.error is None:
            failure = error if isinstance(error, OSError) else _as_os_error(error)
            self.error = failure
            self._owner.journal_failed(self, failure)


def _as_os_error(error: Exception) -> OSError:
    """Convert a failure of another kind to the OSError that the journal's owner expects."""
    if isinstance(error, MemoryError):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class TornEnd:
    """The torn end of the journals: file `index` ends at `offset`; later bytes and files are
    ignored."""

    index: int
    offset: int
    torn_bytes: int

    def kept(self, names: Sequence[str]) -> tuple[str, ...]:
        """The journals that remain valid; a journal that begins after a gap does not."""
        return tuple(names[: self.index + (self.offset > 0)])


class JournalReader:
    """Reads journals, in order, as one sequence of frames that starts with `first_seq`.

    After `frames` is exhausted, `next_seq` is the number after the last valid frame, and `torn`
    says whether the rest must be cut. DamageError means damage.
    """

    def __init__(self, files: Sequence[File], first_seq: int) -> None:
        self.next_seq = first_seq
        self.torn: TornEnd | None = None
        self._files = files

    def frames(self) -> Iterator[tuple[File, int, bytes]]:
        """(file, offset, payload) of every frame."""
        for index, file in enumerate(self._files):
            form = self._read_header(index)
            if form is None:
                return
            offset = start = form.header_size
            head_size = form.frame_size
            due = self.next_seq
            for at, seq, _, payload in _sound_frames(file, form, offset):
                if seq != due:
                    if seq > due and index and offset == start:
                        self._judge(index, 0, _gap(due, seq), missing=True)
                        return
                    raise _damage(file, at, f"frame {seq} is there where {due} was due")
                yield file, at, payload
                self.next_seq = due = seq + 1
                offset = at + head_size + len(payload)
            if offset != file.size:
                self._judge(index, offset, _reason(file, form, offset))
                return

    def _read_header(self, index: int) -> FrameFormat | None:
        """None when the sequence ends before this file."""
        file = self._files[index]
        head = read_head(file)
        first_seq = head.first_seq
        if first_seq == 0:  # the first frame has the number
            return head.format
        if first_seq < self.next_seq or (first_seq > self.next_seq and index == 0):
            raise _damage(file, 16, f"it starts with frame {first_seq}, {self.next_seq} was due")
        if first_seq > self.next_seq:
            self._judge(index, 0, _gap(self.next_seq, first_seq), missing=True)
            return None
        return head.format

    def _judge(self, index: int, offset: int, reason: str, missing: bool = False) -> None:
        """Classify the invalid bytes at `offset`: set `torn`, or raise DamageError."""
        file = self._files[index]
        form = readable_head(file).format
        after = 1 if missing else _end_of_bad_frame(file, form, offset, self.next_seq)
        follows = self._require_no_proof(index, offset, after, reason)
        if not missing:
            if _length_is_flipped(file, form, offset, self.next_seq):
                raise _damage(file, offset, "the length of the last frame is wrong")
            ends_early = follows is None and _passes_end(file, form, offset)
            end = file.size if follows is None else follows
            if not ends_early and not _has_lost_sector(file, offset, end):
                raise _damage(file, offset, reason)
        torn_bytes = sum(other.size for other in self._files[index:]) - offset
        self.torn = TornEnd(index, offset, torn_bytes)

    def _require_no_proof(self, index: int, offset: int, after: int, reason: str) -> int | None:
        """DamageError when a frame at or after offset `after`, or in a later file, proves that the
        missing frame was on the disk.

        Returns the offset of the next valid frame in the same file.
        """
        due = self.next_seq
        follows: int | None = None
        for file in self._files[index:]:
            here = file is self._files[index]
            form = readable_head(file).format
            position = after if here else 0
            while (found := _find_sound_frame(file, form, position, due)) is not None:
                if here and follows is None:
                    follows = found
                for at, seq, unsynced, payload in _sound_frames(file, form, found):
                    if seq - 1 - unsynced >= due:
                        raise _damage(self._files[index], offset, reason)
                    position = at + form.frame_size + len(payload)
        return follows


def frames_from(
    files: Sequence[File], first_seq: int, last_seq: int
) -> Iterator[tuple[int, bytes]]:
    """(number, payload) of the frames from `first_seq` to `last_seq`, as far as these journals have
    them: it ends before a gap. The journals may be in use."""
    firsts = [_first_frame(file) for file in files]
    due = first_seq
    for index, file in enumerate(files):
        later = [first for first in firsts[index + 1 :] if first is not None]
        if later and later[0] <= due:
            continue
        form = read_head(file).format
        for _, seq, _, payload in _sound_frames(file, form, form.header_size):
            if seq > due or due > last_seq:
                return
            if seq == due:
                yield seq, payload
                due += 1


def _first_frame(file: File) -> int | None:
    form = read_head(file).format
    found = next(_sound_frames(file, form, form.header_size), None)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Gap:
    """Lost frames: `first` to `last` (None: unknown). `payload` is the possibly damaged payload of
    the first one, if its length is known."""

    file: str
    offset: int
    first: int
    last: int | None
    payload: bytes = b""


def surviving_frames(
    files: Sequence[File], first_seq: int
) -> Iterator[tuple[File, int, bytes] | Gap]:
    """(file, sequence number, payload) of every readable frame, in order, and a Gap wherever frames
    are missing. The files' headers may be damaged."""
    due = first_seq
    bad: Gap | None = None
    for file in files:
        form = readable_head(file).format
        position: int | None = form.header_size
        while position is not None:
            for at, seq, _, payload in _sound_frames(file, form, position):
                position = at + form.frame_size + len(payload)
                if seq < due:
                    continue  # frames that were read before: the file is not the expected one
                if seq > due:
                    lost = bad or Gap(file.name, at, due, None)
                    yield Gap(lost.file, lost.offset, due, seq - 1, lost.payload)
                yield file, seq, payload
                due, bad = seq + 1, None
            if position >= file.size:
                break
            if bad is None:
                bad = Gap(file.name, position, due, None, _left_of_payload(file, form, position))
            position = _resume(file, form, position, due)
    if bad is not None:
        yield bad


def _left_of_payload(file: File, form: FrameFormat, offset: int) -> bytes:
    """The bytes after an invalid frame's header, up to the length in the header."""
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size:
        return b""
    length = min(int(_FRAME.unpack_from(head)[0]), _READ_SIZE)
    return file.read_at(offset + form.frame_size, length)


def _resume(file: File, form: FrameFormat, offset: int, due: int) -> int | None:
    """The offset of the next valid frame after an invalid one; None: no more in this file."""
    start = _end_of_bad_frame(file, form, offset, due)
    while (found := _find_sound_frame(file, form, start, due)) is not None:
        if form.proves(file, found):
            return found
        start = found + 1
    return None


def frame_numbers(file: File) -> tuple[int | None, int]:
    """The number of a file's first frame (None: it has none), and of the last frame that can be
    read from there on."""
    *_, found = frame_numbers_so_far(file)
    return found


def frame_numbers_so_far(file: File) -> Iterator[tuple[int | None, int]]:
    """Like `frame_numbers`, but yields an intermediate result after each slice of the file, because
    a large journal takes long; the caller can do other work between slices."""
    first: int | None = None
    last = 0
    form = readable_head(file).format
    slice_end = _SLICE_SIZE
    for at, seq, _, _ in _sound_frames(file, form, form.header_size):
        if first is None:
            first = seq
        elif seq != last + 1:
            break
        last = seq
        if at >= slice_end:
            yield first, last
            slice_end = at + _SLICE_SIZE
    yield first, last


def empty_later_journals(disk: Disk, names: Sequence[str], torn: TornEnd) -> None:
    """Truncate the journals after a torn one to their headers, so that no journal with frames is
    left that the manifest does not name."""
    for name in names[torn.index + (torn.offset > 0) :]:
        file = disk.append(name)
        try:
            header_size = readable_head(file).format.header_size
            if file.size > header_size:
                file.truncate(header_size)
                file.sync()
        finally:
            file.close()


def cut_torn_end(disk: Disk, names: Sequence[str], torn: TornEnd) -> None:
    """Cut the file that `JournalReader` found torn. Before this, a durable manifest must name only
    `torn.kept`: otherwise a later file would look as if frames before it were missing."""
    if not torn.offset:
        return
    file = disk.append(names[torn.index])
    try:
        file.truncate(torn.offset)
        file.sync()
    finally:
        file.close()


def _sound_frames(
    file: File, form: FrameFormat, offset: int
) -> Iterator[tuple[int, int, int, bytes]]:
    """(offset, sequence number, unsynced, payload) of each frame up to the first invalid one or the
    end of the file.

    For small frames a start spends most of its time here. Therefore the loop calls no function of
    this module and contains a copy of `head_fits`. Short slices of bytes cost less than slices of a
    memoryview.
    """
    buffer = b""
    at = buffered = 0
    head_size, payload_seed, is_salted = form.frame_size, form.payload_seed, form.is_salted
    head_seed = form.head_seed + offset  # for a header at the buffer's first byte
    crc, unpack, unpack_old = crc32, _SALTED_FRAME.unpack_from, _FRAME.unpack_from
    file_size = file.size
    while True:
        if buffered - at < head_size:
            offset, at = offset + at, 0
            # After a crash the file may be shorter than a header, with nothing left to read.
            buffer = file.read_at(offset, max(0, min(_READ_SIZE, file_size - offset)))
            buffered, head_seed = len(buffer), form.head_seed + offset
            if buffered < head_size:
                return
        if is_salted:
            length, payload_crc, seq, unsynced, head_crc = unpack(buffer, at)
            if crc(buffer[at : at + 20], (head_seed + at) & _U32_MAX) != head_crc:
                return
        else:
            length, payload_crc, seq, unsynced = unpack_old(buffer, at)
            payload_seed = crc(buffer[at + 8 : at + 20])
        start = at + head_size
        end = start + length
        if end > buffered:
            if offset + end > file_size:
                return
            offset, at, start, end = offset + at, 0, head_size, head_size + length
            buffer = file.read_at(offset, min(max(end, _READ_SIZE), file_size - offset))
            buffered, head_seed = len(buffer), form.head_seed + offset
            if buffered < end:
                return
        payload = buffer[start:end]
        if length == 0 or crc(payload, payload_seed) != payload_crc:
            return
        yield offset + at, seq, unsynced, payload
        at = end


def _find_sound_frame(file: File, form: FrameFormat, start: int, due: int) -> int | None:
    """The first offset from `start` on of a valid frame with a number above `due`."""
    tops = {(due >> 32).to_bytes(4, "little"), ((due + _U32_MAX) >> 32).to_bytes(4, "little")}
    # A look-ahead also finds overlapping matches: the upper half of a number is mostly zeros.
    pattern = re.compile(b"(?=" + b"|".join(re.escape(top) for top in tops) + b")", re.DOTALL)
    head_size = form.frame_size
    window = start
    while window < file.size:
        data = file.read_at(window, _READ_SIZE + head_size)
        for match in pattern.finditer(data, 12):
            at = match.start() - 12
            if at >= _READ_SIZE or at + head_size > len(data):
                break
            length, _, seq, _ = _FRAME.unpack_from(data, at)
            if not length or seq <= due or window + at + head_size + length > file.size:
                continue
            if not form.head_fits(data[at : at + head_size], window + at):
                continue  # avoids a read for each imitation in a client's data
            if next(_sound_frames(file, form, window + at), None) is not None:
                return window + at
        window += _READ_SIZE
    return None


def _end_of_bad_frame(file: File, form: FrameFormat, offset: int, due: int) -> int:
    """The offset from which frames may follow an invalid one. If its header is valid, the length in
    the header defines its payload, whatever the payload contains."""
    end = form.payload_end(file, offset, due)
    return offset + 1 if end is None else end


def _passes_end(file: File, form: FrameFormat, offset: int) -> bool:
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size:
        return True
    return offset + form.frame_size + int(_FRAME.unpack_from(head)[0]) > file.size


def _length_is_flipped(file: File, form: FrameFormat, offset: int, due: int) -> bool:
    """Whether the rest of the file is frame `due`, apart from its length."""
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size or file.size == offset + form.frame_size:
        return False
    if _FRAME.unpack_from(head)[2] != due:
        return False
    in_sector = _SECTOR - offset % _SECTOR
    if in_sector <= 4 and not any(head[:in_sector]):
        return False  # a sector with only (part of) the length was not written
    return form.only_length_is_wrong(file, offset, head)


def _has_lost_sector(file: File, start: int, end: int) -> bool:
    """Whether the part of an aligned sector in [start, end) is all zero, like an unwritten
    sector."""
    position = start
    while position < end:
        stop = min(end, position - position % _READ_SIZE + _READ_SIZE)
        data = file.read_at(position, stop - position)
        at = 0
        while at < len(data):
            piece = data[at : at + _SECTOR - (position + at) % _SECTOR]
            if not any(piece):
                return True
            at += len(piece)
        position = stop
    return False


def _gap(due: int, found: int) -> str:
    if found == due + 1:
        return f"the frame {due} before it is missing"
    return f"the frames {due} to {found - 1} before it are missing"


def _reason(file: File, form: FrameFormat, offset: int) -> str:
    if _passes_end(file, form, offset):
        return "a frame extends past the end of the file"
    if not any(file.read_at(offset, 4)):
        return "a frame has no length"
    return "the checksum of a frame is wrong"


def _damage(file: File, offset: int, reason: str) -> DamageError:
    return DamageError(file.name, offset, reason)
