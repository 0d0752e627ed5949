"""The process that converts a base into an RDB.

It has a memory limit, a low priority and descriptors for the base, the RDB and its messages, which
are lines of JSON: `done` or `failed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from millstream.errors import DataError
from millstream.server.moving import child_messages
from millstream.server.moving.child_messages import limit_memory, send
from millstream.storage.dump.base_export import RdbExport, export_base
from millstream.storage.dump.file_writing import TARGETS, RdbWriter
from millstream.storage.dump.rdb import UNOWNED
from millstream.storage.files.disk import File, SystemFile, write_all
from millstream.storage.files.snapshot_format import zstd

if TYPE_CHECKING:
    from millstream.server.replication.redis_dump import DumpOrder

NICENESS = 10
_EXAMPLES = 3


def begin(order: DumpOrder, output: int) -> int:
    """Start the process of an order, which writes messages to a descriptor; the number of the
    process."""
    return child_messages.begin("dumping", json.dumps(order), (order.base, order.rdb), output)


# ---------------------------------------------------------------- the process


def main() -> None:
    """The process: an order as its argument, messages to standard error."""
    base, rdb, redis, wall_ahead_ms, with_keys, memory_bytes = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):  # a service may not lower its priority
        os.nice(NICENESS)
    zstd()  # libraries are loaded before the limit counts
    limit_memory(memory_bytes)

    file = SystemFile(Path("the base"), base)
    writer = RdbWriter(partial(write_all, rdb), TARGETS[redis], UNOWNED, wall_ahead_ms)
    try:
        send({"done": _dump(file, writer, redis, with_keys)})
    except MemoryError:
        send({"failed": "memory"})
    except OSError as error:
        send({"failed": error.strerror or str(error)})
    except (DataError, ValueError) as error:
        send({"failed": str(error)})


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


if __name__ == "__main__":
    main()
