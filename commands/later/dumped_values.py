"""Values in Redis' format, made and read over several turns: for DUMP and RESTORE."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

from millstream.commands.runtime.replies import Sliced
from millstream.errors import CommandError, PayloadError
from millstream.storage.dump import rdb
from millstream.storage.dump.primitives import COMPRESSED_MAX_BYTES, string_head
from millstream.storage.dump.rdb_bytes import crc64
from millstream.storage.dump.stream_reading import STREAM_4
from millstream.storage.streams.stream import Stream

WRONG_CHECKSUM = "ERR DUMP payload version or checksum are wrong"
BAD_FORMAT = "ERR Bad data format"

# Bytes made or sent in one turn; a step costs more than its bytes.
TURN_BYTES = 16_384
STEP_BYTES = 1024
SLICE_BYTES = 262_144


def dump_of(value: Stream | bytes, wall_ahead_ms: int) -> Sliced | bytes:
    """The dump of a value; a long one in slices."""
    if isinstance(value, Stream):
        made = SlicedDump(rdb.StreamDump(value, wall_ahead_ms))
        return made if made.prepare() else made.whole()
    if len(value) > COMPRESSED_MAX_BYTES:
        return SlicedStringDump(value)
    return SlicedDump(rdb.StringDump(value)).whole()


def value_of(payload: bytes, incarnation: int, now_ms: int, wall_ahead_ms: int) -> Stream | bytes:
    """The value of a payload that a RESTORE has put into the journal."""
    return rdb.whole(rdb.load(payload, incarnation, now_ms, wall_ahead_ms)).value


def lacks_window(kind: int) -> bool:
    """True if a payload of this type has no bounds of an idempotence window."""
    return kind < STREAM_4


class SlicedDump(Sliced):
    """A dump made in steps. All of it is made before the first byte is sent, because the length of
    the bulk string comes first."""

    def __init__(self, source: rdb.StreamDump | rdb.StringDump) -> None:
        self._steps = source.steps()
        self._version = source.version
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0
        self._crc = 0
        self._is_whole = False

    def prepare(self) -> bool:
        """Continue for a turn; False when the dump is complete."""
        work_bytes = 0
        while work_bytes < TURN_BYTES:
            piece = next(self._steps, None)
            if piece is None:
                self._finish()
                return False
            self._add(piece)
            work_bytes += len(piece) + STEP_BYTES
        return True

    def _add(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._size_bytes += len(piece)
            self._crc = crc64(piece, self._crc)

    def _finish(self) -> None:
        if not self._is_whole:
            self._is_whole = True
            self._add(rdb.footer(self._version, self._crc))
            self._pieces.appendleft(b"$%d\r\n" % self._size_bytes)
            self._pieces.append(b"\r\n")

    def whole(self) -> bytes:
        """The whole dump at once, without the length before it."""
        while self.prepare():
            pass
        self._pieces.popleft()
        self._pieces.pop()
        return b"".join(self._pieces)

    def next_slice(self) -> bytes:
        taken, size_bytes = [], 0
        while self._pieces and size_bytes < SLICE_BYTES:
            taken.append(self._pieces.popleft())
            size_bytes += len(taken[-1])
        return b"".join(taken)


class SlicedStringDump(Sliced):
    """The dump of a long string, which is sent without a copy: slice by slice, the checksum
    last."""

    def __init__(self, text: bytes) -> None:
        self._head = bytes((rdb.STRING,)) + string_head(text)
        self._text = text
        self._at = -1  # before the head
        self._crc = crc64(self._head)

    def next_slice(self) -> bytes:
        if self._at < 0:
            self._at = 0
            size_bytes = len(self._head) + len(self._text) + rdb.FOOTER_BYTES
            return b"$%d\r\n" % size_bytes + self._head
        if self._at > len(self._text):
            return b""
        piece = self._text[self._at : self._at + SLICE_BYTES]
        self._at += SLICE_BYTES
        self._crc = crc64(piece, self._crc)
        if self._at <= len(self._text):
            return piece
        return piece + rdb.footer(rdb.StringDump.version, self._crc) + b"\r\n"


class RestoreJob:
    """Makes the value of a RESTORE, over several turns if necessary."""

    def __init__(
        self, payload: bytes, incarnation: int, now_ms: int, wall_ahead_ms: int = 0
    ) -> None:
        """`now_ms` is of the steady clock; the wall clock is ahead of it by `wall_ahead_ms`."""
        self.payload = payload
        self.wall_ahead_ms = wall_ahead_ms
        self.now_ms = now_ms
        self._steps = self._all_steps(incarnation, now_ms)

    def _all_steps(self, incarnation: int, now_ms: int) -> Generator[None, None, rdb.Loaded]:
        if not (yield from rdb.is_intact(self.payload)):
            raise CommandError(WRONG_CHECKSUM)
        try:
            return (yield from rdb.load(self.payload, incarnation, now_ms, self.wall_ahead_ms))
        except rdb.OtherTypeError as error:
            raise CommandError(f"{BAD_FORMAT}: {error}") from error
        except PayloadError as error:
            raise CommandError(BAD_FORMAT) from error

    def run(self, most_steps: int) -> rdb.Loaded | None:
        """Do some steps; return the value when all are done. CommandError for an invalid
        payload."""
        try:
            for _ in range(most_steps):
                next(self._steps)
        except StopIteration as done:
            loaded: rdb.Loaded = done.value
            return loaded
        return None

    def finish(self) -> rdb.Loaded:
        return rdb.whole(self._steps)
