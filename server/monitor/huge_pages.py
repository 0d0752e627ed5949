"""Huge pages for the heap: the blocks of many streams are spread over more 4 KB pages than a
processor keeps addresses for, and each miss walks the page tables (docs/decisions has figures).

Redis keeps huge pages off because its snapshots fork, and a forked process copies two megabytes for
each page that changes. There is no fork here. If the system provides huge pages on request
(``madvise``, the usual setting), glibc asks for its heap when GLIBC_TUNABLES says so. It reads that
before any of our code runs, so the server starts itself once more, in the same process.

Such a heap grows and shrinks by two megabytes, and the kernel fills new pages with zeros
first. Left alone, glibc gives the last page back as soon as a buffer at the heap's end is free, and
takes it again for the next: loading and long replies cleared each page several times over. So
KEPT_BYTES stay, and buffers up to SHARED_BYTES lie in the heap (glibc finds that size on its own,
but no longer once the other one is set). What is larger is given back the moment it is free.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
KEPT_BYTES = 4 << 20
SHARED_BYTES = 1 << 20
TUNABLE = "glibc.malloc.hugetlb"
TUNABLES = (
    f"{TUNABLE}=1:glibc.malloc.trim_threshold={KEPT_BYTES}"
    f":glibc.malloc.mmap_threshold={SHARED_BYTES}"
)
PR_SET_THP_DISABLE = 41


def prepare(disabled: bool) -> None:
    """Ask for huge pages, or refuse them where the system gives them unasked; at start, before
    files are open. What cannot be had is done without."""
    setting = system_setting()
    if disabled and setting == "always":
        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    elif not disabled and setting == "madvise":
        environment = asking(os.environ)
        if environment is not None:
            start_again(environment)


def system_setting() -> str:
    """`always`, `madvise` or `never`."""
    try:
        words = SETTING.read_text().split()
    except OSError:
        return "never"
    return next((word.strip("[]") for word in words if word.startswith("[")), "never")


def asking(environment: os._Environ[str] | dict[str, str]) -> dict[str, str] | None:
    """The environment with the tunables in it; None when huge pages are asked for or refused there
    already: who set it has decided, or it was us. A size that is there stays."""
    given = environment.get("GLIBC_TUNABLES", "")
    if TUNABLE in given:
        return None
    both = f"{TUNABLES}:{given}" if given else TUNABLES
    return {**environment, "GLIBC_TUNABLES": both}


def start_again(environment: dict[str, str]) -> None:
    """The same program with the same words in the same process; returns only if that fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:
        return
