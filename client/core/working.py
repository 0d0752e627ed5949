"""A worker: reads the entries of a group as jobs, and settles each by the result of its handler.

The handlers run elsewhere, in threads or tasks: a Crew. Its results arrive at any time, from any
thread. All else is decided here, without I/O.

* A worker never holds more entries than it has free slots, those on their way included. Two reads
  are in flight where there are two free slots, so that no job waits for a round trip.
* A delivery is extended every third of the timeout. If the server says that this worker does not
  hold it, its result does not count: the entry is another reader's.
* A worker that stops reads no more. Entries that arrive after that are given back, and jobs that
  run have some time to end.

One job: `_send` asks for it, `_take_entries` gives it to the crew, `finish` takes its result from
there, `_take_results` adds it to those that are to be sent, `_send_settlement` sends it, and
`_note_settled` ends it with the reply. If the reply is lost, `Settling.failed` keeps the result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ResponseError

from millstream.client.core import job_requests, requests
from millstream.client.core.argument_checks import duration_ms
from millstream.client.core.breaker import Breaker
from millstream.client.core.deadlines import WAIT_MAX_S, Stops, block_ms
from millstream.client.core.group_place import GroupPlace
from millstream.client.core.job_requests import DONE, GIVEN_BACK, Arrived, Held, Result
from millstream.client.core.options import TIMEOUT_MAX_S, WorkerOptions
from millstream.client.core.repeating import Repeater, is_temporary, lost, repeated
from millstream.client.core.servers import ServerState
from millstream.client.core.settling import Place, Settlement, Settling, place
from millstream.client.core.steps import Answer, Ask, Clock, Command, GiveUp, Steps, Wait
from millstream.client.core.words import Key, text
from millstream.client.errors import MillstreamError
from millstream.client.ids import read_id
from millstream.client.jobs import Dead, Delivery, Retry
from millstream.client.log import log

NEVER = float("inf")
READS_MAX = 2
"""The reads in flight."""
HOLD_S = 0.002
"""How long the answer to a read that was sent with results is waited for, before anything else is
sent. From a server nearby it comes earlier, and the next results are sent together."""
LAST_FIRST_EVERY = 16
"""Of this many reads, one begins at the last stream, so that it is not starved."""
EXTEND_SHARE = 3
LEAVE_S = 2.0
"""The time for the last request."""
NO_GROUP = ("NOGROUP", "the group has no TIMEOUT")
"""Errors that say that the group, or its rules, do not exist; redis-py leaves out ERR."""


class Request(NamedTuple):
    """About an ask: results, and after them a read of up to `most` entries; 0: without a read."""

    settlement: Settlement | None
    most: int


class Crew(Protocol):
    """The handlers' threads or tasks. It calls `Work.finish` with each result."""

    def attend(self) -> None:
        """The worker decides from now on, and does not wait."""

    def leave(self) -> bool:
        """The worker may wait from now on. True if it has to look at results first."""

    def begin(self, delivery: Delivery, shard: str, entry: list[Any]) -> None:
        """Run the handler."""

    def abandon(self, delivery: Delivery) -> None:
        """Cancel the handler, or leave it alone and replace its thread."""


class Work:
    """The state of a worker, and its decisions."""

    def __init__(
        self,
        client: Any,
        keys: Sequence[Key],
        member: tuple[Key, str],
        start: str,
        options: WorkerOptions,
        now: Clock,
        retry_for_s: float = 30.0,
    ) -> None:
        """`member` is the group and the name of this consumer."""
        group, consumer = member
        self._server = ServerState(client)
        self._held = {key: Held(key, group, consumer) for key in keys}
        self._named = {text(key): key for key in keys}
        self._group = group
        self._consumer = consumer
        self._start = start
        self._options = options
        self._timeout_ms = options.timeout_ms
        self._now = now
        self._repeater = Repeater(retry_for_s, now)
        self._places = {key: GroupPlace() for key in keys}
        self.crew: Crew | None = None
        self.stops = Stops()
        self._begun = 0
        """For `stops`: the calls of `stop` before this run."""
        self._stop_s: float | None = None
        """The end of the time that running jobs get; None if the worker is not stopping."""
        self._running: dict[Place, Delivery] = {}
        self._results: deque[tuple[Delivery, BaseException | None]] = deque()
        """Handed in by the crew."""
        self._settling = Settling()
        self._breaker = Breaker(options.breaker)
        self._reads = 0
        self._read_commands: dict[tuple[int, bool, bool], Command[Any]] = {}
        """Those sent before: making one takes longer than sending it."""
        self._more = False
        """True if the last read found all that it asked for: the next one need not wait."""
        self._held_s = 0.0
        """Until when the worker waits for its read with results, and sends no other read; 0 if none
        is on its way."""
        self._gone = False
        self._renew_s = NEVER
        """When a delivery has to be extended, at the earliest."""
        self._limit_s = NEVER
        """When a handler may have passed the time limit, at the earliest."""
        self._counts = dict.fromkeys(
            ("done", "failed", "dead", "lost", "given_back", "extended", "requests", "reconnects"),
            0,
        )

    # ------------------------------------------------------------ any thread

    def finish(self, delivery: Delivery, error: BaseException | None) -> bool:
        """The handler has ended, with an error or without. True if the crew has to wake the worker
        later: if it would do nothing before its next answer, it need not be woken."""
        self._results.append((delivery, error))
        return not self._held_s

    def before_wait(self) -> bool:
        """The thread of the worker is going to wait. True if it has to look at results first."""
        return self.crew is not None and self.crew.leave()

    def extend(self, delivery: Delivery, seconds: float) -> Steps[bool]:
        """Give a job more time. False if it is lost."""
        for_ms = duration_ms("seconds", seconds)
        if not 0 < for_ms <= TIMEOUT_MAX_S * 1000:
            raise ValueError(f"seconds must be above 0 and at most {TIMEOUT_MAX_S:,}")
        if delivery.lost:
            return False
        until_s = self._now() + seconds
        command = job_requests.extend(self._held[delivery.key], for_ms, [delivery.word])
        [code] = yield from self._repeater.call(command)
        if code == 1:
            # Regular extensions, one of which may be on its way, never shorten the time for long.
            delivery.until_s = max(delivery.until_s, until_s)
        else:
            delivery.lost = True
        return not delivery.lost

    @property
    def running(self) -> int:
        return len(self._running)

    def metrics(self) -> dict[str, float]:
        return {**self._counts, "running": self.running}

    # ------------------------------------------------------------ from start to end

    def run(self, begun: int) -> Steps[None]:
        """Work until stopped. `begun` is of `stops`."""
        self._begun = begun
        self._stop_s = None
        self._settling.failed(())  # the run before may have ended before their reply
        for key in self._held:
            yield from self._join(key, self._start)
        while True:
            now_s = self._now()
            if now_s >= self._held_s:
                self._held_s = 0.0
            self._take_results(now_s)
            self._check_limits(now_s)
            if self.stops.since(begun) and self._may_leave(now_s):
                break
            if self._gone and not self._server.in_flight:
                self.before_wait()
                yield from self._join_again()
            self._send(now_s)
            answers = yield Wait(list(self._server.in_flight), self._pause_s(now_s))
            if self.crew is not None:
                self.crew.attend()
            self._absorb(answers)
        yield from self._give_up_requests()
        yield from self._leave()

    def abort(self) -> Steps[None]:
        """Leave at once, after an exception: one attempt."""
        self._take_results(self._now())
        self._abandon_all("the worker was interrupted before the handler had ended")
        yield from self._give_up_requests()
        yield from self._leave()

    def _give_up_requests(self) -> Steps[None]:
        """Do not wait for reads that block: `_leave` gives back what one of them may have got. It
        sends the results again that were on their way."""
        self._settling.failed(())
        asks = list(self._server.in_flight)
        self._server.in_flight.clear()
        if asks:
            yield GiveUp(asks)

    def _join(self, key: Key, start: str) -> Steps[None]:
        """Set the rules of a group, and create it if it is missing."""
        group = self._group
        if self._options.configure:
            command = job_requests.set_rules(key, group, start, self._options)
            yield from self._repeater.call(command)
        else:
            rules = yield from self._repeater.call(requests.tinfo(key, group))
            if rules is None or not rules["timeout"]:
                raise MillstreamError(
                    f"the group {text(group)!r} of {text(key)!r} does not exist, or has no "
                    "TIMEOUT: set its rules with TGROUP, or leave out configure=False"
                )
            self._timeout_ms = min(self._timeout_ms, rules["timeout"])
        commands: list[Command[Any]] = [requests.tinfo(key), requests.group_state(key, group)]
        [[info, state]] = yield from repeated([Ask(self._server, commands)])
        self._places[key].begin(info, state)

    def _join_again(self) -> Steps[None]:
        """A group, or its rules, have vanished."""
        try:
            for key in self._held:
                info = yield from self._repeater.call(requests.tinfo(key))
                start = self._places[key].again(info)
                log.warning(
                    "the group %r of %r, or its rules, may have vanished: they are set again, and "
                    "a new group begins after %s",
                    text(self._group),
                    text(key),
                    start,
                )
                yield from self._join(key, str(start))
            self._gone = False
        except Exception as error:
            if not lost(error):
                raise
            log.warning("the worker waits for its server: %s", error)

    def _leave(self) -> Steps[None]:
        """Send the results that are left, and give back what may have been delivered in a lost
        reply. An error changes nothing: those entries come again after their timeout. The consumer
        is removed only after that: a group that has lost its rules would drop its entries."""
        settlement = self._settling.take(())
        commands = settlement.commands(self._held) if settlement is not None else []
        commands += [job_requests.give_all_back(held) for held in self._held.values()]
        error = yield from self._last_ask(commands)
        if error is None:
            self._settling.answered()
            removals = [job_requests.remove_consumer(held) for held in self._held.values()]
            error = yield from self._last_ask(removals)
        if error is not None:
            log.warning("the worker could not leave its group in an orderly way: %s", error)

    def _last_ask(self, commands: Sequence[Command[Any]]) -> Steps[Exception | str | None]:
        ask = Ask(self._server, commands)
        until_s = self._now() + LEAVE_S
        while self._now() < until_s:
            answers = yield Wait([ask], until_s - self._now())
            for answer in answers:
                if answer.ask is ask:
                    return answer.error or _refusal(answer.replies)
        return "the server did not answer in time"

    # ------------------------------------------------------------ stopping

    def _may_leave(self, now_s: float) -> bool:
        """The worker is stopping: true if nothing is left to wait for."""
        if self._stop_s is None:
            self._stop_s = now_s + self._options.drain_s
        if now_s >= self._stop_s and self._running:
            self._abandon_all("the worker was stopped before the handler had ended")
        if self._running:
            return False
        return self._settling.is_done or (self._server.failing and now_s >= self._stop_s)

    def _abandon_all(self, why: str) -> None:
        for delivery in list(self._running.values()):
            self._abandon(delivery, why)

    def _abandon(self, delivery: Delivery, why: str) -> None:
        """The handler does not end: the job has failed, and the slot is free."""
        log.error("job %s of %r: %s", text(delivery.word), text(delivery.key), why)
        self._running.pop(place(delivery), None)
        if delivery.lost:
            self._counts["lost"] += 1
        else:
            delivery.lost = True
            self._counts["failed"] += 1
            self._settling.add(place(delivery), Result("FAIL", None, why.encode()))
        if self.crew is not None:
            self.crew.abandon(delivery)

    # ------------------------------------------------------------ results

    def _take_results(self, now_s: float) -> None:
        results = self._results
        while results:
            delivery, error = results.popleft()
            at = place(delivery)
            if self._running.get(at) is not delivery:
                continue  # abandoned
            del self._running[at]
            if delivery.lost:
                self._counts["lost"] += 1
                log.warning(
                    "job %s of %r: its handler has ended, and its result does not count, because "
                    "the entry was not extended in time",
                    text(delivery.word),
                    text(delivery.key),
                )
                continue
            self._settling.add(at, self._result(delivery, error, now_s))

    def _result(self, delivery: Delivery, error: BaseException | None, now_s: float) -> Result:
        if error is None:
            self._counts["done"] += 1
            self._breaker.succeeded()
            return DONE
        self._counts["failed"] += 1
        reason = job_requests.reason_of(error)
        name = text(delivery.word), text(delivery.key), delivery.attempt
        if isinstance(error, Dead):
            # A verdict about this job, and no sign of an outage.
            log.error("job %s of %r is dead after attempt %d: %s", *name, error)
            return Result("FATAL", None, reason)
        if isinstance(error, Retry):
            log.warning("job %s of %r comes again after attempt %d: %s", *name, error)
            delay_ms = None if error.delay is None else duration_ms("delay", error.delay)
            result = Result("FAIL", delay_ms, reason)
        else:
            log.error("job %s of %r failed, attempt %d", *name, exc_info=error)
            result = Result("FAIL", None, reason)
        self._note_failure(now_s)
        return result

    def _note_failure(self, now_s: float) -> None:
        if self._breaker.failed(now_s):
            log.warning(
                "%d jobs have failed in a row: the worker takes the next one in %.0f s",
                self._options.breaker,
                self._breaker.until_s - now_s,
            )

    # ------------------------------------------------------------ times

    @property
    def _renewal_s(self) -> float:
        return self._timeout_ms / 1000 / EXTEND_SHARE

    def _check_limits(self, now_s: float) -> None:
        """Abandon the handlers that have passed the time limit."""
        limit_s = self._options.time_limit_s
        if limit_s is None or now_s < self._limit_s:
            return
        self._limit_s = NEVER
        for delivery in list(self._running.values()):
            ends_s = max(delivery.begun_s + limit_s, delivery.until_s)
            if now_s < ends_s:
                self._limit_s = min(self._limit_s, ends_s)
                continue
            self._abandon(delivery, f"the handler ran for more than {limit_s:g} s")
            self._note_failure(now_s)

    def _due_extensions(self, now_s: float) -> list[tuple[Delivery, int]]:
        """Deliveries to extend, and by how much. Those that are due soon come along."""
        if now_s < self._renew_s:
            return []
        found = []
        self._renew_s = NEVER
        for delivery in self._running.values():
            if delivery.lost:
                continue
            if delivery.renew_at_s <= now_s + self._renewal_s / 4:
                left_ms = int((delivery.until_s - now_s) * 1000)
                found.append((delivery, max(self._timeout_ms, left_ms)))
                delivery.renew_at_s = now_s + self._renewal_s
            self._renew_s = min(self._renew_s, delivery.renew_at_s)
        return found

    # ------------------------------------------------------------ requests

    def _send(self, now_s: float) -> None:
        server = self._server
        if self._gone or not server.may_ask(now_s):
            return
        if not self._settling.on_its_way:
            settlement = self._settling.take(self._due_extensions(now_s))
            if settlement is not None:
                self._send_settlement(settlement, now_s)
        while (count := self._next_read(now_s)) and server.may_ask(now_s):
            command = self._read_command(count, waits=not server.failing)
            self._ask(Ask(server, [command], Request(None, count)), now_s)

    def _send_settlement(self, settlement: Settlement, now_s: float) -> None:
        """If the group has more entries, they come with the reply. The next requests are sent after
        it, unless it takes its time."""
        commands = settlement.commands(self._held)
        count = self._next_read(now_s) if self._more else 0
        if count:
            commands.append(self._read_command(count, waits=False))
        self._ask(Ask(self._server, commands, Request(settlement, count)), now_s)
        if count:
            self._held_s = now_s + HOLD_S

    def _next_read(self, now_s: float) -> int:
        """The number of entries that the next read asks for; 0: there is none now."""
        if self._held_s or self.stops.since(self._begun):
            return 0
        slots = self._breaker.slots(now_s, self._options.concurrency)
        requests = [_request_of(ask) for ask in self._server.in_flight]
        reads = [request.most for request in requests if request.most]
        if len(reads) >= READS_MAX:
            return 0
        free = slots - len(self._running) - sum(reads)
        return max(0, min(free, -(-slots // READS_MAX)))

    def _read_command(self, count: int, waits: bool) -> Command[Any]:
        self._reads += 1
        reverse = self._reads % LAST_FIRST_EVERY == 0
        made = self._read_commands.get((count, waits, reverse))
        if made is None:
            keys = list(self._held)
            if reverse:
                keys.reverse()
            wait_ms = block_ms(WAIT_MAX_S) if waits else None
            made = job_requests.read_jobs(self._group, self._consumer, keys, count, wait_ms)
            self._read_commands[count, waits, reverse] = made
        return made

    def _ask(self, ask: Ask, now_s: float) -> None:
        self._server.asked(ask, now_s)
        self._counts["requests"] += 1

    def _pause_s(self, now_s: float) -> float:
        server = self._server
        until_s = min(now_s + WAIT_MAX_S, self._limit_s, self._held_s or NEVER)
        if server.may_ask(now_s):
            if not self._settling.on_its_way:
                until_s = min(until_s, self._renew_s)
        elif not server.in_flight:
            until_s = min(until_s, server.retry_at_s)
        if self._breaker.until_s > now_s:
            until_s = min(until_s, self._breaker.until_s)
        if self._stop_s is not None and self._stop_s > now_s:
            until_s = min(until_s, self._stop_s)
        return max(0.0, until_s - now_s)

    # ------------------------------------------------------------ answers

    def _absorb(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            ask = answer.ask
            if ask not in self._server.in_flight:
                continue
            settlement, most = _request_of(ask)
            if settlement is not None:
                results = answer.replies[:-1] if most else answer.replies
                self._held_s = 0.0
                self._end_settlement(settlement, results, answer.error or _refusal(results))
            error = answer.error or _refusal(answer.replies)
            if error is not None:
                self._note_error(ask, error)
            elif self._server.answered(ask):
                self._counts["reconnects"] += 1
                log.info("the server answers again")
            if most and answer.error is None:
                self._take_reply(most, answer.replies[-1])

    def _end_settlement(
        self, settlement: Settlement, replies: list[Any], error: Exception | None
    ) -> None:
        """The results are sent again if the reply was lost, or the server could not act."""
        if error is None:
            self._note_settled(settlement, replies)
            return
        self._settling.failed(self._running)
        for delivery, _ in settlement.extended:
            delivery.renew_at_s = self._renew_s = self._now()

    def _take_reply(self, most: int, found: Any) -> None:
        """The reply to a read of up to `most` entries."""
        if isinstance(found, ResponseError):
            return
        self._more = sum([len(entries) for _, entries in found]) == most
        for shard, entries in found:
            self._take_entries(self._named[shard], shard, entries)

    def _note_error(self, ask: Ask, error: Exception) -> None:
        """The server did not answer, or an error that may end later."""
        self._more = False
        if isinstance(error, ResponseError) and any(part in str(error) for part in NO_GROUP):
            self._server.answered(ask)
            self._gone = True
            return
        first = self._server.failed(ask, error, self._now())
        if not (lost(error) or is_temporary(error)):
            raise error
        if first:
            log.warning("the worker waits for its server: %s", error)

    def _note_settled(self, settlement: Settlement, replies: list[Any]) -> None:
        self._settling.answered()
        self._counts["dead"] += settlement.dead(replies)
        self._counts["extended"] += len(settlement.extended)
        for delivery in settlement.lost(replies):
            delivery.lost = True
            log.warning(
                "job %s of %r was not extended in time: it is delivered again",
                text(delivery.word),
                text(delivery.key),
            )

    def _take_entries(self, key: Key, shard: str, entries: list[Arrived]) -> None:
        now_s = self._now()
        renew_at_s = now_s + self._renewal_s
        for entry in entries:
            at = (key, entry.word)
            if entry.fields is None or not self._settling.is_delivered_again(at):
                continue
            running = self._running.get(at)
            if running is not None:
                # This process was suspended for longer than the timeout: its handler continues.
                running.lost = False
                continue
            if self.stops.since(self._begun) or now_s < self._breaker.until_s:
                self._settling.add(at, GIVEN_BACK)
                self._counts["given_back"] += 1
                continue
            delivery = Delivery(key, entry.word, entry.deliveries + 1, now_s, renew_at_s)
            self._running[at] = delivery
            assert self.crew is not None
            self.crew.begin(delivery, shard, [entry.word, *entry.fields])
        self._renew_s = min(self._renew_s, renew_at_s)
        self._limit_s = min(self._limit_s, now_s + (self._options.time_limit_s or NEVER))
        new = [entry.word for entry in entries if not entry.deliveries]
        if new:
            self._places[key].reach(read_id(new[-1]))


def _request_of(ask: Ask) -> Request:
    request = ask.about
    assert isinstance(request, Request)
    return request


def _refusal(replies: Sequence[Any]) -> Exception | None:
    return next((reply for reply in replies if isinstance(reply, ResponseError)), None)
