"""The objects that a client returns: records, and the rows of replies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from millstream.client.ids import ID, read_id

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import TypeVar  # type checkers bring it along

    T = TypeVar("T", bound="str | bytes", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T", bound="str | bytes")
"""str, or bytes with decode_responses=False."""


class Record(Mapping[T, T]):
    """An entry of a stream: a mapping from field to value.

    For a field that appears more than once the mapping has the last value; `pairs` has them all.
    Records with the same ID and shard are equal.

    >>> record = Record(ID(5, 1), "orders", ["5.1", "item", "tea", "count", "2"])
    >>> record["item"], record.id, record.shard
    ('tea', ID(ms=5, seq=1), 'orders')
    >>> dict(record)
    {'item': 'tea', 'count': '2'}
    """

    __slots__ = ("_entry", "_fields", "_id", "late", "shard")

    shard: str
    """The name of the shard that it was read from."""
    late: bool
    """Whether a record with a greater ID was handed out before, as can happen with
    order="available"."""

    def __init__(self, id: ID | None, shard: str, entry: Sequence[T], late: bool = False) -> None:
        """`entry` is the server's form: the ID, then fields and values. If `id` is None, it is read
        from there when it is needed: that takes as long as everything else about a record."""
        self._id = id
        self.shard = shard
        self.late = late
        self._entry = entry
        self._fields: dict[T, T] | None = None

    @property
    def id(self) -> ID:
        """The ID of the entry.

        >>> Record(None, "orders", ["5.1", "item", "tea"]).id
        ID(ms=5, seq=1)
        """
        if self._id is None:
            self._id = read_id(self._entry[0])
        return self._id

    @property
    def pairs(self) -> list[tuple[T, T]]:
        """All fields with their values, in the order of the entry.

        >>> Record(ID(5), "orders", ["5.0", "tag", "a", "tag", "b"]).pairs
        [('tag', 'a'), ('tag', 'b')]
        """
        return list(zip(self._entry[1::2], self._entry[2::2], strict=True))

    @property
    def created_at(self) -> datetime:
        """The time in the ID, in UTC, exact to the millisecond.

        >>> Record(ID(1795170387725), "orders", ["1795170387725.0", "n", "1"]).created_at.year
        2026
        """
        return self.id.created_at

    def _mapping(self) -> dict[T, T]:
        if self._fields is None:
            self._fields = dict(zip(self._entry[1::2], self._entry[2::2], strict=True))
        return self._fields

    def __getitem__(self, field: T) -> T:
        return self._mapping()[field]

    def __iter__(self) -> Iterator[T]:
        return iter(self._mapping())

    def __len__(self) -> int:
        return len(self._mapping())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self.id == other.id and self.shard == other.shard

    def __hash__(self) -> int:
        return hash((self.id, self.shard))

    def __repr__(self) -> str:
        return f"Record({self.shard} {self.id} {self._mapping()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.id, self.shard, self._entry, self.late)


class Row(NamedTuple, Generic[T]):
    """A row of TMREAD's reply: how far a stream was read, and how far it is settled.

    No entry that is not in `entries` has, or will get, an ID above `prev` and up to `next`.

    >>> new = ms.tappend("rows2", {"n": 1})
    >>> [row] = ms.tmread(10, {"rows2": 0})
    >>> row.key, row.prev, row.next == new, row.ended
    ('rows2', ID(ms=0, seq=0), True, False)
    """

    key: T
    prev: ID
    next: ID
    entries: list[Record[T]]
    ended: bool
    incarnation: int | None


class WriterPosition(NamedTuple, Generic[T]):
    """A row of TPOSITION WRITERS: a writer, and how far its own reservations are settled.

    >>> first = ms.treserve("seats2", "api-1")
    >>> [writer] = ms.tpositions("seats2")
    >>> writer.name, writer.reservations, writer.oldest == first
    ('api-1', 1, True)
    """

    name: T
    position: ID
    last: ID
    reservations: int
    oldest: ID | None


class Seek(NamedTuple):
    """TSEEK's reply: the number of entries, and the ID of the last one of them.

    >>> new = ms.tappend("pages2", {"n": 1})
    >>> ms.tseek("pages2", 0, 5) == Seek(1, new)
    True
    """

    count: int  # type: ignore[assignment]  # the name in the reply
    id: ID | None
