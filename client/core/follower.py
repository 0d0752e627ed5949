"""Following shards as one sequence: what to ask, what to do with the answers, what to hand out.

A record is handed out when the merge allows it. Only shards with nothing buffered are asked. While
records are buffered and held back, the shards that hold them back are asked again soon; with
nothing buffered, the servers are asked to wait for entries.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client.core import requests
from millstream.client.core.lineage import Lineage, Servers
from millstream.client.core.merge import FETCHED, Merge
from millstream.client.core.opening import open_lineage
from millstream.client.core.position import Start
from millstream.client.core.servers import ServerState
from millstream.client.core.shards import Shard, ShardState
from millstream.client.core.steps import Answer, Ask, Clock, Notify, Steps, Wait, repeated
from millstream.client.errors import MillstreamError, RecordsExpired, ShardUnavailable
from millstream.client.events import Disconnected, Event, Gap, Reconnected, ShardOpened
from millstream.client.ids import BEGINNING, ID, read_id
from millstream.client.records import Record

BLOCK_MAX_S = 5.0
HELD_FIRST_S = 0.001
HELD_MAX_S = 0.05
LOOK_UP_FIRST_S = 0.01
LOOK_UP_MAX_S = 1.0
HEARTBEAT_S = 5.0
LATE_LOG_S = 1.0
GAPS_KEPT = 1000
LAG_MAX = 10**18

log = logging.getLogger("millstream.client")

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Read:
    """About an ask with one TMREAD: the shards that it reads, and their places."""

    shards: list[ShardState]
    places: list[ID]
    blocking: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """About an ask with one TINFO for each of these shards."""

    names: list[str]


@dataclass(frozen=True, slots=True)
class Create:
    """About an ask with one TCREATE for each of these shards."""

    shards: list[ShardState]


class Pace:
    """When to ask again: after a short time, then after longer and longer ones."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self.reset()

    def reset(self) -> None:
        self._next_s = self._first_s
        self.at_s = float("-inf")

    def due(self, now_s: float) -> bool:
        return now_s >= self.at_s

    def asked(self, now_s: float) -> None:
        self.at_s = now_s + self._next_s
        self._next_s = min(self._next_s * 2, self._most_s)


@dataclass(frozen=True, slots=True)
class Options:
    """How a stream reads."""

    batch: int = 100
    order: str = "strict"
    on_gap: str = "raise"
    max_wait_s: float | None = 30.0
    clock: bool | None = None

    def __post_init__(self) -> None:
        if type(self.batch) is not int or self.batch < 1:
            raise ValueError(f"batch must be a number from 1, not {self.batch!r}")
        if self.order not in ("strict", "available"):
            raise ValueError(f"order must be 'strict' or 'available', not {self.order!r}")
        if self.on_gap not in ("raise", "skip"):
            raise ValueError(f"on_gap must be 'raise' or 'skip', not {self.on_gap!r}")
        if self.max_wait_s is not None and not self.max_wait_s >= 0:
            raise ValueError(f"max_wait must be None or at least 0, not {self.max_wait_s!r}")

    @property
    def strict(self) -> bool:
        return self.order == "strict"


class Follower:
    """The state of a stream, and its decisions."""

    def __init__(self, servers: Servers, options: Options, now: Clock, wall: Clock) -> None:
        """`now` is a clock that never goes back, `wall` the time since 1970; both in seconds."""
        self.options = options
        self.events: deque[Event] = deque()
        """What happened and was not passed on yet."""
        self.gaps: deque[Gap] = deque(maxlen=GAPS_KEPT)
        self.stopped = False
        self._servers = servers
        self._now = now
        self._wall = wall
        self._lineage = Lineage((), servers)
        self._merge = Merge(options.strict)
        self._creates = False
        self._greatest = BEGINNING
        self._records = 0
        self._late_logged_s = float("-inf")
        self._held = Pace(HELD_FIRST_S, HELD_MAX_S)
        self._looking = Pace(LOOK_UP_FIRST_S, LOOK_UP_MAX_S)
        self._refusal: Exception | None = None
        self._counts = dict.fromkeys(("requests", "reconnects", "gaps", "late"), 0)

    # ------------------------------------------------------------ starting

    def open(self, shards: list[Shard], start: Start, create: bool) -> Steps[None]:
        """Begin at a position, and forget the present one. If this fails nothing changes."""
        lineage = yield from open_lineage(shards, start, self._servers, create)
        lineage.settle()
        self._lineage = lineage
        self._creates = create
        self._greatest = BEGINNING
        self._held.reset()
        self._looking.reset()
        self._merge.rebuild(lineage.live())
        self.events.extend(ShardOpened(state.name) for state in lineage.live())
        yield from self.flush()

    # ------------------------------------------------------------ handing out

    def take(self) -> Record[Any] | None:
        """The next record, if nothing else has to be done first."""
        heap = self._merge.heap
        if not heap or heap[0][1] == FETCHED or self.events or self._lineage.orphans:
            return None
        shard = heap[0][3]
        return None if shard.gaps else self._hand_out(shard)

    def read(self, timeout_s: float | None) -> Steps[Record[Any] | None]:
        """The next record; None after the timeout, at the end, or once stopped.

        With a timeout of 0 every server that answers is asked, and nothing waits for entries.
        """
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s)
        deadline_s = float("inf") if timeout_s is None else self._now() + timeout_s
        asked: set[ShardState] = set()
        while True:
            record = yield from self._next()
            if record is not None or self.ended or self.stopped:
                return record
            now_s = self._now()
            patience_s = deadline_s - now_s
            if patience_s <= 0 and timeout_s:
                break
            asks = self._wants(now_s, patience_s, asked)
            due = self._answers_due()
            answers = yield Wait(asks, self._pause_s(now_s, patience_s, due))
            self._absorb(answers)
            yield from self.flush()
            self._raise_refusal()
            if self._merge.first() is None and not self.ended:
                self._check_silence()
            if patience_s <= 0 and not due and not answers:
                break
        self._check_silence()
        return None

    def flush(self) -> Steps[None]:
        """Pass on what happened."""
        while self.events:
            yield Notify(self.events.popleft())

    def _next(self) -> Steps[Record[Any] | None]:
        """The next record, or None. Raises RecordsExpired for a gap before it.

        What happened is passed on first, because passing it on may fail or be cancelled, and then
        the record must still be here. What a record causes is passed on by the next call.
        """
        while True:
            yield from self.flush()
            shard = self._merge.first()
            gaps = self._lineage.orphans if shard is not None or self.ended else []
            if shard is not None and not gaps:
                gaps = shard.gaps
            if not gaps:
                return None if shard is None else self._hand_out(shard)
            gap = gaps[0]
            yield Notify(gap)
            self._report(gap)

    def _report(self, gap: Gap) -> None:
        self._lineage.report(gap)
        self.gaps.append(gap)
        self._counts["gaps"] += 1
        if self.options.on_gap == "raise":
            raise RecordsExpired(gap.shard, gap.after, gap.resumed)

    def _hand_out(self, shard: ShardState) -> Record[Any]:
        record = self._merge.pop(shard)
        if len(self._lineage.states) > 1:
            if record.id < self._greatest:
                self._note_late(record)
            else:
                self._greatest = record.id
        shard.last = record
        self._records += 1
        if not shard.buffer:
            self._greatest = max(self._greatest, record.id)
            shard.reach()
            self._held.reset()
            if shard.ended:
                self._settle()
        return record

    def _note_late(self, record: Record[Any]) -> None:
        record.late = True
        self._counts["late"] += 1
        now_s = self._now()
        if now_s - self._late_logged_s >= LATE_LOG_S:
            self._late_logged_s = now_s
            log.warning(
                "shard %r: the record %s is late, %d so far",
                record.shard,
                record.id,
                self._counts["late"],
            )

    def _settle(self) -> None:
        events = self._lineage.settle()
        if events:
            self.events.extend(events)
            self._looking.reset()
            self._merge.rebuild(self._lineage.live())

    # ------------------------------------------------------------ what to ask

    def _wants(self, now_s: float, patience_s: float, asked: set[ShardState]) -> list[Ask]:
        """The asks to send now. `asked` are the shards that this call has asked already."""
        live = self._lineage.live()
        buffered = any(state.buffer for state in live)
        again = self._held.due(now_s)
        asks: list[Ask] = []
        paced = False
        for server, shards in by_server(live).items():
            if not server.may_ask(now_s):
                continue
            waiting = covered(server, blocking=True)
            todo = [s for s in shards if not s.buffer and not s.ended]
            todo = [s for s in todo if s not in covered(server, blocking=False)]
            blocking = False
            if buffered or (patience_s > 0 and waiting):
                if patience_s > 0 and not buffered:
                    todo = [s for s in todo if s not in waiting]
                todo = todo if again else []
                paced = paced or bool(todo)
            elif patience_s > 0:
                blocking = True
            else:
                todo = [s for s in todo if s not in asked]
                asked.update(todo)
            if todo:
                asks.append(self._tmread(server, todo, patience_s if blocking else None))
        if paced:
            self._held.asked(now_s)
        asks += self._look_ups(now_s)
        asks += self._creations(now_s, live)
        for ask in asks:
            self._sent(ask, now_s)
        return asks

    def _sent(self, ask: Ask, now_s: float) -> None:
        server = ask.server
        assert isinstance(server, ServerState)
        server.asked(ask, now_s)
        self._counts["requests"] += 1

    def _tmread(self, server: ServerState, shards: list[ShardState], wait_s: float | None) -> Ask:
        places = [shard.fetched for shard in shards]
        keys = [shard.key for shard in shards]
        block_ms = None if wait_s is None else max(1, int(min(wait_s, BLOCK_MAX_S) * 1000))
        command = requests.tmread(
            zip(keys, places, strict=True),
            self.options.batch,
            block_ms,
            self._needs_clock(),
            read=requests.same,
        )
        return Ask(server, [command], Read(shards, places, wait_s is not None))

    def _needs_clock(self) -> bool:
        if self.options.clock is not None:
            return self.options.clock
        return self.options.strict and len(self._lineage.states) > 1

    def _look_ups(self, now_s: float) -> list[Ask]:
        if not self._looking.due(now_s):
            return []
        unknown: dict[ServerState, list[Shard]] = {}
        for shard, server in self._lineage.unknown():
            looked_up = any(isinstance(ask.about, LookUp) for ask in server.in_flight)
            if server.may_ask(now_s) and not looked_up:
                unknown.setdefault(server, []).append(shard)
        if unknown:
            self._looking.asked(now_s)
        return [
            Ask(
                server,
                [requests.tinfo(shard.key) for shard in shards],
                LookUp([str(shard.name) for shard in shards]),
            )
            for server, shards in unknown.items()
        ]

    def _creations(self, now_s: float, live: list[ShardState]) -> list[Ask]:
        """A shard that does not exist promises nothing, and would hold the others back."""
        if not self._creates or not self.options.strict or len(live) < 2:
            return []
        missing = [s for s in live if s.missing_since_s is not None and s.server.may_ask(now_s)]
        return [
            Ask(server, [requests.create_if_missing(s.key) for s in shards], Create(shards))
            for server, shards in by_server(missing).items()
            if not any(isinstance(ask.about, Create) for ask in server.in_flight)
        ]

    # ------------------------------------------------------------ how long to wait

    def _answers_due(self) -> bool:
        """Whether a server that answered so far has something to answer at once."""
        return any(
            ask.wait_s == 0
            for server in self._servers
            if not server.failing
            for ask in server.in_flight
        )

    def _pause_s(self, now_s: float, patience_s: float, due: bool) -> float | None:
        if patience_s <= 0 and not due:
            return 0.0
        moments = [now_s + patience_s] if patience_s > 0 else []
        if patience_s > 0:
            moments += self._moments(now_s)
        moments += self._silence_ends()
        return None if not moments else max(0.0, min(moments) - now_s)

    def _moments(self, now_s: float) -> list[float]:
        """When something has to be asked again."""
        live = self._lineage.live()
        # A time that is over does not count: the server was not asked, because of another one.
        moments = [
            server.retry_at_s
            for server in self._servers
            if server.failing and not server.in_flight and server.retry_at_s > now_s
        ]
        idle = any(not state.buffer and not state.ended for state in live)
        if idle and not self._held.due(now_s):
            moments.append(self._held.at_s)
        if not self._looking.due(now_s) and self._lineage.unknown():
            moments.append(self._looking.at_s)
        return moments

    def _silence_ends(self) -> list[float]:
        """When a server will have been silent for too long."""
        if self.options.max_wait_s is None:
            return []
        ends = []
        for server in self._servers:
            due = [ask.started_s + ask.wait_s for ask in server.in_flight]
            if server.failing_since_s is not None:
                due.append(server.failing_since_s)
            ends += [since_s + self.options.max_wait_s for since_s in due]
        return [end for end in ends if end > self._now()]

    def _check_silence(self) -> None:
        """Raise ShardUnavailable if a shard that is needed has been silent for too long."""
        limit_s = self.options.max_wait_s
        if limit_s is None:
            return
        now_s = self._now()
        live = self._lineage.live()
        held_back = self.options.strict and any(state.buffer for state in live)
        for state in live:
            if state.buffer:
                continue
            since_s = state.server.silent_since_s(now_s)
            if since_s is not None and now_s - since_s >= limit_s:
                raise ShardUnavailable(state.name, state.server.cause)
            since_s = state.missing_since_s
            if held_back and since_s is not None and now_s - since_s >= limit_s:
                cause = MillstreamError(f"the key {state.key!r} does not exist")
                raise ShardUnavailable(state.name, cause)

    # ------------------------------------------------------------ answers

    def _absorb(self, answers: Iterable[Answer]) -> None:
        """Take in what has arrived: all replies first, then the errors."""
        for answer in answers:
            server = answer.ask.server
            assert isinstance(server, ServerState)
            if answer.ask not in server.in_flight:
                continue
            if answer.error is None:
                if server.answered(answer.ask):
                    self._counts["reconnects"] += 1
                    self.events.append(Reconnected(self._names_on(server)))
                self._take_replies(answer)
            elif not isinstance(answer.error, UNREACHABLE):
                server.answered(answer.ask)
                self._refusal = answer.error
            elif server.failed(answer.ask, answer.error, self._now()):
                self.events.append(Disconnected(self._names_on(server), answer.error))
        self._merge.rebuild(self._lineage.live())
        self._settle()

    def _names_on(self, server: ServerState) -> tuple[str, ...]:
        return tuple(s.name for s in self._lineage.states.values() if s.server is server)

    def _take_replies(self, answer: Answer) -> None:
        errors = [reply for reply in answer.replies if isinstance(reply, ResponseError)]
        if errors:
            self._refusal = errors[0]
            return
        about = answer.ask.about
        if isinstance(about, Read):
            [rows] = answer.replies
            for shard, place, row in zip(about.shards, about.places, rows, strict=True):
                self._take_row(shard, place, row)
        elif isinstance(about, LookUp):
            for name, info in zip(about.names, answer.replies, strict=True):
                self._lineage.learn(name, info)
        elif isinstance(about, Create):
            for shard in about.shards:
                shard.missing_since_s = None

    def _take_row(self, shard: ShardState, place: ID, row: list[Any]) -> None:
        if self._lineage.states.get(shard.name) is not shard or shard.buffer or shard.ended:
            return  # an answer that came too late
        _, prev_text, next_text, entries, ended, incarnation = row
        if incarnation is None:
            if shard.missing_since_s is None:
                shard.missing_since_s = self._now()
            return
        shard.missing_since_s = None
        if shard.incarnation != incarnation:
            if shard.incarnation is not None:
                shard.lose(BEGINNING)
                shard.fetched = shard.floor = BEGINNING
                shard.incarnation = incarnation
                self._held.reset()
                return  # asked again, from the beginning of the new stream
            shard.incarnation = incarnation
        prev = read_id(prev_text)
        if prev > shard.fetched:
            if shard.fresh:
                shard.fetched = prev
            else:
                shard.lose(prev)
        shard.fresh = False
        self._buffer(shard, entries, already=place < shard.fetched)
        shard.fetched = max(shard.fetched, read_id(next_text))
        shard.ended = bool(ended)
        if not shard.buffer:
            shard.reach()

    def _buffer(self, shard: ShardState, entries: list[Any], already: bool) -> None:
        name = shard.name
        found = [Record(None, name, entry) for entry in entries]
        if already:  # another answer was faster: some of these may be known
            found = [record for record in found if record.id > shard.fetched]
        shard.buffer.extend(found)

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal

    # ------------------------------------------------------------ while nothing is read

    def heartbeat(self) -> Steps[None]:
        """Let the places of idle shards advance; at most one request to a server every 5 s."""
        now_s = self._now()
        idle = {
            server
            for server in self._servers
            if now_s - server.last_ask_s >= HEARTBEAT_S and server.may_ask(now_s)
        }
        hungry = [s for s in self._lineage.live() if not s.buffer and not s.ended]
        asks = [
            self._tmread(server, shards, None)
            for server, shards in by_server(hungry).items()
            if server in idle
        ]
        looking = [ask for ask in self._look_ups(now_s) if ask.server in idle]
        servers = [ask.server for ask in looking]
        asks = [ask for ask in asks if ask.server not in servers]
        yield from self._send_and_absorb([*looking, *asks], now_s)
        yield from self.flush()
        self._raise_refusal()

    def _send_and_absorb(self, asks: list[Ask], now_s: float) -> Steps[None]:
        for ask in asks:
            self._sent(ask, now_s)
        pending = set(asks)
        while pending:
            answers = yield Wait(asks, None)
            asks = []
            pending -= {answer.ask for answer in answers}
            self._absorb(answers)

    def lag(self) -> Steps[dict[str, int]]:
        """The number of entries still to come, by shard."""
        states = list(self._lineage.states.values())
        groups = by_server(states)
        asks = [
            Ask(server, [requests.tseek(s.key, s.note_place(), LAG_MAX) for s in shards])
            for server, shards in groups.items()
        ]
        counts: dict[str, int] = {}
        if asks:
            answers = yield from repeated(asks)
            for shards, seeks in zip(groups.values(), answers, strict=True):
                counts |= {s.name: seek.count for s, seek in zip(shards, seeks, strict=True)}
        return {state.name: counts[state.name] for state in states}

    def close(self) -> None:
        """Hand out nothing more."""
        self._merge.rebuild(())

    # ------------------------------------------------------------ what is known

    @property
    def ended(self) -> bool:
        """Whether every shard is sealed and was read to its end."""
        return not self._lineage.states

    @property
    def shards(self) -> list[str]:
        return [state.name for state in self._lineage.live()]

    @property
    def token(self) -> dict[str, Any]:
        return self._lineage.token().dump()

    @property
    def watermark(self) -> ID:
        live = self._lineage.live()
        return min((state.settled_up_to for state in live), default=self._lineage.end)

    def metrics(self) -> dict[str, float]:
        buffered = sum(len(state.buffer) for state in self._lineage.states.values())
        age_s = max(0.0, self._wall() - self.watermark.ms / 1000)
        return {
            "records": self._records,
            **self._counts,
            "buffered": buffered,
            "watermark_age_s": age_s,
        }


def by_server(states: Iterable[ShardState]) -> dict[ServerState, list[ShardState]]:
    found: dict[ServerState, list[ShardState]] = {}
    for state in states:
        found.setdefault(state.server, []).append(state)
    return found


def covered(server: ServerState, blocking: bool) -> Collection[ShardState]:
    """The shards that an ask in flight reads."""
    return {
        shard
        for ask in server.in_flight
        if isinstance(ask.about, Read) and ask.about.blocking == blocking
        for shard in ask.about.shards
    }
