from collections.abc import Callable
from typing import Any

from millstream.commands.runtime.arguments import Args

class CallStat:
    calls: int
    usec: int
    rejected_calls: int
    failed_calls: int

class Row:
    name: str
    writes: bool
    tells: bool
    def will_write(self, args: Args) -> bool: ...

class Table:
    def latencies(self) -> dict[str, list[int]]: ...
    def stats(self) -> dict[str, CallStat]: ...
    def reset(self) -> None: ...

class Statistics:
    commands: int
    error_replies: int
    errors_by_code: dict[str, int]
    reads: int
    def __init__(self, server: Any, clock: Callable[[], int] | None) -> None: ...
