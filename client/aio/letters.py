"""Dead letters: reading them, and delivering them again. Two methods of a connection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from millstream.client.aio.commands import StreamCommands
from millstream.client.core import requests
from millstream.client.core.unreadable import read_letter
from millstream.client.core.words import IdWord, Key
from millstream.client.ids import BEGINNING
from millstream.client.records import T
from millstream.client.rows import DeadLetter, Redriven

PAGE = 100


async def redrive(
    ms: Any, dead: Key, key: Key, group: Key, count: int, *, after: IdWord | None = None,
    name: Key | None = None, append: bool = False,
) -> Redriven:  # fmt: skip
    """Deliver entries of a dead letter stream again, looking at up to `count` (1 to 10,000).

    Copies of entries of `key` that `group` could not handle are removed, and the entries are due in
    this group. after: look at the entries after this ID. name: the name that `key` had. append:
    append entries that no longer exist.

    >>> await ms.tgroup("tasks", "crew", start="0", timeout=30_000, deadletter="tasks:dead")
    True
    >>> (await ms.redrive("tasks:dead", "tasks", "crew", 100)).returned
    0
    """
    reply: Redriven = await ms._ask(requests.tredrive(dead, key, group, count, after, name, append))
    return reply


async def dead_letters(
    ms: StreamCommands[T], key: Key, after: IdWord = BEGINNING
) -> AsyncIterator[DeadLetter[T]]:
    """Iterate over the entries of a dead letter stream, the oldest first, with their reasons and
    the fields that they had. It ends at the newest one. Other entries of the stream are left out.

    after: begin after the entry with this ID.

    >>> _ = await ms.tappend("soups", {"name": "leek", "pieces": "much"})
    >>> consumer = await ms.consumer("soups", "cooks", retry=60, position="earliest")
    >>> await consumer.of(Cake, dead_letter="soups:bad").read(timeout=0)
    >>> async for letter in ms.dead_letters("soups:bad"):
    ...     print(letter.record["name"], letter.reason, letter.text)
    leek invalid the field 'pieces' must be a whole number, not 'much'
    """
    while True:
        found = await ms.tread(key, after, PAGE)
        for entry in found:
            letter = None if entry is None else read_letter(entry)
            if letter is not None:
                yield letter
        ids = [entry.id for entry in found if entry is not None]
        if not ids:
            return
        after = ids[-1]
