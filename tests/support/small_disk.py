"""A real file system of a few megabytes, to be filled and freed.

root mounts a tmpfs where everybody sees it. Who may not do that keeps one in a namespace of its
own, for which a process stands; the tests reach into it by /proc, and servers are started in it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.support.waiting import wait_until

MEGABYTE = 1 << 20


class CannotMount(Exception):
    """Neither way works on this machine."""


class SmallDisk:
    """`path` is where servers see it; `here` is the same place for the tests."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        path.mkdir()
        self.path = self.here = path
        self.wrapper: list[str] = []  # what a server is started with
        self._keeper: subprocess.Popen[bytes] | None = None
        options = ["-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(path)]
        if os.geteuid() != 0 or subprocess.run(["mount", *options], check=False).returncode:
            self._mount_in_a_namespace(options)

    def _mount_in_a_namespace(self, options: list[str]) -> None:
        if not (shutil.which("unshare") and shutil.which("nsenter")):
            raise CannotMount("unshare and nsenter are missing: apt-get install util-linux")
        script = 'mount "$@" && touch "$0/mounted" && exec sleep infinity'
        command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
        self._keeper = subprocess.Popen([*command, str(self.path), *options])
        pid = self._keeper.pid
        self.here = Path(f"/proc/{pid}/root{self.path}")
        self.wrapper = ["nsenter", "--preserve-credentials", "--user", "--mount", "-t", str(pid)]
        keeper = self._keeper
        wait_until(lambda: keeper.poll() is not None or (self.here / "mounted").exists())
        if keeper.poll() is not None:
            raise CannotMount("no file system may be mounted, not even in a namespace")

    def unmount(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.wait()
        else:
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)

    def free_bytes(self) -> int:
        status = os.statvfs(self.here)
        return status.f_bavail * status.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Somebody else takes all space but this."""
        with (self.here / "filler").open("ab") as file:
            size = file.tell() + self.free_bytes() - leave_bytes
            os.posix_fallocate(file.fileno(), 0, size)

    def free(self) -> None:
        """It is given back."""
        (self.here / "filler").unlink()
