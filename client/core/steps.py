"""The steps that the core's generators yield, which its caller carries out.

| step | result |
|---|---|
| `Call` | the reply of one command; its error is raised in the generator |
| `Together` | the replies of each ask, in order; the first error is raised |
| `Wait` | the answers that have arrived, at most `seconds` later |
| `GiveUp` | None |
| `Sleep` | None |
| `Notify` | None |
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from millstream.client.events import Event

R = TypeVar("R")
Word: TypeAlias = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Command(Generic[R]):
    """A request, and how to read its reply.

    `wait_s` is how long the server may wait before it replies; infinity means for ever. An error
    whose text begins with `accepts` is a reply, and reads as None.
    """

    words: tuple[Word, ...]
    read: Callable[[Any], R]
    wait_s: float = 0.0
    accepts: str | None = None
    packed: bytes | None = None
    """The request as RESP, if it was made in advance; `words` are then only its name and key."""

    @property
    def name(self) -> str:
        return str(self.words[0])


class Server(Protocol):
    """A server, as the core sees it: something that asks are addressed to."""

    @property
    def client(self) -> Hashable: ...

    @property
    def failing(self) -> bool:
        """True if it did not answer the last time."""
        ...


@dataclass(eq=False, slots=True)
class Ask:
    """Commands for one server, sent together. `about` is for the code that made the ask."""

    server: Server
    commands: Sequence[Command[Any]]
    about: object = None
    started_s: float = 0.0
    moves: int = 0
    """How often the nodes of a cluster have named another node."""
    wait_s: float = field(init=False)
    """The time that the server may wait before it has replied to all commands."""

    def __post_init__(self) -> None:
        self.wait_s = sum([command.wait_s for command in self.commands])


@dataclass(frozen=True, slots=True)
class Answer:
    """The replies to an ask, one for each command: values as read, or a ResponseError; or the
    error that ended the ask."""

    ask: Ask
    replies: list[Any] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Call:
    command: Command[Any]


@dataclass(frozen=True, slots=True)
class Together:
    asks: Sequence[Ask]


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait until an answer arrives for any ask in flight; None waits without a limit.

    `asks` are all that the core has in flight. The caller starts those that it does not have: the
    new ones, and those that an interruption took from it."""

    asks: Sequence[Ask]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Close the connections of asks in flight: their answers do not matter any more."""

    asks: Sequence[Ask]


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Notify:
    event: Event


Step: TypeAlias = Call | Together | Wait | GiveUp | Sleep | Notify
Steps: TypeAlias = Generator[Step, Any, R]
Clock: TypeAlias = Callable[[], float]
