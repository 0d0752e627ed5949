"""Following shards as one sequence: processing answers and handing out records.

A record is handed out when the merge allows it. `asking` chooses the asks and their times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapreplace
from typing import Any

from redis.exceptions import MovedError, ResponseError

from millstream.client.codecs import InvalidRecord
from millstream.client.core import requests
from millstream.client.core.asking import Asking, Create, LookUp, Read, by_server
from millstream.client.core.deadlines import Patience, Stops
from millstream.client.core.merge import FETCHED, RECORD, Bound, Merge
from millstream.client.core.opening import open_lineage
from millstream.client.core.options import Options
from millstream.client.core.packed_token import TokenPacker
from millstream.client.core.position import Start
from millstream.client.core.repeating import lost, not_served, repeated
from millstream.client.core.servers import ServerState
from millstream.client.core.shard_order import Info, Servers, ShardOrder
from millstream.client.core.shards import Shard, ShardState, shard_name
from millstream.client.core.steps import Answer, Ask, Clock, Notify, Steps, Wait
from millstream.client.core.values import Values
from millstream.client.events import (
    Disconnected,
    Event,
    Gap,
    Reconnected,
    RecordsExpired,
    ShardMissing,
    ShardOpened,
)
from millstream.client.ids import BEGINNING, ID, read_id
from millstream.client.log import log
from millstream.client.records import Handed, Record, RecordReader, Run, mark_late

LATE_LOG_S = 1.0
GAPS_KEPT = 1000
LAG_MAX = 10**18


class Follower:
    """The state of a stream, and its decisions."""

    def __init__(self, servers: Servers, options: Options, now: Clock, wall: Clock) -> None:
        """`now` is a clock that never goes back, `wall` the time since 1970; both in seconds."""
        self.options = options
        self.events: deque[Event] = deque()
        """Events that were not passed on yet."""
        self.gaps: deque[Gap] = deque(maxlen=GAPS_KEPT)
        self.stops = Stops()
        self.values: Values | None = None
        """Decodes the records; None for records without values."""
        self._servers = servers
        self._now = now
        self._wall = wall
        self._opened_s = wall()
        self._lineage = ShardOrder((), servers)
        self._merge = Merge(options.strict)
        self._learning = False
        """True if records wait until the children of a shard are known."""
        self._asking = Asking(servers, options, now)
        self._reader = RecordReader()
        self.tokens = TokenPacker()
        self._greatest = BEGINNING
        self._handed = Handed()
        self._late_logged_s = float("-inf")
        self._refusal: Exception | None = None
        self._reported: Gap | None = None
        """A gap while it is reported."""
        self._counts = dict.fromkeys(("reconnects", "gaps", "late"), 0)

    # ------------------------------------------------------------ starting

    def open(self, shards: list[Shard], start: Start, create: bool) -> Steps[None]:
        """Begin at a position, and forget the present one. If this fails nothing changes."""
        lineage = yield from open_lineage(shards, start, self._servers, create, self.options.end)
        lineage.settle()
        yield from self.flush()
        for state in lineage.live():  # before the change, because it may fail or be cancelled
            yield Notify(ShardOpened(state.name))
        self._change(lineage, self.events)
        self._asking.begin(create)
        self._greatest = BEGINNING
        self._reported = None
        self._arrange()

    def _change(self, lineage: ShardOrder, events: deque[Event]) -> None:
        """Read other shards from now on. `read` puts them in order before the next record, even if
        a signal handler raises here."""
        asking, merge = self._asking, self._merge
        self._lineage, asking.lineage, self.events, merge.heap = lineage, lineage, events, []

    # ------------------------------------------------------------ handing out

    def take(self) -> Record[Any] | None:
        """The next record, if nothing else has to be done first."""
        heap = self._merge.heap
        if not heap or heap[0][1] == FETCHED or self.events or self._lineage.orphans:
            return None
        shard = heap[0][3]
        if shard.gaps or not (self.values is None or self.values.decode_first(shard.buffer)):
            return None
        return self._hand_out(shard)

    def run(self, begun: int) -> Iterable[Record[Any]]:
        """The next records, with most checks of `take` once for all of them. `take` has the last
        record of a buffer, and records that are late.

        It ends when the follow that began at `begun` is stopped, and when the order of the shards
        is computed again: after an answer, a move, the end of the stream and in a child process.
        """
        heap = self._merge.heap
        if not heap or self.events or self._lineage.orphans:
            return ()
        if self.values is not None:  # each record may be a bad one
            return ()
        if len(self._lineage.states) != 1:
            return self._run_merged(heap, begun)
        shard = heap[0][3]
        return () if shard.gaps else Run(shard, self._merge, self.stops, begun, self._handed)

    def _run_merged(self, heap: list[Bound], begun: int) -> Iterator[Record[Any]]:
        merge, stops = self._merge, self.stops
        while merge.heap is heap and stops.count == begun and heap:
            following, kind, name, shard = heap[0]
            buffer = shard.buffer
            if kind == FETCHED or len(buffer) < 2 or shard.gaps or following < self._greatest:
                return
            try:
                record = buffer.popleft()
                heapreplace(heap, (buffer[0].id, RECORD, name, shard))
                self._greatest = following
                shard.last = record
                self._handed.count += 1
            except BaseException:  # of a signal handler, as in `_hand_out`
                merge.heap = []
                raise
            yield record

    def read(self, timeout_s: float | None, begun: int | None = None) -> Steps[Record[Any] | None]:
        """The next record; None after the timeout, at the end, or once stopped.

        With a timeout of 0 every server that answers is asked, and nothing waits for entries.
        `begun` is of a follow that reads; without it the read itself can be stopped.
        """
        patience = Patience(timeout_s, self._now)
        seen = self.stops.begin() if begun is None else begun
        asked: set[ShardState] = set()
        begun_s = self._now()
        if not self._merge.heap:  # also if a signal handler has raised while it changed
            self._arrange()
            self._settle()
        while True:
            record = yield from self._next()
            if record is not None or self.ended:
                return record
            if self.stops.since(seen):
                if begun is None:
                    self.stops.handle()
                return None
            now_s = self._now()
            patience_s = patience.left_s()
            if patience.is_over(patience_s):
                break
            self._asking.wants(now_s, patience_s, asked)
            due = self._asking.due_until_s(now_s)
            pause_s = self._asking.pause_s(now_s, patience_s, due)
            answers = yield Wait(self._asking.in_flight(), pause_s)
            self._absorb(answers)
            yield from self.flush()
            self._raise_refusal()
            if self._merge.first() is None and not self.ended and not self._learning:
                self._asking.check_silence(begun_s)
            if patience_s <= 0 and not due and not answers:
                break
        self._asking.check_silence()
        return None

    def flush(self) -> Steps[None]:
        """Pass on the events."""
        while self.events:
            yield Notify(self.events.popleft())

    def _next(self) -> Steps[Record[Any] | None]:
        """The next record, or None. Raises RecordsExpired for a gap before it.

        Events are passed on first, because that may fail or be cancelled, and then the record must
        not be lost. Events that a record causes are passed on by the next call.
        """
        while True:
            if self.events:
                yield from self.flush()
            self._finish_report()
            shard = self._merge.first()
            gaps = self._gaps_before(shard)
            if not gaps:
                if shard is None:
                    return None
                if self.values is None or (yield from self._admit(self.values, shard)):
                    return self._hand_out(shard)
                continue
            gap = gaps[0]
            yield Notify(gap)
            self._report(gap)

    def _admit(self, values: Values, shard: ShardState) -> Steps[bool]:
        """Decode the next record. A bad one is passed over once it is a dead letter, and by the
        call that raises its error."""
        first = shard.buffer[0]
        try:
            good = yield from values.admit(shard.buffer)
        except InvalidRecord:
            self._hand_out(shard)
            raise
        # Another task may have passed over the record during the copy.
        if not good and shard.buffer and shard.buffer[0] is first:
            self._hand_out(shard)
        return good

    def _gaps_before(self, shard: ShardState | None) -> list[Gap]:
        """The gaps to report before the next record, which is one of this shard, or at the end."""
        lineage = self._lineage
        if shard is not None:
            return lineage.orphans or shard.gaps
        if lineage.until is None:
            return [] if lineage.states else lineage.orphans
        live = lineage.live()
        if not all(state.complete and not state.buffer for state in live):
            return []
        return lineage.orphans or [gap for state in live for gap in state.gaps]

    def _report(self, gap: Gap) -> None:
        self._reported = gap
        self._finish_report()

    def _finish_report(self) -> None:
        """Also called by the next read, if a signal handler has raised here."""
        gap = self._reported
        if gap is None:
            return
        if not self.gaps or self.gaps[-1] != gap:
            self.gaps.append(gap)
            self._counts["gaps"] += 1
        self._merge.heap = []
        self._lineage.report(gap)
        self._arrange()
        try:
            if self.options.on_gap == "raise":
                raise RecordsExpired(gap.shard, gap.after, gap.resumed)
        finally:
            self._reported = None

    def _hand_out(self, shard: ShardState) -> Record[Any]:
        try:
            return self._pop(shard)
        except BaseException:  # of a signal handler: the order may be wrong until the next `read`
            self._merge.heap = []
            raise

    def _pop(self, shard: ShardState) -> Record[Any]:
        record = self._merge.pop(shard)
        if len(self._lineage.states) > 1:
            if record.id < self._greatest:
                self._note_late(record)
            else:
                self._greatest = record.id
        shard.last = record
        self._handed.count += 1
        if not shard.buffer:
            self._greatest = max(self._greatest, record.id)
            shard.reach()
            self._asking.held.reset()
            if shard.ended:
                self._settle()
        return record

    def _note_late(self, record: Record[Any]) -> None:
        mark_late(record)
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
        if self._lineage.is_settled:
            return
        lineage = self._lineage.copy()
        events = lineage.settle()
        self._change(lineage, deque([*self.events, *events]))
        self._asking.looking.reset()
        self._arrange()

    def _arrange(self) -> None:
        """Put the shards in order, after some were replaced or replies arrived.

        While the children of a shard are looked up nothing is handed out, because the token has to
        name them: the shard's key may not exist any more when the stream is restored.
        """
        self._learning = self._asking.learns_ends(self._now())
        self._merge.rebuild(() if self._learning else self._lineage.live())

    # ------------------------------------------------------------ answers

    def _absorb(self, answers: Iterable[Answer]) -> None:
        """Process the answers that have arrived: all replies first, then the errors."""
        for answer in answers:
            server = answer.ask.server
            assert isinstance(server, ServerState)
            if answer.ask not in server.in_flight:
                continue
            refused = not_served(answer)
            if isinstance(refused, MovedError) and self._lineage.place_again():
                server.answered(answer.ask)
                self._asking.held.reset()
            elif refused is not None:
                if server.failed(answer.ask, refused, self._now()):
                    self.events.append(Disconnected(self._names_on(server), refused))
            elif answer.error is None:
                self._take_replies(answer)
                if server.answered(answer.ask):
                    self._counts["reconnects"] += 1
                    self.events.append(Reconnected(self._names_on(server)))
            elif not lost(answer.error):
                self._refusal = answer.error
                server.answered(answer.ask)
            elif server.failed(answer.ask, answer.error, self._now()):
                self.events.append(Disconnected(self._names_on(server), answer.error))
        for name in self._asking.absent.news():
            self.events.append(ShardMissing(name, self._lineage.continued_by(name)))
        self._arrange()
        self._settle()

    def _names_on(self, server: ServerState) -> tuple[str, ...]:
        names = [s.name for s in self._lineage.states.values() if s.server is server]
        children = self._lineage.unknown_children()
        names += [shard_name(child) for child, of in children if of is server]
        return tuple(names)

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
                self._note_current(shard, len(row[3]), answer.ask)
        elif isinstance(about, LookUp):
            for name, info in zip(about.names, answer.replies, strict=True):
                try:
                    self._learn(name, info)
                except Exception as error:  # of the user's `resolve`: it is called again later
                    self._refusal = error
        elif isinstance(about, Create):
            for shard in about.shards:
                shard.missing_since_s = None

    def _learn(self, name: str, info: Info | None) -> None:
        is_child = name not in self._lineage.states
        self._lineage.learn(name, info)
        if is_child:
            found = info is not None or self._lineage.resolve_again(name)
            self._asking.absent.looked_for(name, found, self._now())

    def _take_row(self, shard: ShardState, place: ID, row: list[Any]) -> None:
        if self._lineage.states.get(shard.name) is not shard or shard.buffer or shard.ended:
            return  # an answer that came too late
        _, prev_text, next_text, entries, ended, incarnation = row
        self._asking.absent.looked_for(shard.name, incarnation is not None, self._now())
        if incarnation is None:
            if shard.missing_since_s is None:
                shard.missing_since_s = self._now()
            return
        shard.missing_since_s = None
        if shard.incarnation != incarnation:
            if shard.incarnation is not None:
                start = self._lineage.start_after(shard)
                shard.lose(BEGINNING)
                shard.fetched, shard.floor = start, BEGINNING
                shard.incarnation = incarnation
                self._asking.held.reset()
                return  # asked again, from the beginning of the new stream
            shard.incarnation = incarnation
        prev = read_id(prev_text)
        if prev > shard.fetched:
            if shard.fresh:  # what was evicted before the start is not lost, nor after a restore
                shard.fetched = shard.place = shard.anchor = prev
                shard.place_incarnation = incarnation
            else:
                shard.lose(prev)
        shard.fresh = False
        buffer = self._records_of(shard, entries, already=place < shard.fetched)
        fetched, end = max(shard.fetched, read_id(next_text)), bool(ended)
        if shard.until is not None and fetched > shard.until:
            fetched, end = max(shard.fetched, shard.until), False
            buffer = deque(record for record in buffer if record.id <= fetched)
        # In one line without a call, where no signal handler can raise: records that are in the
        # buffer, and are not counted as fetched, would be taken twice.
        shard.buffer, shard.fetched, shard.ended = buffer, fetched, end
        if shard.ended and shard.children is None:
            self._asking.looking.reset()
        if not shard.buffer:
            shard.reach()

    def _note_current(self, shard: ShardState, count: int, ask: Ask) -> None:
        """After a reply with `count` entries: whether the shard had no more of them, and when."""
        if count >= self.options.batch:
            shard.current_s = float("-inf")
            return
        waited_s = 0.0 if count else ask.wait_s
        shard.current_s = min(self._now(), ask.started_s + waited_s)

    def _records_of(
        self, shard: ShardState, entries: list[Any], already: bool
    ) -> deque[Record[Any]]:
        found = self._reader.read(shard.name, entries)
        if already:  # another answer was faster: some of these may be known
            found = [record for record in found if record.id > shard.fetched]
        return deque(found)

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            refusal, self._refusal = self._refusal, None
            raise refusal

    # ------------------------------------------------------------ while nothing is read

    def heartbeat(self) -> Steps[None]:
        """Let the places of idle shards advance; at most one request to a server every 5 s."""
        pending = set(self._asking.heartbeats(self._now()))
        while pending:
            answers = yield Wait(self._asking.in_flight(), None)
            pending -= {answer.ask for answer in answers}
            self._absorb(answers)
        yield from self.flush()
        self._raise_refusal()

    def lag(self) -> Steps[dict[str, int]]:
        """The number of entries still to come, by shard."""
        states = list(self._lineage.states.values())
        groups = by_server(states)
        asks = [
            Ask(server, [requests.tseek(s.key, place, LAG_MAX) for s, place in places(shards)])
            for server, shards in groups.items()
        ]
        counts: dict[str, int] = {}
        if asks:
            answers = yield from repeated(asks)
            for shards, seeks in zip(groups.values(), answers, strict=True):
                found = [seek.count for seek in seeks]
                after_end = found[len(shards) :] or [0] * len(shards)
                for state, count, beyond in zip(shards, found, after_end, strict=False):
                    counts[state.name] = max(0, count - beyond)
        return {state.name: counts[state.name] for state in states}

    def close(self) -> None:
        """Hand out nothing more."""
        self._merge.rebuild(())

    # ------------------------------------------------------------ facts for users

    @property
    def ended(self) -> bool:
        """True if every shard was read to the end of the stream, or is sealed and was read to its
        own end."""
        if self._lineage.until is None:
            return not self._lineage.states
        # Shards that wait for their parents come after these ones.
        return all(map(is_read, self._lineage.live()))

    @property
    def shards(self) -> list[str]:
        return [state.name for state in self._lineage.live()]

    @property
    def token(self) -> dict[str, Any]:
        return self.tokens.token(self._lineage, self._merge, self._greatest)

    @property
    def watermark(self) -> ID:
        live = self._lineage.live()
        return min((state.settled_up_to for state in live), default=self._lineage.end)

    def metrics(self) -> dict[str, float]:
        buffered = sum(len(state.buffer) for state in self._lineage.states.values())
        return {
            "records": self._handed.count,
            "requests": self._asking.requests,
            **self._counts,
            "buffered": buffered,
            "watermark_age_s": 0.0 if self.ended else max(0.0, self._age_s()),
        }

    def _age_s(self) -> float:
        # A stream without a watermark yet is as old as itself.
        age_s = self._wall() - max(self.watermark.ms / 1000, self._opened_s)
        if self._asking.needs_clock():
            return age_s
        # Without CLOCK, the watermark of an idle shard stays where it is.
        since = self._lineage.since
        current_s = min(state.current_since_s(since) for state in self._lineage.states.values())
        return min(age_s, self._now() - current_s)


def is_read(shard: ShardState) -> bool:
    """True if a shard has nothing more before the end of the stream."""
    return shard.complete and not (shard.buffer or shard.gaps)


def places(shards: list[ShardState]) -> list[tuple[ShardState, ID]]:
    """The place of each shard, followed by the end of each, if they have one."""
    found = [(shard, shard.note_place()) for shard in shards]
    return found + [(shard, shard.until) for shard in shards if shard.until is not None]
