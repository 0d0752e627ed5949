from collections.abc import Sequence
from enum import IntEnum
from typing import Any

class Kind(IntEnum):
    TEXT = 0
    LONG_TEXT = 1
    INT8 = 2
    INT16 = 3
    INT32 = 4
    INT64 = 5
    TIME = 6
    MOMENT = 7
    DECIMALS = 8

class RowFault(ValueError):
    row: int
    reason: str
    def __init__(self, row: int, reason: str) -> None: ...

class Column:
    def __init__(
        self, kind: int, buffers: Sequence[Any], start: int = 0, name: bytes = b""
    ) -> None: ...
    def has_few_decimals(self, rows: int) -> bool: ...

class Request:
    data: bytes
    entries: int
    streams: int

class RowEncoder:
    def __init__(
        self,
        rows: int,
        key: bytes | Column,
        ids: Column | None,
        columns: Sequence[Column],
        fields: Column | None = None,
        producer: bytes = b"",
        first_seq: int = 0,
    ) -> None: ...
    by_slot: bool
    def next(self) -> Request | None: ...
    def take_back(self, request: Request) -> None: ...
    def rows_of(self, request: Request) -> list[int]: ...
