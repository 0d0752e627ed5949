"""Events that a server reports to the model, in order."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.data import EntryId
from tests.sim.model.clients import Key, Request


@dataclass(slots=True)
class Turn:
    """The server began with a client or with due changes; the error with which it refuses writes,
    if any. is_slow: requests and due changes wait for the disk; may_remove: requests that only
    remove are not refused."""

    write_error: str | None
    is_slow: bool = False
    may_remove: bool = False


@dataclass(slots=True)
class Added:
    """The server appended to the stream at a key."""

    key: Key


@dataclass(slots=True)
class Trimmed:
    """The server evicted entries of the stream at a key; `first` is its first entry now."""

    key: Key
    first: EntryId | None


@dataclass(slots=True)
class Room:
    """The server checked its memory and evicted blocks. full: it refuses commands that need
    memory."""

    full: bool
    dropped: list[Trimmed]


@dataclass(slots=True)
class Done:
    """The server completed a request."""

    request: Request


@dataclass(slots=True)
class Held:
    """A client's request waits for the disk."""

    number: int
    words: list[bytes]


@dataclass(slots=True)
class Released:
    """These clients no longer wait for the disk."""

    numbers: list[int]


Event = Turn | Added | Trimmed | Room | Done | Held | Released
