"""The first effects of frames: times, and the lines of history.

A frame with the effect TIME, and those after it up to the next one, were made in that second of the
wall clock; there is at most one a second. The times are informative: frames are ordered by their
numbers, and the clock may go back. Frames of earlier versions have no times. The effect HISTORY is
in the first frame of a line of history, with the term if a shard has one. Both come before all
others, HISTORY first.

Frames of earlier versions have both as RESP.
"""

import re

from millstream.storage.files.journal_format import FRAME_SIZE

HISTORY_CODE, TIME_CODE = 1, 2
TIME = b"TIME"
TIME_BYTES_MAX = 48
# What a frame may take in the journal besides the effects of its requests.
FRAME_EXTRA_BYTES = FRAME_SIZE + TIME_BYTES_MAX

_VARINT = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_NUMBER = rb"\x01" + _VARINT
_LINE_NAME = rb"\x2a[0-9a-f]{40}"
_LINE = re.compile(rb"\*3\r\n\$7\r\nHISTORY\r\n|\x01[\x02\x03]" + _LINE_NAME)
_RESP_BEGINNING = re.compile(
    rb"(?:\*3\r\n\$7\r\nHISTORY\r\n\$40\r\n[0-9a-f]{40}\r\n\$\d{1,2}\r\n\d+\r\n)?"
    rb"\*2\r\n\$4\r\nTIME\r\n\$\d{1,2}\r\n(\d+)\r\n"
)
_BEGINNING = re.compile(
    rb"(?:\x01[\x02\x03]" + _LINE_NAME + rb"(?:" + _NUMBER + rb"){1,2})?"
    rb"\x02\x01\x01(" + _VARINT + rb")",
    re.DOTALL,
)


def encode_time(time_s: int) -> bytes:
    """The effect for frames made in this second of Unix time."""
    return b"%c\x01\x01" % TIME_CODE + _varint(time_s)


def encode_line(name: bytes, seq: int, term: int = 0) -> bytes:
    """The effect that begins a line of history, with a name of 40 letters, in frame `seq`. `term`:
    that of the primary in its shard; 0: there is none."""
    words = 3 if term else 2
    line = b"%c%c\x2a" % (HISTORY_CODE, words) + name + b"\x01" + _varint(seq)
    return line + b"\x01" + _varint(term) if term else line


def begins_line(payload: bytes) -> bool:
    """True if a line of history begins with the frame."""
    return _LINE.match(payload) is not None


def time_of(payload: bytes) -> int | None:
    """The time in a frame; None: it is that of the frame before."""
    if payload[:1] == b"*":
        found = _RESP_BEGINNING.match(payload)
        return None if found is None else int(found[1])
    found = _BEGINNING.match(payload)
    return None if found is None else _number(found[1])


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 128:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _number(varint: bytes) -> int:
    return sum((byte & 127) << 7 * place for place, byte in enumerate(varint))
