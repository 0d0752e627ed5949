from typing import Any

from millstream.server.gateway.reply_scanner import ReplyScanner

class Spread:
    count: int
    parts: list[SpreadPart]
    is_inside: bool
    held_bytes: int
    def forget_requests(self) -> None: ...
    def runs(self) -> list[tuple[int, int, bytes, bytes]]: ...
    @property
    def is_done(self) -> bool: ...
    def drain(self) -> bytes: ...

class SpreadPart:
    spread: Spread
    node: int
    upstream: Any
    kept_bytes: int
    taken: int
    @property
    def raw(self) -> bytes: ...
    @property
    def missing(self) -> int: ...
    @property
    def is_next(self) -> bool: ...
    def take(self, scanner: ReplyScanner, data: bytes, at: int) -> int: ...
