"""Entries that the server appends at a later time: three methods of a connection."""

from __future__ import annotations

from typing import Any

from millstream.client.core import requests
from millstream.client.core.words import Fields, IdWord, Key
from millstream.client.ids import ID
from millstream.client.rows import Scheduled


async def schedule(
    ms: Any, key: Key, fields: Fields, *, at: Any = None, after: float | None = None, name: Key = ""
) -> ID:
    """Append an entry at a time (a datetime), or after some seconds; returns its ticket.

    A name is unique in the stream: scheduling it again replaces the entry.

    >>> ticket = await ms.schedule("mail", {"to": "ann"}, after=3600, name="reminder")
    >>> [(entry.name, entry.fields) for entry in await ms.scheduled("mail")]
    [('reminder', {'to': 'ann'})]
    >>> await ms.cancel("mail", name="reminder")
    1
    """
    reply: ID = await ms._ask(requests.schedule(key, fields, at, after, name))
    return reply


async def scheduled(
    ms: Any, key: Key, start: IdWord = "-", end: IdWord = "+", *, count: int | None = None
) -> list[Scheduled[Any]]:
    """The entries that are scheduled in a stream, in the order of their time.

    >>> await ms.scheduled("nothing")
    []
    """
    reply: list[Scheduled[Any]] = await ms._ask(requests.scheduled(key, start, end, count))
    return reply


async def cancel(ms: Any, key: Key, *tickets: IdWord, name: Key | None = None) -> int:
    """Cancel scheduled entries by their tickets, or one by its name; returns their number.

    >>> await ms.cancel("nothing", name="reminder")
    0
    """
    reply: int = await ms._ask(requests.cancel(key, tickets, [] if name is None else [name]))
    return reply
