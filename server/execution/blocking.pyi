from collections.abc import Callable, Iterator

from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import BlockedRead
from millstream.server.execution.lookup import Row, Statistics
from millstream.server.execution.timers import Timers
from millstream.server.protocol.outbox import Client, Outbox

class Waiter:
    @property
    def client(self) -> Client: ...
    @property
    def row(self) -> Row: ...
    @property
    def read(self) -> BlockedRead: ...

class WaitQueues:
    @property
    def count(self) -> int: ...
    @property
    def timed_count(self) -> int: ...
    on_end: Callable[[Waiter], object] | None
    def keys(self) -> Iterator[tuple[int, bytes]]: ...
    def keys_that_must_stay(self) -> Iterator[tuple[int, bytes]]: ...

class Serving:
    @property
    def waiting(self) -> WaitQueues: ...
    timer_stale: bool
    def __init__(
        self,
        context: Context,
        outbox: Outbox,
        statistics: Statistics,
        timers: Timers,
        resume: Callable[[Client], object],
    ) -> None: ...
    def time_out(self, waiter: Waiter) -> None: ...
