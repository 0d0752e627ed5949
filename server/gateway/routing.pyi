from collections.abc import Sequence

from millstream.commands.table.registry import Command
from millstream.server.gateway.spread_requests import Spread
from millstream.server.protocol.resp import Limits

ENDED: int
WORDS: int
INVALID: int
SPREAD: int
LARGE: int

class Routes:
    def __init__(self, nodes: Sequence[int]) -> None: ...
    def node_of(self, slot: int) -> int: ...
    def set_nodes(self, nodes: Sequence[int]) -> None: ...
    def set_node(self, slot: int, node: int) -> None: ...

class RequestReader:
    count: int
    raw: bytes
    spread: Spread
    words: list[bytes]
    command: Command | None
    kind: int
    keeps_together: bool
    is_trusted: bool
    def __init__(self, routes: Routes, limits: Limits) -> None: ...
    def feed(self, data: bytes) -> None: ...
    @property
    def row(self) -> Command | None: ...
    @property
    def error(self) -> str: ...
    def next(self) -> int: ...

def requests_in(data: bytes, limits: Limits) -> list[bytes]: ...
