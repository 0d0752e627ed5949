from array import array
from collections.abc import Iterable
from enum import IntEnum

class Kind(IntEnum):
    KEY = 0
    ID = 1
    TS = 2
    INT_MS = 3
    INT_SEQ = 4
    DECIMAL_MS = 5
    DECIMAL_SEQ = 6
    MAP = 7
    LIST = 8
    FIELD = 9

class PieceError(ValueError):
    piece: int

class Buffer:
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __len__(self) -> int: ...

class Decoder:
    rows: int
    def __init__(
        self, columns: Iterable[tuple[Kind, bytes]], rows_max: int = ..., bytes_max: int = ...
    ) -> None: ...
    def add(
        self,
        data: bytes | bytearray | memoryview,
        key: bytes,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> int: ...
    def add_pieces(
        self,
        data: bytes | bytearray | memoryview,
        keys: list[bytes],
        offsets: array[int],
        lengths: array[int],
        at: int,
        end: int,
        done: int,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> tuple[int, int]: ...
    def take(self) -> list[tuple[int, list[Buffer | None]]]: ...

def not_utf8(offsets: Buffer | memoryview, data: Buffer | memoryview | bytes) -> list[int]: ...
