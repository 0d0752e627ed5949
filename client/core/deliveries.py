"""Reading a stream as one consumer of a group.

Entries arrive in batches and are handed out one by one. They belong to this consumer from the
moment the server sent them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError, ResponseError

from millstream.client.codecs import InvalidRecord
from millstream.client.core import argument_checks, requests
from millstream.client.core.argument_checks import duration_ms
from millstream.client.core.deadlines import WAIT_MAX_S, Patience, Stops, block_ms
from millstream.client.core.group_place import GroupPlace
from millstream.client.core.options import CONSUMER_BATCH
from millstream.client.core.position import group_start
from millstream.client.core.repeating import Repeater, lost, not_served, repeated
from millstream.client.core.requests import GroupWords
from millstream.client.core.servers import ServerState
from millstream.client.core.steps import Answer, Ask, Call, Clock, Steps, Wait
from millstream.client.core.values import Values
from millstream.client.core.words import IdWord, Key
from millstream.client.ids import ID
from millstream.client.log import log
from millstream.client.records import Record

LOOK: Final = "end"
"""About an ask whether the stream has ended."""
MAKE: Final = "group"
"""About a read that makes the group again."""
EXISTING: Final = ">"
"""For TREAD: from where the group is; an error if there is none."""
WAIT_SHARE = 4
"""A request waits for a fraction of the retry time: the time counts from the request on, because
the client does not see when the server replies."""
LOOK_S = 0.5
"""The time after which an idle consumer checks again whether its stream has ended."""


def is_gone(error: ResponseError) -> bool:
    """True if a command says that the group does not exist."""
    return str(error).startswith("NOGROUP")


class Terms(NamedTuple):
    """The times of a group: how long it lasts unused (0: for ever), after how long an entry is
    delivered again (None: never), and for how long (0: for ever)."""

    ttl_s: float
    retry_s: float | None
    expire_s: float


class Deliveries:
    """The state of a consumer, and its decisions."""

    def __init__(
        self,
        client: Any,
        key: Key,
        group: Key,
        terms: Terms,
        position: Any,
        batch: int | None,
        now: Clock,
        *,
        retry_for_s: float = 30.0,
    ) -> None:
        """Without `batch` it is 10, and 1 if entries are delivered only once: a batch that is not
        handed out is lost then. It is 1, too, if entries are due again at once."""
        self._server = ServerState(client)
        self._key = argument_checks.key("key", key)
        self.group = argument_checks.name("group", group)
        self._start = group_start(position)
        self._ttl_ms = duration_ms("ttl", terms.ttl_s)
        self._retry_ms = None if terms.retry_s is None else duration_ms("retry", terms.retry_s)
        self._expire_ms = duration_ms("expire", terms.expire_s)
        if batch is None:
            batch = 1 if terms.retry_s is None else CONSUMER_BATCH
        self._batch = 1 if self._retry_ms == 0 else argument_checks.batch(batch)
        self._now = now
        self._retry_for_s = argument_checks.duration_ms("retry_for", retry_for_s) / 1000
        self._repeater = Repeater(self._retry_for_s, now)
        self._buffer: deque[Record[Any]] = deque()
        self._due_s = float("inf")
        """The time at which the entries in the buffer may go to another consumer."""
        self._place = GroupPlace()
        self._gone = False
        """True if the group does not exist any more."""
        self._again: ID | None = None
        """The next read makes the group, which begins after this entry; None if it exists."""
        self._finished: list[ID] = []
        """Finished by the caller, and not acknowledged yet."""
        self._kept_s = float("-inf")
        self.values: Values | None = None
        """Decodes the records; None for records without values."""
        self.missed = 0
        self.ended = False
        """True if the stream is sealed, and the group has nothing left to deliver."""
        self.stops = Stops()
        self._idle = False
        """True if the last reply had no entries."""
        self._looked_s = float("-inf")
        self._counts = dict.fromkeys(
            ("records", "requests", "reconnects", "acknowledged", "overdue"), 0
        )

    def open(self) -> Steps[None]:
        """Create the group, if it does not exist."""
        commands = [self._tread(self._start, 0, None), *self._both_states()]
        [[_, info, state]] = yield from repeated([Ask(self._server, commands)])
        self._place.begin(info, state)
        self._kept_s = self._now()

    def seek(self, position: Any) -> Steps[None]:
        """Let the group continue at another position. What was fetched is not handed out."""
        start = group_start(position)
        yield from self._repeater.call(requests.set_group_place(self._key, self.group, start))
        self._buffer.clear()
        self._server.in_flight.clear()  # of a read that was cancelled
        self._due_s = float("inf")
        [[info, state]] = yield from repeated([Ask(self._server, self._both_states())])
        self._place.begin(info, state)
        self.ended = self._idle = False

    def _both_states(self) -> list[Any]:
        return [requests.tinfo(self._key), requests.group_state(self._key, self.group)]

    def take(self) -> Record[Any] | None:
        """The next record in the buffer, without those that may have gone to another consumer."""
        if self._buffer and self._now() >= self._due_s:
            self._drop()
        return self._pop()

    def _pop(self) -> Record[Any] | None:
        if not self._buffer:
            return None
        self._counts["records"] += 1
        return self._buffer.popleft()

    def _drop(self) -> None:
        """The group delivers these entries again: to this consumer, if it is the next to ask."""
        self._place.fall_back(record.id for record in self._buffer)
        self._counts["overdue"] += len(self._buffer)
        log.warning(
            "%d entries of the group %r were fetched and not handed out within their retry time, "
            "and are delivered again: use a smaller batch or a longer retry",
            len(self._buffer),
            self.group,
        )
        self._buffer.clear()

    def read(self, timeout_s: float | None, begun: int | None = None) -> Steps[Record[Any] | None]:
        """The next record; None after the timeout, at the end, or once stopped.

        `begun` is of a follow that reads; without it the read itself can be stopped.
        """
        patience = Patience(timeout_s, self._now)
        self._again = None
        self.ended = False  # the key may have been deleted and created again
        seen = self.stops.begin() if begun is None else begun
        server = self._server
        begun_s = self._now()
        just_fetched = False  # by this call: the first record is handed out however long it took
        while True:
            if self.values is not None:
                yield from self._admit(self.values, just_fetched)
            record = self._pop() if just_fetched else self.take()
            if record is not None or self.ended:
                return record
            if self.stops.since(seen):
                if begun is None:
                    self.stops.handle()
                return None
            now_s = self._now()
            patience_s = patience.left_s()
            if patience.is_over(patience_s):
                return None
            if not server.in_flight and server.may_ask(now_s):
                self._send(self._next_ask(now_s, patience_s), now_s)
            pause_s = self._pause_s(now_s, patience_s)
            answers = yield Wait(list(server.in_flight), pause_s)
            self._absorb(answers)
            just_fetched = any(answer.ask.started_s >= begun_s for answer in answers)
            looked = answers and all(answer.ask.about is LOOK for answer in answers)
            if self._gone:
                yield from self._find_again()
            elif patience_s <= 0 and not self._buffer and not looked:
                return None

    def _admit(self, values: Values, just_fetched: bool) -> Steps[None]:
        """Decode the first record in the buffer. Bad ones before it become dead letters, which are
        acknowledged, or raise their error and stay pending."""
        while self._buffer and (just_fetched or self._now() < self._due_s):
            first = self._buffer[0]
            try:
                good = yield from values.admit(self._buffer)
            except InvalidRecord:
                self._pop()
                raise
            if good:
                return
            yield from self.ack([first.id])
            if self._buffer and self._buffer[0] is first:  # no other task has passed it over
                self._pop()

    def _find_again(self) -> Steps[None]:
        """The group does not exist any more: find out where it has to begin."""
        [[info]] = yield from repeated([Ask(self._server, [requests.tinfo(self._key)])])
        self._again = self._place.again(info)
        self._gone = False
        self._due_s = float("inf")  # no entry is delivered again
        log.warning(
            "the group %r of %r does not exist any more: it is created again, and begins after %s",
            self.group,
            self._key,
            self._again,
        )

    def _next_ask(self, now_s: float, patience_s: float) -> Ask:
        if self._again is not None:
            # It does not wait: if the key were deleted meanwhile, the start would be wrong.
            tread = self._tread(str(self._again), self._batch, None)
            return Ask(self._server, [tread, *self._both_states()], MAKE)
        if patience_s > 0 and self._idle and now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            return Ask(self._server, self._both_states(), LOOK)
        wait_s = patience_s
        if self._retry_ms:
            wait_s = min(wait_s, self._retry_ms / 1000 / WAIT_SHARE)
        wait_ms = block_ms(wait_s) if patience_s > 0 else None
        self._kept_s = now_s
        return Ask(self._server, [self._tread(EXISTING, self._batch, wait_ms)])

    def _send(self, ask: Ask, now_s: float) -> None:
        self._server.asked(ask, now_s)
        self._counts["requests"] += 1

    def _tread(self, start: str, count: int, block_ms: int | None) -> Any:
        return requests.tread(
            self._key,
            start,
            count,
            block_ms,
            GroupWords(self.group, self._ttl_ms, self._retry_ms, self._expire_ms),
        )

    def _pause_s(self, now_s: float, patience_s: float) -> float | None:
        server = self._server
        if patience_s <= 0:
            waiting = any(ask.wait_s for ask in server.in_flight)
            return 0.0 if waiting or server.failing else None
        until_s = now_s + min(patience_s, WAIT_MAX_S)
        if server.failing and not server.in_flight:
            until_s = min(until_s, server.retry_at_s)
        return max(0.0, until_s - now_s)

    def _absorb(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            if answer.ask not in self._server.in_flight:
                continue
            error = answer.error or not_served(answer)
            if error is None:
                self._take_replies(answer)
                continue
            self._server.failed(answer.ask, error, self._now())
            self._again = None  # found out again: the server may be back without its data
            since_s = self._server.failing_since_s
            assert since_s is not None
            waits = lost(error) or answer.error is None
            if not waits or self._now() - since_s >= self._retry_for_s:
                raise error

    def _take_replies(self, answer: Answer) -> None:
        refusal = next((r for r in answer.replies if isinstance(r, ResponseError)), None)
        if refusal is not None:
            self._gone = self._gone or is_gone(refusal)
        elif answer.ask.about is LOOK:
            info, group = answer.replies
            self.ended = self._is_end(info, group)
            self._place.saw(info, group)
        else:
            self._take_records(answer)
        if self._server.answered(answer.ask):
            self._counts["reconnects"] += 1
        if refusal is not None and not is_gone(refusal):
            raise refusal

    def _take_records(self, answer: Answer) -> None:
        records, *states = answer.replies
        kept = [record for record in records if record is not None]
        found = deque([*self._buffer, *kept])
        if states:
            self._place.begin(*states)
            self._again = None
        elif found:
            self._place.reach(max(record.id for record in found))
        due_s = self._due_of(answer.ask)
        missed = self.missed + len(records) - len(kept)
        left = [ask for ask in self._server.in_flight if ask is not answer.ask]
        # In one line without a call, where no signal handler can raise: records that are in the
        # buffer, and whose ask is in flight still, would be taken twice.
        self._buffer, self.missed, self._due_s, self._server.in_flight = found, missed, due_s, left
        self._idle = not records

    def _due_of(self, ask: Ask) -> float:
        """Until when the entries of an ask are this consumer's. An entry that expires before its
        retry time is over is not delivered again."""
        retry_ms = self._retry_ms
        is_retried = retry_ms and not 0 < self._expire_ms <= retry_ms
        return ask.started_s + retry_ms / 1000 if retry_ms and is_retried else float("inf")

    def _is_end(self, info: dict[str, Any] | None, group: requests.GroupState | None) -> bool:
        """True if nothing will be delivered any more: neither new entries nor those that are
        pending, which come again if they are not acknowledged."""
        if info is None or group is None or not info["sealed"] or info.get("reservations"):
            return False
        return group.lag == 0 and (self._retry_ms is None or group.pending == 0)

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

    def close(self) -> Steps[None]:
        """Acknowledge what is finished. It is tried once, so that a server that is away does not
        delay the end of a program."""
        if self._buffer and self._retry_ms is None:
            log.warning(
                "%d entries of the group %r were fetched and not handed out, and are lost: "
                "use batch=1, or a consumer with retry",
                len(self._buffer),
                self.group,
            )
        if self._finished:
            try:
                yield Call(requests.tack(self._key, self.group, self._finished))
            except RedisError as error:
                log.warning(
                    "%d finished entries of the group %r could not be acknowledged: %s",
                    len(self._finished),
                    self.group,
                    error,
                )

    def ack(self, ids: list[ID]) -> Steps[int]:
        """Acknowledge entries; a lost reply is repeated, which changes nothing more."""
        if not ids:
            return 0
        count = yield from self._repeater.call(requests.tack(self._key, self.group, ids))
        self._counts["acknowledged"] += count
        return count

    # ------------------------------------------------------------ while nothing is read

    def heartbeat(self) -> Steps[None]:
        """Use the group, so that it does not end: at most once in a third of its time to live."""
        now_s = self._now()
        if self._ttl_ms and now_s - self._kept_s >= self._ttl_ms / 3000:
            self._kept_s = now_s
            try:
                yield Call(self._tread(EXISTING, 0, None))
            except ResponseError as error:
                if not is_gone(error):  # the next read makes the group again
                    raise

    def lag(self) -> Steps[int | None]:
        state = yield from self._repeater.call(requests.group_state(self._key, self.group))
        return None if state is None else state.lag

    def metrics(self) -> dict[str, float]:
        return {**self._counts, "missed": self.missed, "buffered": len(self._buffer)}


def entry_id(record: Record[Any] | IdWord) -> ID:
    if isinstance(record, Record):
        return record.id
    if isinstance(record, int):
        return ID(record)
    return record if isinstance(record, ID) else ID.parse(record)
