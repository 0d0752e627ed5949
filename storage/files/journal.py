"""Frames of effects: written with group commit, read back with a judgement on what a crash left.

`Journal` writes. Under `appendfsync always` the loop only queues a frame; a worker takes everything
that has come together, writes it, syncs once and reports the sequence number: that is group commit,
and the loop does not wait for it; it waits for the worker only in `close`. After a change from
`always` to another mode frames still go to the worker, until the worker has done all it was given.
What waits in memory is counted (`queued_bytes`); the owner bounds it by adding no more while
`is_full`. Under `everysec` and `no` the loop itself writes (a write(2) of a small frame costs less
than passing it to a thread), and the worker syncs (`everysec`) or there is no sync (`no`).

`JournalReader` reads all journals of a directory as one sequence. Where it ends badly it decides
between a torn end, which is cut, and damage, which is refused; the rules are in docs/formats.md. A
frame therefore carries how many frames before it were not yet synced: a later frame then proves
that an unreadable one had been safe. Without that proof out-of-order disk writes after a power loss
could not be told from a broken file.

Rejected: a Condition or a raw lock to wake the worker (within 5 % of a SimpleQueue's round trip,
which is the disk's), and one pwritev with RWF_DSYNC (saves a change of threads, but leaves frames
written before a switch of modes unsynced).
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

from millstream.errors import DamageError, FormatError
from millstream.storage.blocks.checksum import crc32
from millstream.storage.files.disk import Disk, File

MAGIC = b"MILLJRNL"
VERSION = 2
HEADER_SIZE = 128
FRAME_SIZE = 24
ID_SIZE = 16
SALT_SIZE = 8
# With less than this kept ahead writes are refused. A quarter of it is for automatic changes: what
# expires, is trimmed or ends in one turn, a few thousand short effects.
RESERVE_LEAST = 1 << 20
UNBOUNDED = 1 << 62
# The most that one frame may hold. Its length has four bytes in the file.
PAYLOAD_MAX = 1 << 30
# What a queued frame takes in memory besides its bytes.
FRAME_OVERHEAD = 64

_HEADER = struct.Struct("<8sIIQI")  # the same in every version, and a crc32 after it
_IDENTITY = struct.Struct("<16s8s4x")
_FRAME = struct.Struct("<IIQI")
_SALTED_FRAME = struct.Struct("<IIQII")  # the same, and the checksum of these 20 bytes
_SALT = struct.Struct("<II")
_U32 = struct.Struct("<I")
_CHECKED = struct.Struct("<QI")  # version 1: the part of a frame's header that its crc32 covers
_COMMON_SIZE = 32
_COPY_SIZE = 64  # the header is there twice
_U32_MAX = 2**32 - 1
_SECTOR = 512
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_READ_SIZE = 1 << 20
_SLICE_SIZE = 1 << 18  # what is read of many frames in a few milliseconds
_WRITE_SIZE = 1 << 20  # queued frames are joined up to this size, which bounds the copy


class FrameFormat:
    """How the frames of one file are written: version 2, with the checksums of this very file.

    The seeds come from the file's salt, and that of a frame's header from its place, too. Bytes of
    another file, of a client, or of another place in this file therefore never look like a frame.
    """

    header_size = HEADER_SIZE
    frame_size = FRAME_SIZE
    is_salted = True

    def __init__(self, salt: bytes, directory: bytes = bytes(ID_SIZE)) -> None:
        self.salt = salt
        self.directory = directory
        self.head_seed, self.payload_seed = _SALT.unpack(salt)

    def encode(self, at: int, seq: int, unsynced: int, payload: bytes) -> bytes:
        """The frame for offset `at`; `unsynced` is the number of frames before it not known to be
        on the disk."""
        head = _FRAME.pack(len(payload), crc32(payload, self.payload_seed), seq, unsynced)
        crc = crc32(head, (self.head_seed + at) & _U32_MAX)
        return head + crc.to_bytes(4, "little") + payload

    def head_fits(self, head: bytes | memoryview, at: int) -> bool:
        """Whether these bytes are the header of a frame at offset `at`."""
        crc = crc32(head[:20], (self.head_seed + at) & _U32_MAX)
        return crc == int.from_bytes(head[20:24], "little")

    def payload_end(self, file: File, offset: int, due: int) -> int | None:
        """Where the payload of frame `due` at `offset` ends, although the payload is damaged.
        None: the frame's header is damaged too, or says nothing about the length."""
        head = file.read_at(offset, FRAME_SIZE)
        if len(head) < FRAME_SIZE or not self.head_fits(head, offset):
            return None
        length, _, seq, _ = _FRAME.unpack_from(head)
        return offset + FRAME_SIZE + int(length) if seq == due else None

    def only_length_is_wrong(self, file: File, offset: int, head: bytes) -> bool:
        """Whether the header of a frame at `offset` is right when its length is that of the rest of
        the file."""
        length = ((file.size - offset - FRAME_SIZE) & _U32_MAX).to_bytes(4, "little")
        return length != head[:4] and self.head_fits(length + head[4:], offset)

    def proves(self, file: File, offset: int) -> bool:
        """Whether a sound frame at `offset`, found by searching after a damaged one, was written as
        a frame there: bytes of a client cannot look like it."""
        return True


class OldFormat(FrameFormat):
    """Version 1: no ID, no salt, one checksum. Such files are read and continued."""

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
        """A client's value can look like a frame. It does not go on to the end of the file."""
        end = offset
        for at, _, _, payload in _sound_frames(file, self, offset):
            end = at + self.frame_size + len(payload)
        return end == file.size


OLD_FORMAT = OldFormat()


@dataclass(frozen=True, slots=True)
class Head:
    """A file's header. `first_seq` 0: with which frame it begins was not known when it was made."""

    format: FrameFormat
    first_seq: int


def encode_header(directory: bytes, salt: bytes) -> bytes:
    """A file's first bytes. With which frame it begins is not known when it is made."""
    common = _HEADER.pack(MAGIC, VERSION, 0, 0, 0)
    copy = common + crc32(common).to_bytes(4, "little") + _IDENTITY.pack(directory, salt)
    copy += crc32(copy).to_bytes(4, "little")
    return copy * 2


def read_head(file: File) -> Head:
    """A journal's header, every byte checked. DamageError, or FormatError: of another version."""
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
    """The same of a file that may be damaged: either copy will do. What has none is read as
    version 1, whose header says nothing that its frames do not."""
    head = file.read_at(0, HEADER_SIZE)
    found = _parse_copy(head[:_COPY_SIZE]) or _parse_copy(head[_COPY_SIZE:])
    return found or Head(OLD_FORMAT, 0)


def readable_owner(file: File) -> bytes | None:
    """The ID of the directory that a file, which may be damaged, belongs to: b"" in version 1,
    which had none. None: the file does not tell, or is of a version to come."""
    form = readable_head(file).format
    return form.directory if form.is_salted or _is_old(file) else None


def _is_old(file: File) -> bool:
    """Whether a file that may be damaged is of version 1: its header says so, or its frames do."""
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


def create_journal(disk: Disk, name: str, directory: bytes) -> File:
    """A new journal of no frames, of the data directory with this ID. Its header is synced, so
    that a file that a manifest names and that is shorter has lost something."""
    file = disk.create(name)
    try:
        file.write(encode_header(directory, disk.random(SALT_SIZE)))
        file.sync()
    except OSError:
        file.close()
        raise
    return file


def reserve_ahead(file: File, wanted_bytes: int) -> int:
    """Keep up to `wanted_bytes` free after the end of `file`; returns how many were reserved.

    What does not fit is halved down to RESERVE_LEAST; OSError when not even that much fits.
    """
    return _reserve_behind(file, file.size, wanted_bytes, min(wanted_bytes, RESERVE_LEAST))


def _reserve_behind(file: File, end: int, wanted_bytes: int, least_bytes: int) -> int:
    """Keep up to `wanted_bytes` free after offset `end`, at least `least_bytes`."""
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
    """Free what is reserved after the end of a journal that gets no more frames."""
    with contextlib.suppress(OSError):  # only space is lost, and the file's removal frees it
        file.truncate(file.size)


class Worker(Protocol):
    """Runs tasks one after the other, away from the event loop."""

    def submit(self, task: Callable[[], None]) -> None: ...

    def drain(self, tell: Callable[[float], None] | None = None) -> None:
        """Return when everything submitted so far has run. `tell(seconds)` is called now and then
        while that takes long."""


class JournalOwner(Protocol):
    """Whom a journal tells what happened; called on the worker's thread or on the loop's."""

    def journal_synced(self, journal: "Journal", seq: int) -> None:
        """Everything up to `seq` is on the disk."""

    def journal_failed(self, journal: "Journal", error: OSError) -> None:
        """A write or sync failed: nothing more will be written. Called once."""

    def journal_written(self, journal: "Journal", seq: int) -> None:
        """The worker has written everything up to `seq`, not yet synced. Called in the modes
        everysec and no, and under always only after `tell_written` was set."""

    def journal_space(self, journal: "Journal", error: OSError | None) -> None:
        """Reserving space failed, or works again (None)."""


class Journal:
    """The journal being written: one file at a time, `rotate` goes on in another.

    Until it fails, `append` accepts consecutive sequence numbers. After a failure it drops
    everything: the owner abandons it and begins another.
    """

    def __init__(
        self,
        file: File,
        first_seq: int,
        mode: str,
        worker: Worker,
        owner: JournalOwner,
        reserve_bytes: int,
    ) -> None:
        """Go on in `file`, which has a header, at frame `first_seq`."""
        self.mode = mode
        self.synced_seq = first_seq - 1
        self.error: OSError | None = None
        self._worker = worker
        self._owner = owner
        self._file = file
        self._seq = first_seq - 1
        self._pending: deque[bytes | File] = deque()
        self._kicked = False
        # Whether frames go to the worker. The worker counts what it has done only when it will
        # touch the file no more for it: where both counts are equal the loop may write.
        self._queues = mode == "always"
        self._queued_items = 0  # the loop's count
        self._taken_items = self._done_items = 0  # the worker's
        self._task = self._write_pending
        self._written_seq = first_seq - 1
        self._reserve_bytes = reserve_bytes
        self._ahead_bytes = reserve_bytes // 2  # reserved again when less than this is left
        self._spare_bytes = min(reserve_bytes, RESERVE_LEAST) // 4
        # Frames in memory: what the loop has queued less what the worker has written. Each side
        # changes only its own count, so neither needs a lock.
        self._queued_total = 0
        self._written_total = 0
        self.tell_written = False
        # The loop's: the file that gets what is appended now, and where that ends when all that is
        # queued is written.
        self._last_file = file
        self._format = read_head(file).format
        self._end = file.size
        self._reserving = False
        self._space_error = False

    @property
    def size_bytes(self) -> int:
        """Bytes in the current file (what is queued is not counted)."""
        return self._file.size

    @property
    def name(self) -> str:
        """The name under which the file counts, or will once its base is written."""
        return self._file.name.removesuffix(".tmp")

    @property
    def last_seq(self) -> int:
        """The last frame that was appended."""
        return self._seq

    @property
    def written_seq(self) -> int:
        """The last frame that is in the file; the disk may not have it yet."""
        return self._written_seq

    @property
    def queued_bytes(self) -> int:
        """Memory taken by frames that are not written yet."""
        return self._queued_total - self._written_total

    def is_full(self, limit_bytes: int) -> bool:
        """Whether no more should be added until the worker has written: more than `limit_bytes`
        are queued, or the queue has used the space reserved ahead. The worker reserves more after
        its batch; the loop would wait for the disk to do so."""
        queued_bytes = self.queued_bytes
        if queued_bytes == 0 or self.error is not None:
            return False
        return queued_bytes > limit_bytes or (
            self._reserve_bytes > 0 and self._room_bytes() < self._ahead_bytes // 4
        )

    def append(self, seq: int, payload: bytes) -> bool:
        """Add a frame; true when its effects may be answered at once (modes everysec and no).

        Whatever prevents it fails the journal: no later frame may follow the gap.
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

    def rotate(self, file: File) -> None:
        """Go on in `file`, which has no frames; the old one is synced and closed."""
        self._format = read_head(file).format
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
        """Change `appendfsync` from the next frame on. It does not wait for the worker."""
        if mode == self.mode:
            return
        self.mode = mode
        if mode == "always":
            self._sync_soon()  # what was written before
            self._queues = True

    def tick_second(self) -> None:
        """Once a second: sync under everysec, and try again to reserve space."""
        if self.error is not None:
            return
        if self.mode == "everysec" and self.synced_seq < self._seq:
            self._sync_soon()
        if self._space_error:
            self._want_space()

    def sync_soon(self) -> None:
        """Sync what is written, unless it is automatic (`always`) or there is nothing to sync."""
        if self.error is None and self.mode != "always" and self.synced_seq < self._seq:
            self._sync_soon()

    def request_space(self) -> None:
        """Reserve the first step now, so that a full disk is known before the first write."""
        self._want_space()

    def make_room(self, payload_bytes: int) -> int:
        """See that the next frame may have so large a payload; how large it may be then.

        OSError when the disk has no room for it, and for more than PAYLOAD_MAX, which no frame
        can hold. What is kept ahead is mostly enough. Where it is not the caller waits for the
        disk: for a frame of very many bytes, or on a disk that is nearly full.
        """
        if payload_bytes > PAYLOAD_MAX:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        if not self._reserve_bytes or self.error is not None:
            return PAYLOAD_MAX
        if self._room_bytes() < payload_bytes:
            least_bytes = payload_bytes + FRAME_SIZE + self._spare_bytes
            _reserve_behind(
                self._last_file, self._end, least_bytes + self._reserve_bytes, least_bytes
            )
        return min(self._room_bytes(), PAYLOAD_MAX)

    def is_short(self) -> bool:
        """Whether there is hardly room for another frame."""
        return self._reserve_bytes > 0 and self._room_bytes() < self._spare_bytes

    def _room_bytes(self) -> int:
        return self._last_file.reserved_end - self._end - FRAME_SIZE - self._spare_bytes

    def close(self, tell: Callable[[float], None] | None = None) -> None:
        """Write and sync everything; reserved space is given back. OSError when that fails.
        `tell(seconds)` is called now and then while the disk takes long."""
        self.end()
        self._worker.drain(tell)
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """As `close`, without waiting for it: the owner hears that the last frame is synced, or
        that the journal has failed. No frame may follow."""
        self._worker.submit(self._finish)

    def fail(self, error: OSError) -> None:
        """As if writing had failed: the owner has no frame to append where one is due."""
        self._fail(error)

    def abandon(self) -> None:
        """Close the file of a failed journal, unsynced: its end is what a crash would leave."""
        if self.error is None:
            self.error = OSError(errno.EIO, "abandoned")
        self._kick()  # drops what is queued
        self._worker.submit(lambda: self._file.close())

    # The loop's side.

    def _must_queue(self) -> bool:
        """Whether what comes next goes to the worker: under `always`, and under another mode as
        long as the worker has not done what it was given before."""
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
        # File and number are taken on the thread that writes them: taken by the other, a rotation
        # between the two would declare the old file's end synced.
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

    # The worker's side.

    def _write_pending(self) -> None:
        # Cleared before the queue is read: a frame that comes later kicks again.
        self._kicked = False
        try:
            # The loop's side may fail while a batch is synced.
            while self._pending and self.error is None:
                self._write_batch()
        except Exception as error:
            # Whatever it was, frames taken from the queue may be lost: any that were written after
            # them would leave a gap.
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
        # What is queued meanwhile is the next batch: this one must come to its sync.
        mode = self.mode  # once: the loop may change it, and either its sync or this one must come
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
        """Write the next `count` items of the queue, or up to a change of files: the next one."""
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
        file.sync()
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
        except Exception as error:  # whatever it is, those who wait for the journal must hear of it
            self._fail(error)
        if self.error is None:
            self.synced_seq = self._seq
            self._owner.journal_synced(self, self._seq)

    def _sync(self, file: File, seq: int) -> None:
        if self.error is not None or seq <= self.synced_seq:
            return  # many may ask for the same sync
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
    """A failure that is not the disk's, in the form in which the journal's owner gets it."""
    if isinstance(error, MemoryError):
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    return OSError(errno.EIO, f"{type(error).__name__}: {error}")


# ---------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True)
class TornEnd:
    """Where a crash tore the journals: file `index` ends at `offset`, nothing after it counts."""

    index: int
    offset: int
    torn_bytes: int

    def kept(self, names: Sequence[str]) -> tuple[str, ...]:
        """Which of the journals continue to count; one that would begin after a gap does not."""
        return tuple(names[: self.index + (self.offset > 0)])


class JournalReader:
    """Reads journals, in order, as one sequence of frames that starts with `first_seq`.

    After `frames` is exhausted `next_seq` is the number that follows the last sound frame, and
    `torn` says whether the rest must be cut. DamageError means damage.
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
        if first_seq == 0:  # its first frame tells
            return head.format
        if first_seq < self.next_seq or (first_seq > self.next_seq and index == 0):
            raise _damage(file, 16, f"it starts with frame {first_seq}, {self.next_seq} was due")
        if first_seq > self.next_seq:
            self._judge(index, 0, _gap(self.next_seq, first_seq), missing=True)
            return None
        return head.format

    def _judge(self, index: int, offset: int, reason: str, missing: bool = False) -> None:
        """Decide about the bad stretch at `offset`: set `torn`, or raise DamageError."""
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
        """DamageError when a frame from offset `after` on, or in a later file, proves that the
        missing one was on the disk.

        Returns the offset of the next sound frame in the same file.
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


@dataclass(frozen=True, slots=True)
class Gap:
    """Frames that are lost: `first` to `last`, None: to an end that nothing tells. `payload` is
    what stands where that of the first one was, if its length is known: it may be damaged."""

    file: str
    offset: int
    first: int
    last: int | None
    payload: bytes = b""


def surviving_frames(
    files: Sequence[File], first_seq: int
) -> Iterator[tuple[File, int, bytes] | Gap]:
    """(file, sequence number, payload) of every frame that can be read, in order, and a Gap
    wherever frames are missing. The files' headers may be damaged."""
    due = first_seq
    bad: Gap | None = None
    for file in files:
        form = readable_head(file).format
        position: int | None = form.header_size
        while position is not None:
            for at, seq, _, payload in _sound_frames(file, form, position):
                position = at + form.frame_size + len(payload)
                if seq < due:
                    continue  # read before: the file is not what was due
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
    """What stands after a bad frame's header, as far as the header counts."""
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size:
        return b""
    length = min(int(_FRAME.unpack_from(head)[0]), _READ_SIZE)
    return file.read_at(offset + form.frame_size, length)


def _resume(file: File, form: FrameFormat, offset: int, due: int) -> int | None:
    """Where frames go on after a bad one; None: nowhere in this file."""
    start = _end_of_bad_frame(file, form, offset, due)
    while (found := _find_sound_frame(file, form, start, due)) is not None:
        if form.proves(file, found):
            return found
        start = found + 1
    return None


def frame_numbers(file: File) -> tuple[int | None, int]:
    """The numbers of a file's first frame (None: it has none) and of the last one that can be
    read from there."""
    *_, found = frame_numbers_so_far(file)
    return found


def frame_numbers_so_far(file: File) -> Iterator[tuple[int | None, int]]:
    """The same at the end, and before it what is known after each slice of the file. A large
    journal takes long: the caller may do something else between two slices."""
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
    """Cut the journals after a torn one down to their headers. Whatever comes next, none is left
    that holds frames and is not named."""
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
    """Cut the file that `JournalReader` found torn. A durable manifest must name no more than
    `torn.kept` before: a later file could not be told from one with frames missing before it."""
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
    """(offset, sequence number, unsynced, payload) until a frame is not sound or the file ends.

    A start spends most of its time for small frames here, so the loop calls nothing of this module:
    it does what `head_fits` does. Short slices of bytes cost less than those of a memoryview.
    """
    buffer = b""
    at = buffered = 0
    head_size, payload_seed, is_salted = form.frame_size, form.payload_seed, form.is_salted
    head_seed = form.head_seed + offset  # of a header at the buffer's first byte
    crc, unpack, unpack_old = crc32, _SALTED_FRAME.unpack_from, _FRAME.unpack_from
    file_size = file.size
    while True:
        if buffered - at < head_size:
            offset, at = offset + at, 0
            # A crash may have left less than a header: nothing is left to read then.
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
    """The first offset from `start` on of a sound frame numbered above `due`."""
    tops = {(due >> 32).to_bytes(4, "little"), ((due + _U32_MAX) >> 32).to_bytes(4, "little")}
    # A look-ahead finds overlapping places, too: the upper half of a number is mostly zeros.
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
                continue  # without a read for each of a client's imitations
            if next(_sound_frames(file, form, window + at), None) is not None:
                return window + at
        window += _READ_SIZE
    return None


def _end_of_bad_frame(file: File, form: FrameFormat, offset: int, due: int) -> int:
    """From where on frames may follow a bad one. Where its header is sound, all of what the header
    counts is its payload, whatever it looks like."""
    end = form.payload_end(file, offset, due)
    return offset + 1 if end is None else end


def _passes_end(file: File, form: FrameFormat, offset: int) -> bool:
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size:
        return True
    return offset + form.frame_size + int(_FRAME.unpack_from(head)[0]) > file.size


def _length_is_flipped(file: File, form: FrameFormat, offset: int, due: int) -> bool:
    """Whether the rest of the file is frame `due` in everything but its length."""
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size or file.size == offset + form.frame_size:
        return False
    if _FRAME.unpack_from(head)[2] != due:
        return False
    in_sector = _SECTOR - offset % _SECTOR
    if in_sector <= 4 and not any(head[:in_sector]):
        return False  # a sector that holds only (a part of) the length was not written
    return form.only_length_is_wrong(file, offset, head)


def _has_lost_sector(file: File, start: int, end: int) -> bool:
    """Whether some aligned sector's part of [start, end) is zero, as an unwritten one is."""
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
