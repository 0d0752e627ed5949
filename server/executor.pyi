from typing import Any

from millstream.commands.context import Context
from millstream.commands.effects import Effects
from millstream.server.lookup import CallStat
from millstream.server.outbox import Client, Outbox
from millstream.server.resp import Limits
from millstream.server.ticker import Ticker
from millstream.server.waiting import Waiting
from millstream.storage.keyspace import Keyspace

class Executor:
    server: Any
    keyspace: Keyspace
    effects: Effects
    context: Context
    limits: Limits
    waiting: Waiting
    ticker: Ticker
    outbox: Outbox
    password_required: bool
    commands_processed: int
    error_replies: int
    errors_by_code: dict[str, int]
    bytes_in: int
    def __init__(self, server: Any) -> None: ...
    def attach(self, client: Client) -> None: ...
    def detach(self, client: Client) -> None: ...
    def feed(self, client: Client, data: bytes) -> None: ...
    def end_tick(self) -> None: ...
    def resume(self, client: Client) -> None: ...
    def on_timer(self) -> None: ...
    @property
    def bytes_out(self) -> int: ...
    @property
    def blocked_count(self) -> int: ...
    @property
    def blocking_keys(self) -> int: ...
    def command_stats(self) -> dict[str, CallStat]: ...
    def reset_stats(self) -> None: ...
