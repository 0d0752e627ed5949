from collections.abc import Callable

from millstream.commands.context import Context
from millstream.server.outbox import Client, Outbox
from millstream.server.statistics import Statistics
from millstream.server.ticker import Ticker
from millstream.server.waiting import Waiter, Waiting

class Serving:
    waiting: Waiting
    def __init__(
        self,
        context: Context,
        outbox: Outbox,
        statistics: Statistics,
        ticker: Ticker,
        resume: Callable[[Client], object],
    ) -> None: ...
    def attempt(self, waiter: Waiter) -> bool: ...
    def time_out(self, waiter: Waiter) -> None: ...
