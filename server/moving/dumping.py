"""The conversion of a base into an RDB, in a process of its own.

A server makes the base for a program or a Redis that asks for all data (SYNC). The process has a
low priority and descriptors for the base, the RDB and its messages, which are lines of JSON: `done`
or `failed`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import DataError
from millstream.storage.dump.base_export import RdbExport, export_base
from millstream.storage.dump.file_writing import TARGETS, RdbWriter
from millstream.storage.files.disk import File, SystemFile

if TYPE_CHECKING:
    from millstream.server.replication.redis_dump import Dumped, DumpOrder

NICENESS = 10
UNOWNED = b"unowned"
_EXAMPLES = 3


class BaseDumper:
    """Makes RDB files, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the process, which another thread may end
        self._process = 0  # 0: none runs
        self._is_stopped = False

    def dump(self, order: DumpOrder) -> Dumped:
        from millstream.server.moving.converting import messages_in
        from millstream.server.replication.redis_dump import Dumped

        failed = "its process has ended"
        with self._messages(order) as lines:
            for message in messages_in(lines):
                if "done" in message:
                    return Dumped(**message["done"])
                failed = message.get("failed") or message.get("note") or failed
        raise DataError(f"the RDB cannot be made: {failed}")

    @contextlib.contextmanager
    def _messages(self, order: DumpOrder) -> Iterator[Iterator[str]]:
        """The messages of a process, which is waited for."""
        ours, theirs = os.pipe()
        try:
            with self._lock:
                if self._is_stopped:
                    raise DataError("the server stops")
                self._process = _begin(order, theirs)
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        try:
            with os.fdopen(ours, encoding="utf-8", errors="replace") as lines:
                yield iter(lines)
        finally:
            with self._lock:  # its number may be that of another process afterwards
                process, self._process = self._process, 0
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)

    def stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._process:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._process, signal.SIGKILL)


def _begin(order: DumpOrder, output: int) -> int:
    """Start the process, which writes messages to a descriptor; the number of the process."""
    import json  # for each of the three functions that need it: a server loads it late

    for descriptor in (order.base, order.rdb):
        os.set_inheritable(descriptor, True)
    words = [sys.executable, "-P", "-m", "millstream.server.moving.dumping", json.dumps(order)]
    actions = [(os.POSIX_SPAWN_DUP2, output, 2)]
    return os.posix_spawn(sys.executable, words, os.environ, file_actions=actions)


# ---------------------------------------------------------------- the process


def main() -> None:
    """The process: an order as its argument, messages to standard error."""
    import json

    base, rdb, redis, wall_ahead_ms, with_keys = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):  # a service may not lower its priority
        os.nice(NICENESS)

    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(rdb, view) :]

    file = SystemFile(Path("the base"), base)
    writer = RdbWriter(write, TARGETS[redis], UNOWNED, wall_ahead_ms)
    try:
        _send({"done": _dump(file, writer, redis, with_keys)})
    except MemoryError:
        _send({"failed": "no memory"})
    except OSError as error:
        _send({"failed": error.strerror or str(error)})
    except (DataError, ValueError) as error:
        _send({"failed": str(error)})


def _dump(file: File, writer: RdbWriter, redis: str, with_keys: bool) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    writer.describe(redis, now_ms // 1000)
    result = RdbExport()
    if with_keys:  # a command that follows may give a key, due by now, more time to live
        result = export_base(file, writer, now_ms, with_due=True)
    writer.finish()
    return {
        "streams": result.streams,
        "strings": result.strings,
        "entries": result.entries,
        "lost": len(result.lost),
        "examples": result.lost[:_EXAMPLES],
    }


def _send(message: dict[str, Any]) -> None:
    import json

    sys.stderr.write(json.dumps(message) + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    main()
