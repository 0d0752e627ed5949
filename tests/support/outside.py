"""A real server whose disk stalls or fails and whose wall clock jumps on request.

A small library (outside.c) is preloaded into the server's process; it shares sixteen bytes of a
file with the test.
"""

from __future__ import annotations

import mmap
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("outside.c")
SIZE_BYTES = 16


class FakeOutside:
    """`wrapper` is the command prefix that starts a server with the library."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        assert compiler, "a C compiler is missing: apt-get install gcc"
        library = folder / "outside.so"
        subprocess.run(
            [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE), "-ldl"],
            check=True,
        )
        state = folder / "outside"
        state.write_bytes(bytes(SIZE_BYTES))
        with state.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), SIZE_BYTES)
        self.wrapper = ["env", f"LD_PRELOAD={library}", f"MILLSTREAM_TEST_OUTSIDE={state}"]

    def jump(self, offset_ms: int) -> None:
        """Set the wall clock ahead of the machine's clock by `offset_ms`."""
        self._shared[:8] = offset_ms.to_bytes(8, "little", signed=True)

    def stall_disk(self) -> None:
        """Make all syncs block."""
        self._shared[8:] = (1).to_bytes(8, "little")

    def break_disk(self) -> None:
        """Make every sync fail."""
        self._shared[8:] = (2).to_bytes(8, "little")

    def free_disk(self) -> None:
        """Make syncs work again."""
        self._shared[8:] = bytes(8)
