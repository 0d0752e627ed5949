# Generated from client/aio/redriving.py by scripts/client_for_threads.py: change it there.
"""Dead letters that are delivered again: a method of a connection."""

from __future__ import annotations

from typing import Any

from millstream.client.core import requests
from millstream.client.core.words import IdWord, Key
from millstream.client.rows import Redriven


def redrive(
    ms: Any, dead: Key, key: Key, group: Key, count: int, *, after: IdWord | None = None,
    name: Key | None = None, append: bool = False,
) -> Redriven:  # fmt: skip
    """Deliver entries of a dead letter stream again, looking at up to `count` (1 to 10,000).

    Copies of entries of `key` that `group` could not handle are removed, and the entries are due in
    this group. after: look at the entries after this ID. name: the name that `key` had. append:
    append entries that no longer exist.

    >>> ms.tgroup("tasks", "crew", start="0", timeout=30_000, deadletter="tasks:dead")
    True
    >>> ms.redrive("tasks:dead", "tasks", "crew", 100).returned
    0
    """
    reply: Redriven = ms._ask(requests.tredrive(dead, key, group, count, after, name, append))
    return reply
