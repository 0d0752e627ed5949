"""The second guard of a data directory, for file systems that cannot lock.

The lock file names its owner: process, time of its start, boot of the machine, and namespace of
processes. The owner rewrites the file every few seconds; one that has a lock, because the file
system can lock at that moment, writes it once. A server or a repair that finds a file of
an owner that is alive, or of an unknown one that has been rewritten lately, refuses the directory.
An owner of the same boot and namespace that is gone blocks nothing.

This is weaker than a lock: two servers that start within the same moment are detected half a second
later, and an owner that was suspended for long finds out at its next beat that the directory has
another owner. It then ends at once, without writing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from millstream.errors import DataError

log = logging.getLogger("millstream.persistence")

BEAT_S = 2.0
YOUNG_S = 10.0  # a living owner has rewritten the file within this time
SETTLE_S = 0.5  # after which a server that starts in the same moment has written its name
GUARD, LOCKED = "guard", "locked"
_SIZE_MAX = 4096


class Owner(NamedTuple):
    """The owner of a directory. `boot` and `namespace` are empty where they do not exist."""

    process: int
    started: str
    boot: str
    namespace: str

    def encode(self, beat: int, kind: str = GUARD) -> bytes:
        """The content of the lock file. Its first line is the process."""
        words = f"{self.started} {self.boot} {self.namespace} {beat}"
        return f"{self.process}\n{kind} {words}\n".encode()


def read_owner(content: bytes, kind: str = GUARD) -> Owner | None:
    """The owner that a lock file names; None if it names none of this kind: an owner that rewrites
    the file, or one that has a lock (LOCKED)."""
    lines = content.decode("ascii", "replace").splitlines()
    if len(lines) < 2 or not lines[0].isdecimal():
        return None
    words = lines[1].split(" ")
    if len(words) != 5 or words[0] != kind:
        return None
    return Owner(int(lines[0]), *words[1:4])


def this_process() -> Owner:
    """This process as an owner."""
    boot = namespace = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    state = _state(os.getpid())
    return Owner(os.getpid(), "?" if state is None else state.started, boot, namespace)


class _State(NamedTuple):
    """The state of a process, and its start in ticks since the boot."""

    letter: str
    started: str


def _state(process: int) -> _State | None:
    """None if there is no such process."""
    try:
        text = Path(f"/proc/{process}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    words = text.rpartition(")")[2].split()
    return _State(words[0], words[19])


def _has_ended(process: int, state: _State) -> bool:
    """True for a process that only waits until its parent asks how it has ended. In a container,
    that may be for ever."""
    try:
        # The main thread may have ended alone.
        tasks = Path(f"/proc/{process}/task")
        return state.letter in "ZX" and len(list(tasks.iterdir())) <= 1
    except OSError:
        return False


def end_process(sentence: str) -> None:
    """End this process immediately: any further write could destroy the other one's data."""
    log.critical("stopping immediately: %s", sentence)
    os._exit(1)


def _is_alive(owner: Owner) -> bool:
    """True if an owner of this boot and namespace still runs."""
    state = _state(owner.process)
    if state is not None:
        return state.started == owner.started and not _has_ended(owner.process, state)
    try:
        os.kill(owner.process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # the process belongs to another user, and /proc hides it
    return True


class LockGuard:
    """The guard of one directory by its lock file."""

    def __init__(self, path: Path, on_lost: Callable[[str], None] = end_process) -> None:
        """`on_lost(sentence)` is called, on another thread, when the directory has another
        owner."""
        self._path = path
        self._on_lost = on_lost
        self._own = this_process()
        self._descriptor = -1
        self._beats = 0
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """DataError when another process uses the directory."""
        try:
            content = self._path.read_bytes()[:_SIZE_MAX]
            age_s = time.time() - self._path.stat().st_mtime
        except FileNotFoundError:
            return
        owner = read_owner(content) or read_owner(content, LOCKED)
        if owner is None or owner == self._own:
            return
        if owner.boot and owner[2:] == self._own[2:]:
            if _is_alive(owner):
                raise self._refusal(owner, "", "stop that one, or use another directory")
        elif read_owner(content) is None:
            return  # it does not rewrite the file, so nothing tells whether it is alive
        elif abs(age_s) < YOUNG_S or self._is_rewritten(content):
            raise self._refusal(
                owner,
                " of another machine or container, or of an earlier boot",
                f"stop that one, or, if it has crashed, start this one {YOUNG_S:.0f} seconds later",
            )

    def _refusal(self, owner: Owner, whose: str, advice: str) -> DataError:
        return DataError(
            f"the data directory {self._path.parent} is used by another server (process"
            f" {owner.process}{whose}); {advice}"
        )

    def _is_rewritten(self, content: bytes) -> bool:
        """True if the owner is alive although the file looks old: clocks may differ."""
        time.sleep(2.5 * BEAT_S)
        return self._path.read_bytes()[:_SIZE_MAX] != content

    def take(self) -> None:
        """Make this process the owner, and rewrite the file from now on. DataError when another
        process uses the directory."""
        self.check()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._write(self._own.encode(0))
        time.sleep(SETTLE_S)
        self.check()
        self._thread = threading.Thread(target=self._beat, name="millstream-lock", daemon=True)
        try:
            self._thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread = None
            log.warning(
                "the thread millstream-lock cannot be started: %s. A server of another machine can"
                " use the data directory %s, too",
                str(error) or "no memory",
                self._path.parent,
            )

    def release(self) -> None:
        """Give the directory up: another process may take it at once."""
        self._end.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if read_owner(self._path.read_bytes()[:_SIZE_MAX]) == self._own:
                self._write(b"%d\n" % self._own.process)
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, content: bytes) -> None:
        os.pwrite(self._descriptor, content, 0)  # before the cut: a reader sees one or the other
        os.ftruncate(self._descriptor, len(content))
        os.fsync(self._descriptor)  # a network file system writes later otherwise

    def _beat(self) -> None:
        while not self._end.wait(BEAT_S):
            try:
                owner = read_owner(self._path.read_bytes()[:_SIZE_MAX])
                if owner is not None and owner != self._own:
                    self._on_lost(
                        f"process {owner.process} has taken the data directory"
                        f" {self._path.parent}, whose file system cannot lock"
                    )
                    return
                self._beats += 1
                self._write(self._own.encode(self._beats))
            except OSError as error:
                log.debug("the lock file cannot be rewritten: %s", error)
