"""Servers in memory that answer the words of a stream's reader as docs/commands describes.

A world has a time that only its steps move, servers with clocks that are wrong by some seconds, and
a network between them and the reader: replies come late, get lost, or come twice as late as the
reader waits. Nothing here knows how the client works; it only knows its words.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from millstream.client import ID
from millstream.client.core.steps import Answer, Ask

PART_MAX = 2**64 - 1
ZERO = ID(0, 0)
START_MS = 1_700_000_000_000
TIMEOUT_MS = 5000


def below(entry_id: ID) -> ID:
    if entry_id.seq:
        return ID(entry_id.ms, entry_id.seq - 1)
    return ID(entry_id.ms - 1, PART_MAX) if entry_id.ms else ZERO


@dataclass
class SimStream:
    """One stream under one incarnation."""

    incarnation: int
    last: ID = ZERO
    entries: dict[ID, str] = field(default_factory=dict)
    reserved: list[ID] = field(default_factory=list)
    max_evicted: ID = ZERO
    sealed: bool = False
    followed: bool = False
    children: list[str] = field(default_factory=list)
    parents: list[str] = field(default_factory=list)

    def watermark(self) -> ID:
        return below(min(self.reserved)) if self.reserved else self.last

    def visible(self) -> list[ID]:
        mark = self.watermark()
        return sorted(entry_id for entry_id in self.entries if entry_id <= mark)

    def position(self) -> ID:
        """The last ID handed out below the oldest reservation, as far as a reader sees it."""
        return self.watermark()


class SimServer:
    """A server: streams by key, a clock, and whether it can be reached."""

    def __init__(self, world: World, name: str, skew_ms: int) -> None:
        self.world = world
        self.name = name
        self.skew_ms = skew_ms
        self.streams: dict[str, SimStream] = {}
        self.up = True
        self.promised = ZERO

    def now_ms(self) -> int:
        return self.world.now_ms + self.skew_ms

    # ------------------------------------------------------------ what writers do

    def make(self, key: str, floor: ID = ZERO, parents: tuple[str, ...] = ()) -> SimStream:
        assert key not in self.streams
        self.world.incarnations += 1
        stream = SimStream(self.world.incarnations, floor, parents=list(parents))
        self.streams[key] = stream
        return stream

    def next_id(self, stream: SimStream) -> ID:
        least = max(stream.last, self.promised)
        if self.now_ms() > least.ms:
            return ID(self.now_ms(), 0)
        return ID(least.ms, least.seq + 1) if least.seq < PART_MAX else ID(least.ms + 1, 0)

    def append(self, key: str) -> ID:
        stream = self.streams.get(key) or self.make(key)
        assert not stream.sealed
        stream.last = self.next_id(stream)
        stream.entries[stream.last] = "x"
        return stream.last

    def reserve(self, key: str) -> ID:
        stream = self.streams.get(key) or self.make(key)
        assert not stream.sealed
        stream.last = self.next_id(stream)
        stream.reserved.append(stream.last)
        return stream.last

    def settle(self, key: str, entry_id: ID, completed: bool) -> None:
        stream = self.streams[key]
        stream.reserved.remove(entry_id)
        if completed:
            stream.entries[entry_id] = "x"

    def evict(self, key: str, count: int) -> list[ID]:
        stream = self.streams[key]
        gone = stream.visible()[:count]
        for entry_id in gone:
            del stream.entries[entry_id]
            stream.max_evicted = max(stream.max_evicted, entry_id)
        return gone

    def seal(self, key: str, children: list[str], elsewhere: bool) -> ID:
        stream = self.streams[key]
        stream.sealed = True
        stream.children = list(children)
        for child in children if not elsewhere else []:
            made = self.streams.get(child) or self.make(child)
            made.last = max(made.last, stream.last)
            if key not in made.parents:
                made.parents.append(key)
        return stream.last

    # ------------------------------------------------------------ what a reader sends

    def run(self, words: tuple[Any, ...]) -> Any:
        name = str(words[0])
        return getattr(self, "do_" + name.lower())(*map(_text, words[1:]))

    def do_tinfo(self, key: str) -> dict[str, Any] | None:
        stream = self.streams.get(key)
        if stream is None:
            return None
        return {
            "last-id": str(stream.watermark()),
            "max-evicted-id": str(stream.max_evicted),
            "length": len(stream.visible()),
            "incarnation": stream.incarnation,
            "handed-out-id": str(stream.last),
            "reservations": len(stream.reserved),
            "sealed": int(stream.sealed),
            "parents": list(stream.parents),
            "children": list(stream.children),
        }

    def do_tcreate(self, key: str) -> Any:
        if key in self.streams:
            return ResponseError("BUSYKEY Target key name already exists.")
        self.make(key)
        return "OK"

    def do_tseek(self, key: str, after: str, n: str) -> list[Any]:
        stream = self.streams.get(key)
        found = [i for i in stream.visible() if i > ID.parse(after)] if stream else []
        return [len(found), str(found[-1])] if found else [0, None]

    def do_tmread(self, *words: str) -> list[Any]:
        count, clock, keys, places = tmread_words(words)
        if clock:
            self.promised = max(self.promised, ID(self.now_ms() - 1, PART_MAX))
        return [self.row(key, place, count, clock) for key, place in zip(keys, places, strict=True)]

    def row(self, key: str, place: str, count: int, clock: bool) -> list[Any]:
        stream = self.streams.get(key)
        if stream is None:
            at = "0.0" if place in ("", "$") else place
            return [key, at, at, [], 0, None]
        if clock:
            stream.followed = True
        after = stream.position() if place in ("", "$") else ID.parse(place)
        prev = max(after, stream.max_evicted)
        waiting = [entry_id for entry_id in stream.visible() if entry_id > prev]
        sent = waiting[:count]
        if len(sent) < len(waiting):
            following = sent[-1] if sent else prev
        else:
            following = stream.watermark()
            if clock and not stream.reserved and not stream.sealed:
                following = max(following, ID(self.now_ms() - 1, PART_MAX))
            following = max(following, prev)
        ended = stream.sealed and not stream.reserved and len(sent) == len(waiting)
        entries = [[str(entry_id), "n", stream.entries[entry_id]] for entry_id in sent]
        return [key, str(prev), str(following), entries, int(ended), stream.incarnation]

    def has_news(self, words: tuple[str, ...]) -> bool:
        _, _, keys, places = tmread_words(words)
        return any(
            row[3] or row[4]
            for key, place in zip(keys, places, strict=True)
            if (row := self.row(key, place, 1, False))[5] is not None
        )


def tmread_words(words: tuple[str, ...]) -> tuple[int, bool, list[str], list[str]]:
    at = words.index("STREAMS")
    names = words[at + 1 :]
    half = len(names) // 2
    assert half
    assert len(names) == 2 * half
    return int(words[0]), "CLOCK" in words[:at], list(names[:half]), list(names[half:])


def _text(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


@dataclass(eq=False)
class Flight:
    """An ask on its way. The server runs it at `run_ms`, or once it has news."""

    ask: Ask
    server: SimServer
    run_ms: int
    delay_ms: int
    lost: bool
    until_ms: int
    give_up_ms: int
    answer: Answer | None = None
    answer_ms: int = 0


class World:
    """Servers, a network and the time."""

    def __init__(self, random: Random, faults: bool) -> None:
        self.random = random
        self.now_ms = START_MS
        self.incarnations = 0
        self.servers: dict[str, SimServer] = {}
        self.faults = faults
        self.flights: list[Flight] = []

    def clock_s(self) -> float:
        return (self.now_ms - START_MS) / 1000

    def wall_s(self) -> float:
        return self.now_ms / 1000

    def start(self, ask: Ask) -> None:
        server = self.servers[ask.server.client]  # type: ignore[index]
        random = self.random
        waits_ms = int(ask.wait_s * 1000)
        flight = Flight(
            ask,
            server,
            self.now_ms + random.choice((0, 0, 1, 3)),
            random.choice((0, 0, 1, 5)),
            self.faults and random.random() < 0.04,
            self.now_ms + waits_ms,
            self.now_ms + waits_ms + TIMEOUT_MS,
        )
        if self.faults and random.random() < 0.01:
            flight.delay_ms = 3 * TIMEOUT_MS
        self.flights.append(flight)

    def crash(self, server: SimServer) -> None:
        """The server cannot be reached; replies on their way to the reader are lost."""
        server.up = False
        for flight in self.flights:
            if flight.server is server and flight.answer is None:
                self._fail(flight)

    def _fail(self, flight: Flight) -> None:
        flight.answer = Answer(flight.ask, error=RedisConnectionError("Connection closed"))
        flight.answer_ms = self.now_ms

    def next_ms(self) -> float:
        """The time of the next event of messages on their way; infinity for never."""
        moments = [
            flight.answer_ms
            if flight.answer is not None
            else flight.run_ms
            if self.now_ms < flight.run_ms
            else min(flight.until_ms, flight.give_up_ms)
            for flight in self.flights
        ]
        return min((m for m in moments if m > self.now_ms), default=float("inf"))

    def proceed(self) -> None:
        """Let the servers run the requests that have arrived."""
        for flight in self.flights:
            if flight.answer is not None:
                continue
            if not flight.server.up:
                self._fail(flight)
            elif self.now_ms >= flight.run_ms and self._is_due(flight):
                self._run(flight)
            elif self.now_ms >= flight.give_up_ms:
                flight.answer = Answer(flight.ask, error=RedisTimeoutError("no reply in time"))
                flight.answer_ms = self.now_ms

    def _is_due(self, flight: Flight) -> bool:
        [command, *others] = flight.ask.commands
        waits = not others and command.words[0] == "TMREAD" and "BLOCK" in command.words
        if not waits or self.now_ms >= flight.until_ms:
            return True
        return flight.server.has_news(tuple(map(_text, command.words[1:])))

    def _run(self, flight: Flight) -> None:
        replies = []
        for command in flight.ask.commands:
            reply = flight.server.run(command.words)
            if isinstance(reply, ResponseError):
                accepted = command.accepts is not None and str(reply).startswith(command.accepts)
                replies.append(None if accepted else reply)
            else:
                replies.append(command.read(reply))
        if flight.lost:
            self._fail(flight)
        else:
            flight.answer = Answer(flight.ask, replies)
            flight.answer_ms = self.now_ms + flight.delay_ms
            if flight.answer_ms > flight.give_up_ms:
                error = RedisTimeoutError("no reply in time")
                flight.answer = Answer(flight.ask, error=error)
                flight.answer_ms = flight.give_up_ms

    def arrived(self) -> list[Answer]:
        """The answers that have arrived at the reader."""
        self.proceed()
        come = [f for f in self.flights if f.answer is not None and f.answer_ms <= self.now_ms]
        self.flights = [flight for flight in self.flights if flight not in come]
        self.random.shuffle(come)
        return [flight.answer for flight in come if flight.answer is not None]
