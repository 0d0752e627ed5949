"""What memory the machine has given the process, and what the C library says of its heaps.

Python's small objects and the compiled modules' blocks come from different allocators that keep no
common account; server/memory tells how much is in use.
"""

from __future__ import annotations

import ctypes
import resource
import time
from pathlib import Path
from typing import NamedTuple

PAGE_BYTES = resource.getpagesize()

_FIELDS = (
    "arena", "ordblks", "smblks", "hblks", "hblkhd",
    "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
)  # fmt: skip


class _MallInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


class Memory(NamedTuple):
    """One look at the process' memory, in bytes."""

    rss_bytes: int
    """What the process holds of the machine's memory."""
    peak_rss_bytes: int
    heap_bytes: int
    """What the C library has got from the machine; 0 with one that does not tell."""
    heap_used_bytes: int
    """And what of that was handed out."""


def _mallinfo() -> ctypes._NamedFuncPointer | None:
    try:
        found = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):  # a C library that is not glibc, or an old one
        return None
    found.restype = _MallInfo
    return found


_MALLINFO = _mallinfo()


class _Heap:
    """What the C library says of its heaps. It walks all free places for it, 0.3 seconds for half a
    million of them, so an answer that was dear to get serves for a thousand times as long."""

    def __init__(self) -> None:
        self._next_s = 0.0
        self._last = (0, 0)

    def look(self) -> tuple[int, int]:
        """(bytes got from the machine, bytes handed out)."""
        begun_s = time.monotonic()
        if _MALLINFO is not None and begun_s >= self._next_s:
            heap = _MALLINFO()
            self._last = (heap.arena + heap.hblkhd, heap.uordblks + heap.hblkhd)
            done_s = time.monotonic()
            self._next_s = done_s + 1000 * (done_s - begun_s)
        return self._last


_HEAP = _Heap()


def rss_bytes() -> int:
    """The memory of the machine that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


def look() -> Memory:
    """The memory as it is now."""
    rss = rss_bytes()
    peak = max(rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return Memory(rss, peak, *_HEAP.look())
