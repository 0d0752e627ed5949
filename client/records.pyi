from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from typing_extensions import TypeVar  # type checkers bring it along

from millstream.client.ids import ID

T = TypeVar("T", bound=str | bytes, default=str)
"""str, or bytes with decode_responses=False."""

LAYOUTS_MAX: int

class Record(Mapping[T, T]):
    def __init__(
        self, id: ID | None, shard: str, entry: Sequence[T], late: bool = False
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
    def pairs(self) -> list[tuple[T, T]]: ...
    @property
    def created_at(self) -> datetime: ...
    def __getitem__(self, field: T) -> T: ...
    def __iter__(self) -> Iterator[T]: ...
    def __len__(self) -> int: ...

def mark_late(record: Record[Any]) -> None: ...

class RecordReader:
    layouts: int
    def read(self, shard: str, entries: Iterable[list[Any]]) -> list[Record[Any]]: ...
