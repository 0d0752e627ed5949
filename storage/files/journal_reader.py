"""Reads journals, and distinguishes a torn end from damage.

`JournalReader` reads all journals of a directory as one sequence. An invalid end is either a torn
end, which is cut, or damage, which is refused; docs/formats.md has the rules. Each frame contains
the number of frames before it that were not yet synced. With this number a later frame can prove
that an unreadable frame had been synced. Without such a proof, out-of-order disk writes after a
power loss could not be distinguished from a damaged file.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from millstream.storage.files.disk import Disk, File
from millstream.storage.files.journal_format import (
    FRAME,
    READ_SIZE,
    U32_MAX,
    FrameFormat,
    damage_at,
    read_head,
    readable_head,
    sound_frames,
)

_SECTOR = 512
_SLICE_SIZE = 1 << 18  # bytes of small frames that are read in a few milliseconds
_PAUSE_FRAMES = 32  # between two calls of `pause`


class TornEnd(NamedTuple):
    """The torn end of the journals: file `number` ends at `offset`; later bytes and files are
    ignored."""

    number: int
    offset: int
    torn_bytes: int

    def kept(self, names: Sequence[str]) -> tuple[str, ...]:
        """The journals that remain valid; a journal that begins after a gap does not."""
        return tuple(names[: self.number + (self.offset > 0)])


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
            for at, seq, _, payload in sound_frames(file, form, offset):
                if seq != due:
                    if seq > due and index and offset == start:
                        self._judge(index, 0, _gap(due, seq), missing=True)
                        return
                    raise damage_at(file, at, f"found frame {seq}, expected {due}")
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
            raise damage_at(file, 16, f"it starts with frame {first_seq}, not {self.next_seq}")
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
                raise damage_at(file, offset, "the length of the last frame is wrong")
            ends_early = follows is None and _passes_end(file, form, offset)
            end = file.size if follows is None else follows
            if not ends_early and not _has_lost_sector(file, offset, end):
                raise damage_at(file, offset, reason)
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
                for at, seq, unsynced, payload in sound_frames(file, form, found):
                    if seq - 1 - unsynced >= due:
                        raise damage_at(self._files[index], offset, reason)
                    position = at + form.frame_size + len(payload)
        return follows


def frames_from(
    files: Sequence[File],
    first_seq: int,
    last_seq: int,
    pause: Callable[[], None] = lambda: None,
) -> Iterator[tuple[int, bytes]]:
    """(number, payload) of the frames from `first_seq` to `last_seq`, as far as these journals have
    them: it ends before a gap. The journals may be in use. `pause` is called once in a few frames,
    also in those before `first_seq`."""
    firsts = [_first_frame(file) for file in files]
    due = first_seq
    for index, file in enumerate(files):
        later = [first for first in firsts[index + 1 :] if first is not None]
        if later and later[0] <= due:
            continue
        form = read_head(file).format
        for _, seq, _, payload in sound_frames(file, form, form.header_size):
            if seq % _PAUSE_FRAMES == 0:
                pause()
            if seq > due or due > last_seq:
                return
            if seq == due:
                yield seq, payload
                due += 1


def _first_frame(file: File) -> int | None:
    form = read_head(file).format
    found = next(sound_frames(file, form, form.header_size), None)
    return None if found is None else found[1]


class Gap:
    """Lost frames: `first` to `last` (None: unknown). `payload` is the possibly damaged payload of
    the first one, if its length is known."""

    def __init__(
        self,
        file: str,
        offset: int,
        first: int,
        last: int | None,
        payload: bytes = b"",
    ) -> None:
        self.file = file
        self.offset = offset
        self.first = first
        self.last = last
        self.payload = payload


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
            for at, seq, _, payload in sound_frames(file, form, position):
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
    length = min(int(FRAME.unpack_from(head)[0]), READ_SIZE)
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
    for at, seq, _, _ in sound_frames(file, form, form.header_size):
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
    for name in names[torn.number + (torn.offset > 0) :]:
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
    file = disk.append(names[torn.number])
    try:
        file.truncate(torn.offset)
        file.sync()
    finally:
        file.close()


def _find_sound_frame(file: File, form: FrameFormat, start: int, due: int) -> int | None:
    """The first offset from `start` on of a valid frame with a number above `due`."""
    tops = {(due >> 32).to_bytes(4, "little"), ((due + U32_MAX) >> 32).to_bytes(4, "little")}
    # A look-ahead also finds overlapping matches: the upper half of a number is mostly zeros.
    pattern = re.compile(b"(?=" + b"|".join(re.escape(top) for top in tops) + b")", re.DOTALL)
    head_size = form.frame_size
    window = start
    while window < file.size:
        data = file.read_at(window, READ_SIZE + head_size)
        for match in pattern.finditer(data, 12):
            at = match.start() - 12
            if at >= READ_SIZE or at + head_size > len(data):
                break
            length, _, seq, _ = FRAME.unpack_from(data, at)
            if not length or seq <= due or window + at + head_size + length > file.size:
                continue
            if not form.head_fits(data[at : at + head_size], window + at):
                continue  # avoids a read for each imitation in a client's data
            if next(sound_frames(file, form, window + at), None) is not None:
                return window + at
        window += READ_SIZE
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
    return offset + form.frame_size + int(FRAME.unpack_from(head)[0]) > file.size


def _length_is_flipped(file: File, form: FrameFormat, offset: int, due: int) -> bool:
    """True if the rest of the file is frame `due`, apart from its length."""
    head = file.read_at(offset, form.frame_size)
    if len(head) < form.frame_size or file.size == offset + form.frame_size:
        return False
    if FRAME.unpack_from(head)[2] != due:
        return False
    in_sector = _SECTOR - offset % _SECTOR
    if in_sector <= 4 and not any(head[:in_sector]):
        return False  # a sector with only (part of) the length was not written
    return form.only_length_is_wrong(file, offset, head)


def _has_lost_sector(file: File, start: int, end: int) -> bool:
    """True if the part of an aligned sector in [start, end) is all zero, like an unwritten
    sector."""
    position = start
    while position < end:
        stop = min(end, position - position % READ_SIZE + READ_SIZE)
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
