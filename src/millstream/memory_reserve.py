"""Memory that is kept for the time when the operating system gives no more.

A limit of address space (`ulimit -v`, LimitAS=), of data (LimitDATA=), or on what all processes may
allocate (vm.overcommit_memory 2) makes an allocation fail instead of ending the process. Without a
reserve, the next allocations fail too, also those of signals, INFO, DEL, the stop and the last
save. The reserve is address space without pages, so it takes no memory. Freed memory mostly stays
in the heap of the C library, so the reserve is later taken there.
"""

from __future__ import annotations

import logging
import mmap
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

LOGGER = logging.getLogger("millstream")

WORK_BYTES = 16 << 20  # for commands that free memory, INFO, and a new journal
PIECE_BYTES = 64 << 10
STOP_BYTES = 24 << 20  # for the stop: it also writes a snapshot
OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")
NEVER_OVERCOMMIT = "2"
M_ARENA_MAX = -8  # mallopt(3)


class _HeapBlock:
    """A block made of pieces of the heap. MemoryError when there is not enough."""

    def __init__(self, size_bytes: int) -> None:
        import ctypes  # takes a while, and is rarely needed

        library = ctypes.CDLL(None)
        library.malloc.restype = ctypes.c_void_p
        self._free = library.free
        self._free.argtypes = [ctypes.c_void_p]
        self._pieces: list[int] = []
        for _ in range(0, size_bytes, PIECE_BYTES):
            piece = library.malloc(ctypes.c_size_t(PIECE_BYTES))
            if not piece:
                self.close()
                raise MemoryError
            self._pieces.append(piece)

    def close(self) -> None:
        while self._pieces:
            self._free(self._pieces.pop())


_Block = mmap.mmap | _HeapBlock


class MemoryReserve:
    """Two blocks of address space: one for the work when an allocation has failed, and one for the
    stop. Methods may be called from any thread.

    `is_short`: an allocation has failed, and the reserve could not be taken again since.
    """

    def __init__(self, work_bytes: int = WORK_BYTES, stop_bytes: int = STOP_BYTES) -> None:
        self._sizes = work_bytes, stop_bytes
        self._work: _Block | None = None
        self._stop: _Block | None = None
        self._is_used = False  # a server's process has a reserve
        self._on_short: Callable[[], None] = lambda: None
        self.is_short = False

    def take(self, on_short: Callable[[], None]) -> None:
        """Take the reserve. What cannot be taken now is taken by `retake`. `on_short()` is called
        when `is_short` becomes true, in any thread."""
        self._is_used = True
        self._on_short = on_short
        self._take_all()

    def give_back(self) -> bool:
        """An allocation has failed: give back the part for commands. Returns `is_short`."""
        if self._is_used and not self.is_short:
            self.is_short = True
            self._free_work()
            self._on_short()
            with suppress(MemoryError):
                LOGGER.error(
                    "memory   the operating system gives this process no more memory: commands that"
                    " need memory are refused until some is free"
                )
        return self.is_short

    def give_back_all(self) -> None:
        """The server is about to stop, which needs memory."""
        self._free_work()
        block, self._stop = self._stop, None
        if block is not None:
            block.close()

    def _free_work(self) -> None:
        block, self._work = self._work, None  # another thread may do the same
        if block is not None:
            block.close()

    def retake(self) -> None:
        """Once a second: take the reserve again if there is some more memory than that."""
        if not self._is_used or (self._work is not None and self._stop is not None):
            return
        with suppress(OSError, MemoryError):
            _block(sum(self._sizes) + self._sizes[0]).close()
            if self._take_all() and self.is_short:
                self.is_short = False
                LOGGER.warning("memory   there is memory again: commands that need it are accepted")

    def _take_all(self) -> bool:
        with suppress(OSError, MemoryError):
            self._stop = self._stop or _block(self._sizes[1])
            self._work = self._work or _block(self._sizes[0])
            return True
        return False


def _block(size_bytes: int) -> _Block:
    """A block of memory that nothing uses. MemoryError when there is not enough."""
    try:
        return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return _HeapBlock(size_bytes)


RESERVE = MemoryReserve()
SETTINGS = (("RLIMIT_AS", "ulimit -v, LimitAS"), ("RLIMIT_DATA", "ulimit -d, LimitDATA"))


def _own_limits() -> Iterator[tuple[str, int]]:
    for name, setting in SETTINGS:
        limit_bytes = resource.getrlimit(getattr(resource, name))[0]
        if limit_bytes != resource.RLIM_INFINITY:
            yield setting, limit_bytes


def own_limit() -> tuple[str, int] | None:
    """The lowest limit on what this process may allocate: how it is set, and its bytes."""
    return min(_own_limits(), key=lambda limit: limit[1], default=None)


def never_overcommits() -> bool:
    """True if the kernel refuses allocations that memory and swap do not cover."""
    try:
        return OVERCOMMIT.read_text("utf-8").strip() == NEVER_OVERCOMMIT
    except OSError:
        return False


def share_heap() -> None:
    """Under a limit, let all threads use one heap. By default, the C library reserves 64 MB of
    address space for each thread."""
    if own_limit() is not None:
        import ctypes  # takes a while, and is rarely needed

        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)
