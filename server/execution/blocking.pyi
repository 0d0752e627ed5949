from collections.abc import Callable

from millstream.commands.runtime.context import Context
from millstream.server.execution.lookup import Statistics
from millstream.server.execution.timers import Timers
from millstream.server.execution.wait_queues import Waiter, WaitQueues
from millstream.server.protocol.outbox import Client, Outbox

class Serving:
    waiting: WaitQueues
    timer_stale: bool
    def __init__(
        self,
        context: Context,
        outbox: Outbox,
        statistics: Statistics,
        timers: Timers,
        resume: Callable[[Client], object],
    ) -> None: ...
    def attempt(self, waiter: Waiter) -> bool: ...
    def time_out(self, waiter: Waiter) -> None: ...
