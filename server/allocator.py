"""How much memory the process takes: what the machine has given it, and how much of that is used.

Python's small objects and the compiled modules' blocks come from different allocators that keep no
common account. What is used is taken to be what the process holds less what the C library has free
in its heaps: large parts of memory that are freed lower it at once, whether they go back to the
machine or wait to be used again. Free places among Python's small objects count as used.
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

    @property
    def used_bytes(self) -> int:
        """`used_memory`. What was given back in the middle of a heap is free there and not in
        memory either, hence the lower bound."""
        free_bytes = self.heap_bytes - self.heap_used_bytes
        return max(self.rss_bytes - free_bytes, self.heap_used_bytes)


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
