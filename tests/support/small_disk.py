"""A real file system of a few megabytes that tests fill and free.

root mounts a tmpfs that is visible to all processes. Other users mount it in a separate namespace,
which a helper process keeps open; tests access it through /proc, and servers are started in it.
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
    """`path` is its path for servers; `here` is its path for the tests."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        path.mkdir()
        self.path = self.here = path
        self.wrapper: list[str] = []  # the command prefix that starts a server
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
        """Fill the file system except for `leave_bytes`."""
        with (self.here / "filler").open("ab") as file:
            size = file.tell() + self.free_bytes() - leave_bytes
            os.posix_fallocate(file.fileno(), 0, size)

    def free(self) -> None:
        """Free the filled space."""
        (self.here / "filler").unlink()
