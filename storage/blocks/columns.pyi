from array import array
from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol

from millstream.storage.blocks.column_buffers import Buffer

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

class PieceTable(Protocol):
    """Pieces of bytes: the key, the offset and the length of each."""

    @property
    def keys(self) -> list[bytes]: ...
    @property
    def offsets(self) -> array[int]: ...
    @property
    def lengths(self) -> array[int]: ...

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
        pieces: PieceTable,
        at: int,
        end: int,
        done: int,
        first: tuple[int, int],
        last: tuple[int, int],
    ) -> tuple[int, int]: ...
    def take(self) -> list[tuple[int, list[Buffer | None]]]: ...
