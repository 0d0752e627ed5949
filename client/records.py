"""The objects that a client returns: records, and the rows of replies."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from millstream.client.ids import ID, read_id, read_ids

if TYPE_CHECKING:
    from datetime import datetime

    from typing_extensions import TypeVar  # type checkers bring it along

    T = TypeVar("T", bound="str | bytes", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T", bound="str | bytes")
"""str, or bytes with decode_responses=False."""

LAYOUTS_MAX = 100
"""How many combinations of field names a reader knows."""


class Layout(Generic[T]):
    """The field names of an entry. Records with the same fields share it: names that are kept for
    each record take more memory than the rest of a small one."""

    __slots__ = ("names", "positions")

    def __init__(self, names: Sequence[T]) -> None:
        self.names = tuple(names)
        self.positions = {name: position for position, name in enumerate(names)}
        """Where the value of a field is, the last one if the field appears more than once."""


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

    __slots__ = ("_id", "_layout", "_values", "late", "shard")

    shard: str
    """The name of the shard that it was read from."""
    late: bool
    """Whether a record with a greater ID was handed out before, as can happen with
    order="available"."""

    def __init__(self, id: ID | None, shard: str, entry: Sequence[T], late: bool = False) -> None:
        """`entry` is the server's form: the ID, then fields and values. If `id` is None, it is read
        from there when it is needed: that takes as long as everything else about a record."""
        self._id: ID | T = entry[0] if id is None else id
        self.shard = shard
        self.late = late
        self._layout = Layout(entry[1::2])
        self._values = tuple(entry[2::2])

    @property
    def id(self) -> ID:
        """The ID of the entry.

        >>> Record(None, "orders", ["5.1", "item", "tea"]).id
        ID(ms=5, seq=1)
        """
        found: Any = self._id
        if type(found) is not ID:
            found = self._id = read_id(found)
        return found  # type: ignore[no-any-return]

    @property
    def pairs(self) -> list[tuple[T, T]]:
        """All fields with their values, in the order of the entry.

        >>> Record(ID(5), "orders", ["5.0", "tag", "a", "tag", "b"]).pairs
        [('tag', 'a'), ('tag', 'b')]
        """
        return list(zip(self._layout.names, self._values, strict=True))

    @property
    def created_at(self) -> datetime:
        """The time in the ID, in UTC, exact to the millisecond.

        >>> Record(ID(1795170387725), "orders", ["1795170387725.0", "n", "1"]).created_at.year
        2026
        """
        return self.id.created_at

    def __getitem__(self, field: T) -> T:
        return self._values[self._layout.positions[field]]

    def __iter__(self) -> Iterator[T]:
        return iter(self._layout.positions)

    def __len__(self) -> int:
        return len(self._layout.positions)

    def __contains__(self, field: object) -> bool:
        return field in self._layout.positions

    def keys(self) -> KeysView[T]:
        """The fields.

        >>> list(Record(ID(5), "orders", ["5.0", "item", "tea"]).keys())
        ['item']
        """
        return self._layout.positions.keys()

    def values(self) -> ValuesView[T]:
        """The values, in the order of the fields.

        >>> list(Record(ID(5), "orders", ["5.0", "item", "tea"]).values())
        ['tea']
        """
        return self._mapping().values()

    def items(self) -> ItemsView[T, T]:
        """The fields with their values.

        >>> list(Record(ID(5), "orders", ["5.0", "item", "tea"]).items())
        [('item', 'tea')]
        """
        return self._mapping().items()

    def _mapping(self) -> dict[T, T]:
        return dict(zip(self._layout.names, self._values, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Record):
            return NotImplemented
        return self.id == other.id and self.shard == other.shard

    def __hash__(self) -> int:
        return hash((self.id, self.shard))

    def __repr__(self) -> str:
        return f"Record({self.shard} {self.id} {self._mapping()!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        entry: list[Any] = [str(self.id)]
        for pair in self.pairs:
            entry += pair
        return type(self), (self.id, self.shard, entry, self.late)


class RecordReader:
    """Makes the records of replies."""

    def __init__(self) -> None:
        self._last: list[Any] = []
        self._layout: Layout[Any] = Layout(())
        self._layouts: dict[tuple[Any, ...], Layout[Any]] = {}
        self._sample: Record[Any] | None = None
        """A record of the reply before. If its ID was read, those of the next reply are read
        together: that is faster, but it takes time if they are not used."""

    def read(
        self, shard: str, entries: Sequence[list[Any]], merges: bool = False
    ) -> list[Record[Any]]:
        """The records of entries, as Record(None, shard, entry) makes them, but in half the time
        and with shared layouts. `merges`: all IDs will be read."""
        last, layout = self._last, self._layout
        sample = self._sample
        together = merges or (sample is not None and type(sample._id) is ID)
        ids = read_ids([entry[0] for entry in entries]) if entries and together else None
        records = []
        for position, entry in enumerate(entries):
            names = entry[1::2]
            if names != last:
                self._last, self._layout = last, layout = names, self._find(names)
            record = _new_record(Record)
            record._id = entry[0] if ids is None else ids[position]
            record.shard = shard
            record.late = False
            record._layout = layout
            record._values = tuple(entry[2::2])
            records.append(record)
        if records:
            # In the middle: the first and the last one are read for the order and the token.
            self._sample = records[len(records) // 2]
        return records

    def _find(self, names: list[Any]) -> Layout[Any]:
        key = tuple(names)
        found = self._layouts.get(key)
        if found is None:
            if len(self._layouts) == LAYOUTS_MAX:  # field names that are data
                self._layouts.clear()
            found = self._layouts[key] = Layout(key)
        return found


_new_record: Any = object.__new__


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
