"""Huge pages for the heap: the blocks of many streams are spread over more 4 KB pages than a
processor keeps addresses for, and each miss walks the page tables (docs/decisions has figures).

Redis keeps huge pages off because its snapshots fork, and a forked process copies two megabytes for
each page that changes. There is no fork here. Where the system gives huge pages to who asks
(``madvise``, the usual setting), glibc asks for its heap when GLIBC_TUNABLES says so. It reads that
before any of our code runs, so the server starts itself once more, in the same process.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")
TUNABLE = "glibc.malloc.hugetlb"
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
    """The environment with the tunable in it; None when it is there already, with whatever value:
    who set it has decided, or it was us."""
    tunables = environment.get("GLIBC_TUNABLES", "")
    if TUNABLE in tunables:
        return None
    both = f"{tunables}:{TUNABLE}=1" if tunables else f"{TUNABLE}=1"
    return {**environment, "GLIBC_TUNABLES": both}


def start_again(environment: dict[str, str]) -> None:
    """The same program with the same words in the same process; returns only if that fails."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:
        return
