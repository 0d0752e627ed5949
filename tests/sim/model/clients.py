"""A client of the model: its requests, its expected replies, and its wait."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tests.sim.data import Stream
from tests.sim.model.answers import ANY, NULL_ARRAY, Answer, Judged

Request = tuple[bytes, ...]
Key = tuple[int, bytes]


@dataclass(slots=True)
class Due:
    """A reply that a client must get. `seq` must be durable before; `queued` are the requests that
    an EXEC runs."""

    request: Request
    answer: Answer
    now_ms: int
    seq: int | None = None
    queued: list[Request] = field(default_factory=list)
    is_unknown: bool = False
    """The journal failed in the tick of the request: no reply may be sent."""

    @property
    def is_known(self) -> bool:
        """True if the reply's text is predicted."""
        answers = self.answer if isinstance(self.answer, list) else [self.answer]
        return all(answer is not ANY and not isinstance(answer, Judged) for answer in answers)


@dataclass(eq=False, slots=True)
class ClientModel:
    number: int
    resp: int
    db: int = 0
    queue: list[Request] | None = None  # since MULTI
    queue_failed: bool = False
    watches: dict[Key, object] = field(default_factory=dict)  # with the results of `mark_of`
    requests: deque[Request] = field(default_factory=deque)
    due: deque[Due] = field(default_factory=deque)
    waiter: Waiter | None = None
    is_held: bool = False
    gone: bool = False
    is_limited: bool = False  # logged in as the restricted user


class Waiter:
    """A client's blocked read. Each kind of read has a subclass."""

    def __init__(
        self,
        client: ClientModel,
        request: Request,
        keys: list[Key],
        deadline_ms: int,
        group: bytes | None = None,
    ) -> None:
        self.client = client
        self.request = request
        self.keys = keys
        self.deadline_ms = deadline_ms
        self.group = group
        self.number = 0

    @property
    def kind(self) -> object:
        """Reads of one kind, unless it is None, find the same entries or none."""
        return None

    def attempt(self) -> Answer | None:
        """The reply if the wait ends now, else None."""
        raise NotImplementedError

    def timeout_answer(self) -> Answer:
        return NULL_ARRAY

    def lateness(self, stream: Stream) -> str | None:
        """The reason why this read should not wait for this stream any longer, if there is one."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.request!r}, until {self.deadline_ms})"
