from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, overload

from typing_extensions import TypeVar  # type checkers bring it along

from millstream.client.ids import ID

T = TypeVar("T", bound=str | bytes, default=str)
"""str, or bytes with decode_responses=False."""
V = TypeVar("V", default=str)
"""The same, or the type of the values of a reader with a codec."""

LAYOUTS_MAX: int

class Record(Mapping[V, V]):
    def __init__(
        self, id: ID | None, shard: str, entry: Sequence[V], late: bool = False
    ) -> None: ...
    @property
    def shard(self) -> str:
        """The name of the shard that it was read from."""

    @property
    def late(self) -> bool:
        """True if a record with a greater ID was handed out before, as can happen with
        order="available"."""

    @property
    def id(self) -> ID: ...
    @property
    def value(self) -> V: ...
    @property
    def pairs(self) -> list[tuple[V, V]]: ...
    @property
    def created_at(self) -> datetime: ...
    @overload  # type: ignore[override]  # of a record with a value, the fields are text or bytes
    def __getitem__(self: Record[str], field: str) -> str: ...
    @overload
    def __getitem__(self: Record[bytes], field: bytes) -> bytes: ...
    @overload
    def __getitem__(self, field: str) -> str: ...
    @overload
    def __getitem__(self, field: bytes) -> bytes: ...
    def __iter__(self) -> Iterator[V]: ...
    def __len__(self) -> int: ...

class ValueRecord(Record[V]):
    value: V

def with_value(record: Record[Any], value: V) -> ValueRecord[V]: ...

class Handed:
    count: int

class Run:
    def __init__(
        self, shard: object, merge: object, stops: object, begun: int, handed: Handed
    ) -> None: ...
    def __iter__(self) -> Run: ...
    def __next__(self) -> Record[Any]: ...

def mark_late(record: Record[Any]) -> None: ...

class RecordReader:
    layouts: int
    def read(self, shard: str, entries: Iterable[list[Any]]) -> list[Record[Any]]: ...
