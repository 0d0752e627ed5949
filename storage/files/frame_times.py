"""Times of frames: the effect TIME, at most one a second, at the beginning of a frame.

A frame with it, and those after it up to the next one, were made in that second of the wall clock.
The times are informative: frames are ordered by their numbers, and the clock may go back. Frames of
earlier versions have no times.
"""

import re

from millstream.storage.files.journal_format import FRAME_SIZE

TIME = b"TIME"
TIME_BYTES_MAX = 48
# What a frame may take in the journal besides the effects of its requests.
FRAME_EXTRA_BYTES = FRAME_SIZE + TIME_BYTES_MAX

# Only the effect HISTORY comes before it.
_BEGINNING = re.compile(
    rb"(?:\*3\r\n\$7\r\nHISTORY\r\n\$40\r\n[0-9a-f]{40}\r\n\$\d{1,2}\r\n\d+\r\n)?"
    rb"\*2\r\n\$4\r\nTIME\r\n\$\d{1,2}\r\n(\d+)\r\n"
)


def encode_time(time_s: int) -> bytes:
    """The effect for frames made in this second of Unix time."""
    digits = b"%d" % time_s
    return b"*2\r\n$4\r\nTIME\r\n$%d\r\n%b\r\n" % (len(digits), digits)


def time_of(payload: bytes) -> int | None:
    """The time in a frame; None: it is that of the frame before."""
    found = _BEGINNING.match(payload)
    return None if found is None else int(found[1])
