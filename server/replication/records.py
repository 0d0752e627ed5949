"""The records that a primary sends to a replica: journal frames, and other records between them.

| at | size | |
|---|---|---|
| 0 | 4 | length of the payload |
| 4 | 4 | crc32 of bytes 8 to 19 and the payload |
| 8 | 8 | number of the frame; 0: the record is neither a frame nor a piece of a slot |
| 16 | 4 | kind; 0 for a frame. In a shard, its upper 24 bits are the low bits of the term |
| 20 | | payload |

A frame is encoded once for all replicas. A record that a replica receives is checked completely
before it is used.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from millstream.server.replication.upstream import parse_ids
from millstream.storage.blocks.checksum import crc32

_HEAD = struct.Struct("<IIQI")
_CHECKED = struct.Struct("<QI")
_CHECKED_AT = _HEAD.size - _CHECKED.size  # from there to its end a record is checked
_BEAT = struct.Struct("<QQQ")
_OFFSET = struct.Struct("<Q")
_CHANNEL = struct.Struct("<I")
_TERM_BITS = 0xFFFFFF  # of a term are in a record
HEAD_BYTES = _HEAD.size
PIECE_BYTES = 256 << 10  # of a base, or of old frames, in one record or write
# No record without the number of a frame is larger than this.
OTHERS_MAX = PIECE_BYTES + 64


class RecordKind(IntEnum):
    FRAME = 0
    BEAT = 1
    PIECE = 2
    END = 3
    MESSAGE = 4
    LAST = 5
    UPSTREAM = 6
    SHARD_MESSAGE = 7  # like MESSAGE, of a shard channel
    CONFIRMED = 8  # the number of the last frame that enough members of the shard have
    # To a shard that gets slots of this one (server/cluster/slot_moves). A piece has the number of
    # the frame at which its slot was captured.
    SLOT_PIECE = 9
    SLOTS_COPIED = 10
    SLOTS_LEFT = 11
    SLOTS_BEAT = 12


_NUMBERED = (RecordKind.FRAME, RecordKind.SLOT_PIECE)
_KINDS = tuple(RecordKind)  # in the order of their numbers, without a gap


class LinkError(Exception):
    """The other end sent something that is not allowed; the link ends."""


class Record(NamedTuple):
    number: int
    kind: RecordKind
    payload: bytes

    @property
    def size(self) -> int:
        return HEAD_BYTES + len(self.payload)


class Beat(NamedTuple):
    """Sent once a second: the primary's wall clock, its last frame, the size of all frames."""

    wall_ms: int
    last_seq: int
    frame_bytes: int


def encode(number: int, kind: int, payload: bytes, term: int = 0) -> bytes:
    """`term` is that of a primary in its shard."""
    if term:
        kind |= (term & _TERM_BITS) << 8
    crc = crc32(payload, crc32(_CHECKED.pack(number, kind)))
    return _HEAD.pack(len(payload), crc, number, kind) + payload


def encode_frame(seq: int, payload: bytes, term: int = 0) -> bytes:
    return encode(seq, RecordKind.FRAME, payload, term)


def encode_beat(beat: Beat, term: int = 0) -> bytes:
    return encode(0, RecordKind.BEAT, _BEAT.pack(*beat), term)


def encode_confirmed(seq: int, term: int) -> bytes:
    """Enough members have the frames up to this one on their disks: no election loses them."""
    return encode(0, RecordKind.CONFIRMED, _OFFSET.pack(seq), term)


def parse_confirmed(payload: bytes) -> int:
    if len(payload) != _OFFSET.size:
        raise LinkError(f"the number of a confirmed frame in {len(payload)} bytes")
    return int(_OFFSET.unpack(payload)[0])


def parse_beat(payload: bytes) -> Beat:
    if len(payload) != _BEAT.size:
        raise LinkError(f"a beat of {len(payload)} bytes")
    return Beat(*_BEAT.unpack(payload))


def encode_piece(offset: int, data: bytes, term: int = 0) -> bytes:
    """A part of a base, which begins at this offset of the file."""
    return encode(0, RecordKind.PIECE, _OFFSET.pack(offset) + data, term)


def parse_piece(payload: bytes) -> tuple[int, bytes]:
    if len(payload) <= _OFFSET.size:
        raise LinkError(f"a piece of {len(payload)} bytes")
    return _OFFSET.unpack_from(payload)[0], payload[_OFFSET.size :]


def encode_message(
    channel: bytes, message: bytes, *, is_shard: bool = False, term: int = 0
) -> bytes:
    """A message of a channel or shard channel; b"" if it is too long for a record."""
    if len(channel) + len(message) > PIECE_BYTES:
        return b""
    kind = RecordKind.SHARD_MESSAGE if is_shard else RecordKind.MESSAGE
    return encode(0, kind, _CHANNEL.pack(len(channel)) + channel + message, term)


def parse_message(payload: bytes) -> tuple[bytes, bytes]:
    """A channel and a message."""
    if len(payload) < _CHANNEL.size:
        raise LinkError(f"a message of {len(payload)} bytes")
    end = _CHANNEL.size + int(_CHANNEL.unpack_from(payload)[0])
    if end > len(payload):
        raise LinkError("a message whose channel is longer than itself")
    return payload[_CHANNEL.size : end], payload[end:]


def encode_last(is_primary: bool) -> bytes:
    """The answer to a replica that is being promoted: everything that was durable when it asked was
    sent before. `is_primary`: the sender is not a replica itself."""
    return encode(0, RecordKind.LAST, b"\1" if is_primary else b"\0")


def parse_last(payload: bytes) -> bool:
    """True if the sender is a primary."""
    return payload == b"\1"


def parse_upstream(payload: bytes) -> tuple[str, ...]:
    """The IDs of the servers above a replica, which follow each other."""
    try:
        return parse_ids(payload.decode())
    except ValueError as error:
        raise LinkError(str(error)) from None


class Decoder:
    """Finds records in received bytes. Memory is bounded: `payload_max` limits a frame. `term` is
    that of the followed primary in its shard; a record of another term is not allowed."""

    def __init__(self, payload_max: int, term: int = 0) -> None:
        self._payload_max = payload_max
        self._term_bits = (term & _TERM_BITS) << 8
        self._data: bytes | bytearray = b""  # a bytearray while a record continues in it
        self._at = 0

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data):
            self._data = data
        elif isinstance(self._data, bytearray):
            del self._data[: self._at]
            self._data += data
        else:
            self._data = bytearray(self._data[self._at :])
            self._data += data
        self._at = 0

    def next(self) -> Record | None:
        """The next complete record; None until more bytes arrive. LinkError for a damaged one."""
        left = len(self._data) - self._at
        if left < HEAD_BYTES:
            return None
        length, crc, number, kind = _HEAD.unpack_from(self._data, self._at)
        if length > (self._payload_max if number else OTHERS_MAX):
            raise LinkError(f"a record of {length} bytes")
        if left < HEAD_BYTES + length:
            return None
        start = self._at + HEAD_BYTES
        end = start + length
        payload = bytes(self._data[start:end])
        with memoryview(self._data) as view, view[self._at + _CHECKED_AT : end] as checked:
            if crc32(checked) != crc:
                raise LinkError("the checksum of a record is wrong")
        self._at = end
        kind ^= self._term_bits
        if kind >= len(_KINDS) or (number == 0) == (kind in _NUMBERED):
            if kind >> 8:
                raise LinkError(
                    f"a record of another term, whose low bits are {(kind ^ self._term_bits) >> 8}"
                )
            raise LinkError(f"a record of kind {kind} with number {number}")
        return Record(number, _KINDS[kind], payload)
