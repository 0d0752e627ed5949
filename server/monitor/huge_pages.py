"""Huge pages for the heap.

The blocks of many streams are spread over more 4 KB pages than a processor's TLB holds, and each
miss walks the page tables (docs/decisions has figures).

Redis disables huge pages because its snapshots fork, and a forked process copies two megabytes for
each page that changes. This server does not fork. If the system provides huge pages on request
(``madvise``, the usual setting), glibc requests them for its heap if GLIBC_TUNABLES is set for it.
glibc reads this variable before any Python code runs, so the server executes itself again, in the
same process. If the command line shows that nothing forbids it, this happens before the
configuration and its modules are loaded, which would have to be loaded twice.

Such a heap grows and shrinks by two megabytes, and the kernel clears new pages. By default glibc
returns the last page as soon as a buffer at the heap's end is free, and requests it again for the
next buffer, so loading and long replies cleared each page several times. Therefore KEPT_BYTES are
kept, and buffers up to SHARED_BYTES are allocated in the heap (glibc adapts this size
automatically, but not if the other one is set). Larger buffers are returned to the system as soon
as they are free.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in millstream/__init__
if TYPE_CHECKING:
    from collections.abc import Sequence

SETTING = "/sys/kernel/mm/transparent_hugepage/enabled"
KEPT_BYTES = 4 << 20
SHARED_BYTES = 1 << 20
TUNABLE = "glibc.malloc.hugetlb"
TUNABLES = (
    f"{TUNABLE}=1:glibc.malloc.trim_threshold={KEPT_BYTES}"
    f":glibc.malloc.mmap_threshold={SHARED_BYTES}"
)
PR_SET_THP_DISABLE = 41
# In arguments: what may forbid huge pages, may contain such a directive, or starts no server.
UNDECIDED = ("thp", "tls", "include", "config", "check", "help")


def prepare_early(arguments: Sequence[str]) -> None:
    """Request huge pages if the command line alone shows that nothing forbids them; otherwise
    `prepare` decides when the configuration is known."""
    if not any(part in word.lower() for word in arguments for part in UNDECIDED):
        prepare(False)


def prepare(disabled: bool) -> None:
    """Request huge pages, or refuse them if the system provides them without a request. Called at
    start, before files are open. Failures are ignored."""
    setting = system_setting()
    if disabled and setting == "always":
        import ctypes  # takes a while, and is rarely needed

        ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    elif not disabled and setting == "madvise":
        environment = asking(os.environ)
        if environment is not None:
            start_again(environment)


def system_setting() -> str:
    """`always`, `madvise` or `never`."""
    try:
        with open(SETTING, encoding="utf-8") as file:  # whose codec is loaded
            words = file.read().split()
    except OSError:
        return "never"
    return next((word.strip("[]") for word in words if word.startswith("[")), "never")


def asking(environment: os._Environ[str] | dict[str, str]) -> dict[str, str] | None:
    """The environment with the tunables; None when it already requests or refuses huge pages, set
    by the user or by this program. A size that is already set is kept."""
    given = environment.get("GLIBC_TUNABLES", "")
    if TUNABLE in given:
        return None
    both = f"{TUNABLES}:{given}" if given else TUNABLES
    return {**environment, "GLIBC_TUNABLES": both}


def start_again(environment: dict[str, str]) -> None:
    """Execute the same program with the same arguments in this process; returns only on failure."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    except OSError:
        return
