"""Reading a stream as one consumer of a group.

Entries arrive in batches and are handed out one by one. They belong to this consumer from the
moment the server sent them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from redis.exceptions import ResponseError

from millstream.client.core import requests
from millstream.client.core.repeating import Repeater, lost
from millstream.client.core.requests import Key
from millstream.client.core.servers import ServerState
from millstream.client.core.steps import Ask, Call, Clock, Steps, Wait
from millstream.client.errors import InvalidPosition
from millstream.client.ids import ID
from millstream.client.records import Record

BLOCK_MAX_S = 5.0
AWAY_MAX_S = 30.0
"""For how long a server may be away before that is an error."""

STARTS = {"trim_horizon": "0", "latest": "$"}


def start_word(position: Any) -> str:
    """Where a group begins: an end or an ID, as a word of TREAD."""
    if isinstance(position, ID):
        return str(position)
    if isinstance(position, str):
        known = STARTS.get(position.lower())
        return str(ID.parse(position)) if known is None else known
    raise InvalidPosition(
        f"{position!r} is not a position of a group: use 'trim_horizon', 'latest' or an ID"
    )


def duration_ms(name: str, seconds: float) -> int:
    if not 0 <= seconds < 2**50:
        raise ValueError(f"{name} must be a number of seconds from 0 on, not {seconds!r}")
    return round(seconds * 1000)


class Deliveries:
    """The state of a consumer, and its decisions."""

    def __init__(
        self,
        client: Any,
        key: Key,
        group: Key,
        ttl_s: float,
        retry_s: float | None,
        expire_s: float,
        position: Any,
        batch: int,
        now: Clock,
    ) -> None:
        if type(batch) is not int or batch < 1:
            raise ValueError(f"batch must be a number from 1, not {batch!r}")
        self._server = ServerState(client)
        self._key = key
        self._group = group
        self._start = start_word(position)
        self._ttl_ms = duration_ms("ttl", ttl_s)
        self._retry_ms = None if retry_s is None else duration_ms("retry", retry_s)
        self._expire_ms = duration_ms("expire", expire_s)
        self._batch = batch
        self._now = now
        self._repeater = Repeater(AWAY_MAX_S, now)
        self._buffer: deque[Record[Any]] = deque()
        self._finished: list[ID] = []
        """Finished by the caller, and not acknowledged yet."""
        self._kept_s = float("-inf")
        self.missed = 0
        self.stopped = False
        self._counts = dict.fromkeys(("records", "requests", "reconnects", "acknowledged"), 0)

    def open(self) -> Steps[None]:
        """Create the group, if it does not exist."""
        yield Call(self._tread(0, None))
        self._kept_s = self._now()

    def take(self) -> Record[Any] | None:
        if not self._buffer:
            return None
        self._counts["records"] += 1
        return self._buffer.popleft()

    def read(self, timeout_s: float | None) -> Steps[Record[Any] | None]:
        """The next record; None after the timeout, or once stopped."""
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s)
        deadline_s = float("inf") if timeout_s is None else self._now() + timeout_s
        server = self._server
        while True:
            record = self.take()
            if record is not None or self.stopped:
                return record
            now_s = self._now()
            patience_s = deadline_s - now_s
            if patience_s <= 0 and timeout_s:
                return None
            asks = [] if server.in_flight or not server.may_ask(now_s) else [self._ask(patience_s)]
            answers = yield Wait(asks, self._pause_s(now_s, patience_s))
            self._absorb(answers)
            if patience_s <= 0 and not self._buffer:
                return None

    def _ask(self, patience_s: float) -> Ask:
        block_ms = max(1, int(min(patience_s, BLOCK_MAX_S) * 1000)) if patience_s > 0 else None
        ask = Ask(self._server, [self._tread(self._batch, block_ms)])
        now_s = self._now()
        self._server.asked(ask, now_s)
        self._kept_s = now_s
        self._counts["requests"] += 1
        return ask

    def _tread(self, count: int, block_ms: int | None) -> Any:
        return requests.tread(
            self._key,
            self._start,
            count,
            block_ms,
            self._group,
            self._ttl_ms,
            self._retry_ms,
            self._expire_ms,
            False,
        )

    def _pause_s(self, now_s: float, patience_s: float) -> float | None:
        server = self._server
        if patience_s <= 0:
            waiting = any(ask.wait_s for ask in server.in_flight)
            return 0.0 if waiting or server.failing else None
        until_s = now_s + patience_s
        if server.failing and not server.in_flight:
            until_s = min(until_s, server.retry_at_s)
        return None if until_s == float("inf") else max(0.0, until_s - now_s)

    def _absorb(self, answers: Iterable[Any]) -> None:
        for answer in answers:
            if answer.ask not in self._server.in_flight:
                continue
            if answer.error is None:
                if self._server.answered(answer.ask):
                    self._counts["reconnects"] += 1
                [reply] = answer.replies
                if isinstance(reply, ResponseError):
                    raise reply
                self.missed += sum(record is None for record in reply)
                self._buffer.extend(record for record in reply if record is not None)
                continue
            self._server.failed(answer.ask, answer.error, self._now())
            since_s = self._server.failing_since_s
            assert since_s is not None
            if not lost(answer.error) or self._now() - since_s >= AWAY_MAX_S:
                raise answer.error

    # ------------------------------------------------------------ acknowledging

    def finish(self, record: Record[Any]) -> Steps[None]:
        """The caller is done with a record: acknowledge it."""
        self._finished.append(record.id)
        yield from self.acknowledge_finished()

    def acknowledge_finished(self) -> Steps[None]:
        if self._finished:
            ids = list(self._finished)
            yield from self.ack(ids)
            self._finished = [done for done in self._finished if done not in ids]

    def ack(self, ids: list[ID]) -> Steps[int]:
        """Acknowledge entries; a lost reply is repeated, which changes nothing more."""
        if not ids:
            return 0
        count = yield from self._repeater.call(requests.tack(self._key, self._group, ids))
        self._counts["acknowledged"] += count
        return count

    # ------------------------------------------------------------ while nothing is read

    def heartbeat(self) -> Steps[None]:
        """Use the group, so that it does not end: at most once in a third of its time to live."""
        now_s = self._now()
        if self._ttl_ms and now_s - self._kept_s >= self._ttl_ms / 3000:
            self._kept_s = now_s
            yield Call(self._tread(0, None))

    def lag(self) -> Steps[int | None]:
        return (yield from self._repeater.call(requests.group_lag(self._key, self._group)))

    def metrics(self) -> dict[str, float]:
        return {**self._counts, "missed": self.missed, "buffered": len(self._buffer)}
