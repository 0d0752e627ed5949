"""The rows of replies that have no simpler form."""

from __future__ import annotations

from datetime import datetime
from typing import Generic, NamedTuple

from millstream.client.ids import ID
from millstream.client.records import Record, T


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


class Scheduled(NamedTuple, Generic[T]):
    """An entry that is appended later: its ticket, its name ('' for none), its fields. The `ms` of
    the ticket are its time."""

    ticket: ID
    name: T
    fields: dict[T, T]


class DeadLetter(NamedTuple, Generic[T]):
    """An entry of a dead letter stream: the `record` that no reader could handle, as it was, with
    its ID and stream; and why.

    `reason` is "failed", "fatal", "timeout", "expired" or "invalid", and `text` the text of the
    last exception. `id` is the ID of the copy, `hops` the number of dead letter streams.

    >>> list(ms.dead_letters("nothing"))
    []
    """

    id: ID
    record: Record[T]
    group: str
    consumer: str
    deliveries: int
    reason: str
    text: str
    died_at: datetime
    hops: int


class Redriven(NamedTuple):
    """TREDRIVE's reply: the last ID looked at, if any, and the numbers of entries that are due
    again, that were appended again, and that were left."""

    last: ID | None
    returned: int
    appended: int
    left: int


class Seek(NamedTuple):
    """TSEEK's reply: the number of entries, and the ID of the last one of them.

    >>> new = ms.tappend("pages2", {"n": 1})
    >>> ms.tseek("pages2", 0, 5) == Seek(1, new)
    True
    """

    count: int  # type: ignore[assignment]  # the name in the reply
    id: ID | None
