"""A pseudo terminal for programs that behave differently on one."""

from __future__ import annotations

import pty

import pytest


def open_terminal() -> tuple[int, int]:
    """The file numbers of both ends: the one that a test reads and writes, and the terminal of a
    program. Skips the test on a machine that has no pseudo terminals, such as a bare chroot."""
    try:
        return pty.openpty()
    except OSError as problem:
        pytest.skip(f"no pseudo terminal: {problem}; mount devpts at /dev/pts")
