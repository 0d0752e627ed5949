"""The conversion of a base into an RDB, for a program or a Redis that asks for all data (SYNC)."""

from __future__ import annotations

from millstream.errors import DataError
from millstream.server.moving.child_process import ChildProcess
from millstream.server.replication.redis_dump import Dumped, DumpOrder


class BaseDumper:
    """Makes RDB files, one at a time, in a process of its own with a memory limit."""

    def __init__(self) -> None:
        self._child = ChildProcess()
        self._is_stopped = False

    def dump(self, order: DumpOrder) -> Dumped:
        # Servers that no Redis asks do not load this.
        from millstream.server.moving.child_messages import messages_in
        from millstream.server.moving.dumping import begin

        def begin_unless_stopped(output: int) -> int:
            if self._is_stopped:
                raise DataError("the server stops")
            return begin(order, output)

        failed = "its process has ended"
        with self._child.lines(begin_unless_stopped) as lines:
            for message in messages_in(lines):
                if "done" in message:
                    return Dumped(**message["done"])
                failed = message.get("failed") or message.get("note") or failed
        if failed == "memory":
            failed = f"it needs more memory than import-memory-limit {order.memory_bytes}"
        raise DataError(f"the RDB cannot be made: {failed}")

    def stop(self) -> None:
        self._is_stopped = True
        self._child.stop()
