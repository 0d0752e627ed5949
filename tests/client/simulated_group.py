"""A managed group in memory, and a worker's core that works on it without threads and sockets.

The time is moved only by the world. Requests and replies take some time, and may get lost. Nothing
here knows how the worker decides: the group knows the words of its commands, as docs/commands
describes them, and the crew knows how long each handler takes and how it ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from millstream.client.core.options import WorkerOptions, worker_options
from millstream.client.core.steps import Answer, Ask, Call, Command, GiveUp, Sleep, Together, Wait
from millstream.client.core.working import Request, Work
from millstream.client.jobs import Delivery

CONSUMER = "worker-1"
NEVER = float("inf")


def options(**given: Any) -> WorkerOptions:
    """Options of a worker with short times."""
    defaults: dict[str, Any] = {
        "configure": True,
        "concurrency": 4,
        "timeout": 30.0,
        "backoff": None,
        "max_deliver": None,
        "dead_letter": None,
        "drain": 30.0,
        "breaker": 0,
        "time_limit": None,
    }
    return worker_options(**{**defaults, **given})


@dataclass
class Entry:
    """An entry in the group. `owner` is None while it waits."""

    key: str
    word: str
    due_s: float = 0.0
    owner: str | None = None
    deliveries: int = 0
    ended: str | None = None
    """acknowledged, or dead with its reason."""


@dataclass
class Group:
    """One group of the same name on every stream."""

    now: Callable[[], float]
    entries: dict[tuple[str, str], Entry] = field(default_factory=dict)
    backoff_s: float = 0.0
    max_deliver: int = 0
    timeout_s: float = 30.0
    log: list[tuple[Any, ...]] = field(default_factory=list)
    """Every command with its time."""
    refusals: list[ResponseError] = field(default_factory=list)
    """Errors of the next commands."""

    def add(self, key: str, number: int) -> Entry:
        entry = self.entries[key, f"{number}-0"] = Entry(key, f"{number}-0")
        return entry

    def open_entries(self, key: str | None = None) -> list[Entry]:
        return [e for e in self.entries.values() if e.ended is None and key in (None, e.key)]

    def held(self, consumer: str) -> list[Entry]:
        return [entry for entry in self.open_entries() if entry.owner == consumer]

    def execute(self, words: tuple[Any, ...]) -> Any:
        """The raw reply; None for a read that finds nothing."""
        self.log.append((self.now(), *words))
        if self.refusals:
            return self.refusals.pop(0)
        reply: Any = getattr(self, f"do_{words[0].lower()}")(*words[1:])
        return reply

    def do_tgroup(self, key: str, group: str, *_: Any) -> str:
        return "OK"

    def do_tinfo(self, key: str, *words: Any) -> dict[str, Any] | None:
        return (
            {"timeout": int(self.timeout_s * 1000)}
            if words
            else {
                "incarnation": 1,
                "sealed": 0,
            }
        )

    def do_xinfo(self, _groups: str, key: str) -> list[Any]:
        last = max((int(e.word[:-2]) for e in self.entries.values() if e.deliveries), default=0)
        return [{"name": "g", "lag": 0, "pending": 0, "last-delivered-id": f"{last}-0"}]

    def do_xreadgroup(self, _group: str, _name: str, consumer: str, *words: Any) -> Any:
        streams = words[words.index("STREAMS") + 1 :]
        left = words[1]
        reply = {}
        for key in streams[: len(streams) // 2]:
            for entry in self.open_entries(key):
                if entry.due_s <= self.now() and 0 < self.max_deliver <= entry.deliveries:
                    entry.ended = "dead: timeout"
            due = [e for e in self.open_entries(key) if e.due_s <= self.now()]
            taken = sorted(due, key=lambda e: (not e.deliveries, int(e.word[:-2])))[:left]
            left -= len(taken)
            if taken:
                reply[key] = [
                    [e.word, ["n", e.word[:-2]], 0 if not e.deliveries else 5, e.deliveries]
                    for e in taken
                ]
            for entry in taken:
                entry.owner = consumer
                entry.deliveries += 1
                entry.due_s = self.now() + self.timeout_s
        return reply or None

    def do_xack(self, key: str, _group: str, *words: str) -> int:
        known = [self.entries[key, word] for word in words]
        found = [entry for entry in known if entry.ended is None and entry.deliveries]
        for entry in found:
            entry.ended = "acknowledged"
        return len(found)

    def do_tnack(self, key: str, _group: str, consumer: str, mode: str, *words: Any) -> Any:
        if words == ("ALL",):
            mine = [e for e in self.held(consumer) if e.key == key]
            for entry in mine:
                self._give_back(entry, mode, 0.0, "")
            return len(mine)
        given = dict(zip(words[: words.index("IDS") : 2], words[1 : words.index("IDS") : 2]))  # noqa: B905
        delay_s = given["DELAY"] / 1000 if "DELAY" in given else self.backoff_s
        reason = given.get("REASON", b"").decode()
        codes = []
        for word in words[words.index("IDS") + 2 :]:
            entry = self.entries[key, word]
            if entry.ended is not None or entry.owner != consumer:
                codes.append(-1)
            else:
                codes.append(self._give_back(entry, mode, delay_s, reason))
        return codes

    def _give_back(self, entry: Entry, mode: str, delay_s: float, reason: str) -> int:
        entry.owner = None
        entry.due_s = self.now()
        if mode == "SILENT":
            entry.deliveries -= 1
            return 1
        if mode == "FATAL" or 0 < self.max_deliver <= entry.deliveries:
            entry.ended = f"dead: {reason}"
            return 2
        entry.due_s += delay_s
        return 1

    def do_textend(self, key: str, _group: str, consumer: str, ms: int, *words: Any) -> list[int]:
        codes = []
        for word in words[2:]:
            entry = self.entries[key, word]
            mine = entry.ended is None and entry.owner == consumer
            codes.append(1 if mine else -1)
            if mine:
                entry.due_s = self.now() + ms / 1000
        return codes

    def do_xgroup(self, *_: Any) -> int:
        return 0


def most_of(ask: Ask) -> int:
    """The number of entries that it reads."""
    return ask.about.most if isinstance(ask.about, Request) else 0


@dataclass(eq=False)
class Flight:
    """A request on its way. It is lost before the server has it, after that, or not."""

    ask: Ask
    arrives_s: float
    waits_until_s: float
    loss: str | None = None
    raw: list[Any] | None = None
    answers_s: float = NEVER


End = tuple[float, BaseException | None]
"""How long a handler takes, and its error."""


class World:
    """A worker, its server and its handlers."""

    def __init__(
        self,
        given: WorkerOptions,
        keys: tuple[str, ...] = ("jobs",),
        ends: Callable[[Delivery], End] = lambda delivery: (0.01, None),
        network: Callable[[], tuple[float, str | None]] = lambda: (0.001, None),
    ) -> None:
        self.now_s = 100.0
        self.group = Group(lambda: self.now_s, timeout_s=given.timeout_ms / 1000)
        self.work = Work("client", keys, ("g", CONSUMER), "0", given, lambda: self.now_s)
        self.work.crew = self
        self.options = given
        self.ends = ends
        self.network = network
        self.flights: dict[Ask, Flight] = {}
        self.running: dict[Delivery, BaseException | None] = {}
        self.begun: list[tuple[float, Delivery]] = []
        self.abandoned: list[Delivery] = []
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._woken = False
        self.attended = False
        self.start(self.work.run(self.work.stops.begin()))

    def start(self, steps: Generator[Any, Any, None]) -> None:
        """Do these steps from now on, in place of those before."""
        self._steps = steps
        self._send: Any = None
        self.finished = False

    # ------------------------------------------------------------ the crew

    def attend(self) -> None:
        assert not self.attended
        self.attended = True

    def leave(self) -> bool:
        self.attended = False
        return False

    def begin(self, delivery: Delivery, shard: str, entry: list[Any]) -> None:
        assert self.attended
        seconds, error = self.ends(delivery)
        self.running[delivery] = error
        self.begun.append((self.now_s, delivery))
        assert len(self.running) <= self.options.concurrency
        if seconds < NEVER:
            self.at(self.now_s + seconds, lambda: self._end(delivery))

    def _end(self, delivery: Delivery) -> None:
        if delivery in self.running and self.work.finish(delivery, self.running.pop(delivery)):
            self._woken = True

    def abandon(self, delivery: Delivery) -> None:
        self.running.pop(delivery, None)
        self.abandoned.append(delivery)

    # ------------------------------------------------------------ time

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do something at a time, before the worker sees that time."""
        heapq.heappush(self.events, (time_s, next(self._numbers), act))

    def stop_at(self, time_s: float) -> None:
        def stop() -> None:
            self.work.stops.stop()
            self._woken = True

        self.at(time_s, stop)

    def run_until(self, time_s: float) -> None:
        """Run the worker until a time, or to its end."""
        steps, then_s = 0, self.now_s
        while self.now_s < time_s and not self.finished:
            self._step(time_s)
            steps = steps + 1 if self.now_s == then_s else 0
            then_s = self.now_s
            assert steps < 1000, "the worker asks again and again without a pause"

    def run_to_the_end(self) -> None:
        for _ in range(100_000):
            if self.finished:
                return
            self._step(NEVER)
        raise AssertionError("the worker does not end")

    def _step(self, until_s: float) -> None:
        try:
            step = self._steps.send(self._send)
        except StopIteration:
            self.finished = True
            return
        self._send = None
        match step:
            case Call(command):
                self._send = self._at_once(command)
            case Together(asks):
                self._send = [[self._at_once(c) for c in ask.commands] for ask in asks]
            case GiveUp(asks):
                for ask in asks:
                    self.flights.pop(ask, None)
            case Sleep(seconds):
                self._pass(self.now_s + seconds)
            case Wait(asks, seconds):
                self._check(list(asks))
                assert seconds is not None
                self.work.before_wait()
                self._send = self._wait(list(asks), min(self.now_s + seconds, until_s))

    def _at_once(self, command: Command[Any]) -> Any:
        reply = self.group.execute(command.words)
        if isinstance(reply, ResponseError):
            raise reply
        return command.read(reply)

    def _check(self, asks: list[Ask]) -> None:
        """Never more entries than free slots; two reads."""
        reads = [most for most in map(most_of, asks) if most]
        assert len(reads) <= 2
        assert sum(reads) + len(self.running) <= self.options.concurrency

    def _wait(self, asks: list[Ask], until_s: float) -> list[Answer]:
        self.flights = {ask: flight for ask, flight in self.flights.items() if ask in asks}
        for ask in asks:
            if ask not in self.flights:
                delay_s, loss = self.network()
                arrives_s = self.now_s + delay_s
                self.flights[ask] = Flight(ask, arrives_s, arrives_s + ask.wait_s, loss)
        while True:
            answers = [a for flight in list(self.flights.values()) for a in self._progress(flight)]
            if answers or self._woken or self.now_s >= until_s:
                self._woken = False
                return answers
            self._pass(min(until_s, self._next_s()))

    def _next_s(self) -> float:
        times = [self.events[0][0]] if self.events else []
        for flight in self.flights.values():
            if flight.raw is not None or flight.loss == "request":
                times.append(flight.answers_s)
            elif self.now_s < flight.arrives_s:
                times.append(flight.arrives_s)
            else:  # a read that waits
                times.append(flight.waits_until_s)
                times += [e.due_s for e in self.group.open_entries() if e.due_s > self.now_s]
        return min(times, default=NEVER)

    def _pass(self, time_s: float) -> None:
        """Let the time pass, up to the first event."""
        if self.events and self.events[0][0] <= time_s:
            self.now_s = max(self.now_s, self.events[0][0])
            heapq.heappop(self.events)[2]()
        else:
            assert time_s < NEVER, "nothing will ever happen"
            self.now_s = max(self.now_s, time_s)

    def _progress(self, flight: Flight) -> Iterator[Answer]:
        if self.now_s < flight.arrives_s:
            return
        if flight.loss == "request" and flight.answers_s == NEVER:
            flight.answers_s = self.now_s + 0.5
        if flight.raw is None and flight.loss != "request":
            raw = [self.group.execute(command.words) for command in flight.ask.commands]
            if most_of(flight.ask) and raw == [None] and self.now_s < flight.waits_until_s:
                self.group.log.pop()
                return
            flight.raw = raw
            flight.answers_s = self.now_s + 0.001
        if self.now_s < flight.answers_s:
            return
        if flight.loss is not None:
            yield Answer(flight.ask, error=RedisConnectionError("lost"))
            return
        assert flight.raw is not None
        yield Answer(
            flight.ask,
            [
                raw if isinstance(raw, ResponseError) else command.read(raw)
                for command, raw in zip(flight.ask.commands, flight.raw, strict=True)
            ],
        )
