from collections.abc import Sequence

from millstream.commands.table.registry import Command
from millstream.server.protocol.resp import Limits

ENDED: int
WORDS: int
INVALID: int

class Routes:
    def __init__(self, nodes: Sequence[int]) -> None: ...
    def node_of(self, slot: int) -> int: ...

class RequestReader:
    count: int
    raw: bytes
    words: list[bytes]
    command: Command | None
    kind: int
    keeps_together: bool
    def __init__(self, routes: Routes, limits: Limits) -> None: ...
    def feed(self, data: bytes) -> None: ...
    @property
    def error(self) -> str: ...
    def next(self) -> int: ...
