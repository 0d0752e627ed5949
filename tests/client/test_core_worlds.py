"""The client's core in random worlds, without a socket: one seed is one world.

Three shards or more on servers with skewed clocks are written, reserved, trimmed, deleted, split
and merged, while a reader follows them over a network that loses replies. The reader is stopped and
continued from its token, moved, and cancelled while it waits. What it was given is compared with
what the servers had.

    python -m tests.client.test_core_worlds 17           one world again
    python -m tests.client.test_core_worlds --seeds 5000 more of them
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from random import Random
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from tests.client.simulated import Flight, SimServer, World

from millstream.client import ID, Gap, RecordsExpired, Shard, ShardUnavailable
from millstream.client.core import position as positions
from millstream.client.core.follower import Follower
from millstream.client.core.options import Options
from millstream.client.core.shard_order import Servers
from millstream.client.core.steps import Notify, Sleep, Steps, Together, Wait

SEEDS = 200
STEPS = 120
UNREACHABLE = (RedisConnectionError, RedisTimeoutError, ShardUnavailable)


class Cancelled(BaseException):
    """The exception of asyncio in a cancelled task."""


@dataclass
class Fact:
    """An entry, from the time when its ID was handed out."""

    shard: str
    incarnation: int
    id: ID
    state: str = "visible"  # or held, given up, evicted, deleted


class Writers:
    """Events in the streams."""

    def __init__(self, world: World, random: Random, kind: Kind) -> None:
        self.world = world
        self.random = random
        self.kind = kind
        self.home: dict[str, Any] = {}
        """The name of the server of each key. It takes the place of a connection."""
        self.facts: dict[tuple[str, int, ID], Fact] = {}
        self.incarnations: dict[tuple[str, ID], int] = {}
        self.pending: dict[str, tuple[str, ...]] = {}
        """Children on other servers that are not created yet, with their parents."""
        self.parents: dict[str, set[str]] = {}
        self.deleted: set[str] = set()
        self.finals: dict[str, ID] = {}
        self.made = 0
        self.active = True

    def server(self, key: str) -> Any:
        return self.world.servers[self.home[key]]

    def stream(self, key: str) -> Any:
        return self.server(key).streams.get(key)

    def note(self, key: str, entry_id: ID, state: str = "visible") -> None:
        incarnation = self.stream(key).incarnation
        assert (key, incarnation, entry_id) not in self.facts
        assert (key, entry_id) not in self.incarnations, "an ID is used twice"
        self.incarnations[key, entry_id] = incarnation
        self.facts[key, incarnation, entry_id] = Fact(key, incarnation, entry_id, state)

    def fact(self, key: str, entry_id: ID) -> Fact:
        return self.facts[key, self.stream(key).incarnation, entry_id]

    def open_keys(self) -> list[str]:
        """The streams that may be written: those that are not sealed and not still to be made."""
        return [
            key
            for key in self.home
            if key not in self.pending and not (self.stream(key) and self.stream(key).sealed)
        ]

    # ------------------------------------------------------------ what may happen

    def act(self) -> None:
        acts = [self.append] * 8 + [self.reserve] * 2 + [self.settle] * 4
        acts += [self.split, self.merge, self.create_pending] if self.kind.splits else []
        acts += [self.evict] * 2 if self.kind.evicts else []
        acts += [self.delete] if self.kind.deletes else []
        acts += [self.crash, self.restart, self.restart] if self.kind.faults else []
        acts += [self.jump] if self.kind.skews else []
        self.random.choice(acts)()

    def append(self) -> None:
        for key in self.some(self.open_keys()):
            for _ in range(self.random.choice((1, 1, 2, 5))):
                self.note(key, self.server(key).append(key))

    def reserve(self) -> None:
        for key in self.some(self.open_keys()):
            self.note(key, self.server(key).reserve(key), "held")

    def settle(self) -> None:
        held = [fact for fact in self.facts.values() if fact.state == "held"]
        for fact in self.some(held):
            completed = self.random.random() < 0.7
            self.server(fact.shard).settle(fact.shard, fact.id, completed)
            fact.state = "visible" if completed else "given up"

    def evict(self) -> None:
        keys = [key for key in self.home if self.stream(key) and self.stream(key).visible()]
        for key in self.some(keys):
            for entry_id in self.server(key).evict(key, self.random.choice((1, 2, 100))):
                self.fact(key, entry_id).state = "evicted"

    def delete(self) -> None:
        keys = [key for key in self.home if self.stream(key)]
        for key in self.some(keys):
            if self.random.random() < 0.7:
                continue
            incarnation = self.stream(key).incarnation
            del self.server(key).streams[key]
            self.deleted.add(key)
            for fact in self.facts.values():
                if fact.shard == key and fact.incarnation == incarnation:
                    ends = {"visible": "deleted", "held": "given up"}
                    fact.state = ends.get(fact.state, fact.state)
            self.world.now_ms += 1

    def split(self) -> None:
        keys = [key for key in self.open_keys() if self.stream(key)]
        if len(self.home) < 12:
            for key in self.some(keys):
                self.seal([key], [self.new_name() for _ in range(self.random.choice((1, 2, 3)))])

    def merge(self) -> None:
        keys = [key for key in self.open_keys() if self.stream(key)]
        if len(keys) >= 2 and len(self.home) < 12:
            self.seal(self.random.sample(keys, 2), [self.new_name()])

    def seal(self, parents: list[str], children: list[str]) -> None:
        for child in children:
            self.parents[child] = set(parents)
        servers = {self.home[parent] for parent in parents}
        elsewhere = len(servers) > 1 or self.random.random() < 0.4
        for parent in parents:
            final = self.server(parent).seal(parent, children, elsewhere)
            # Promises to readers hold for children on other servers only if these know of them.
            self.finals[parent] = max(final, self.server(parent).promised)
        for child in children:
            names = list(self.world.servers) if elsewhere else [self.home[parents[0]]]
            self.home[child] = self.random.choice(names)
            if elsewhere:
                self.pending[child] = tuple(parents)

    def create_pending(self) -> None:
        for child in self.some(list(self.pending)):
            parents = self.pending.pop(child)
            floor = max(self.finals[parent] for parent in parents)
            if self.stream(child) is None:
                self.server(child).make(child, floor, parents)

    def crash(self) -> None:
        for server in self.some(list(self.world.servers.values())):
            self.world.crash(server)

    def restart(self) -> None:
        for server in self.world.servers.values():
            server.up = True

    def jump(self) -> None:
        for server in self.some(list(self.world.servers.values())):
            server.skew_ms += self.random.choice((1, 50, 2000))

    def some(self, of: list[Any]) -> list[Any]:
        return [self.random.choice(of)] if of else []

    def new_name(self) -> str:
        self.made += 1
        return f"c{self.made}"

    # ------------------------------------------------------------ the end

    def finish(self) -> None:
        """Settle open reservations, and seal every stream, so that a reader ends."""
        self.active = False
        self.restart()
        self.world.faults = False
        while self.pending:
            self.create_pending()
        for fact in self.facts.values():
            if fact.state == "held":
                self.server(fact.shard).settle(fact.shard, fact.id, True)
                fact.state = "visible"
        for key in self.open_keys():
            if self.stream(key) is None:
                self.server(key).make(key)
            self.server(key).seal(key, [], False)

    def was_cut_off(self, key: str) -> bool:
        """True if the stream or one before it was deleted, so that it may never be found."""
        return key in self.deleted or any(map(self.was_cut_off, self.parents.get(key, ())))

    def resolve(self, name: str) -> Shard:
        return Shard(name, self.home[name])


@dataclass(frozen=True)
class Kind:
    """The events in a world, and the reads of its reader."""

    splits: bool
    evicts: bool
    deletes: bool
    faults: bool
    skews: bool
    strict: bool
    skip: bool
    cancels: bool
    batch: int
    start: str
    packs: bool

    @classmethod
    def of(cls, random: Random) -> Kind:
        def often(share: float) -> bool:
            return random.random() < share

        return cls(
            splits=often(0.7),
            evicts=often(0.3),
            deletes=often(0.2),
            faults=often(0.5),
            skews=often(0.5),
            strict=often(0.8),
            skip=often(0.5),
            cancels=often(0.3),
            batch=random.choice((1, 2, 3, 100)),
            start=random.choice(("trim_horizon",) * 4 + ("latest", "time")),
            packs=often(0.5),
        )


class Reader:
    """A stream's follower, driven step by step in the time of the world."""

    def __init__(self, world: World, writers: Writers, kind: Kind, random: Random) -> None:
        self.world, self.writers, self.kind, self.random = world, writers, kind, random
        self.expired: list[tuple[str, ID, ID | None]] = []
        self.reported: list[Gap] = []
        self.records: list[tuple[str, int, ID]] = []
        self.late: list[bool] = []
        self.watermarks: list[tuple[ID, int]] = []
        self.gaps: list[Gap] = []
        self.spins = self.spun_ms = 0
        self.follower = self.new_follower()

    def new_follower(self, end: Any = None) -> Follower:
        options = Options(
            batch=self.kind.batch,
            order="strict" if self.kind.strict else "available",
            on_gap="skip" if self.kind.skip else "raise",
            max_wait_s=None,
            clock=None,
            create=True,
            end=positions.parse_end(end),
        )
        servers = Servers("A", self.writers.resolve)
        follower = Follower(servers, options, self.world.clock_s, self.world.wall_s)
        if self.kind.packs:
            follower.tokens.packed_from = 1
        return follower

    # ------------------------------------------------------------ carrying steps out

    def run(self, steps: Steps[Any], cancel: float = 0.0) -> Any:
        try:
            step = next(steps)
            while True:
                if cancel and self.random.random() < cancel:
                    if isinstance(step, Wait) and self.random.random() < 0.8:
                        self.start(list(step.asks))  # requests that were sent stay on their way
                    step = steps.throw(Cancelled())
                    continue
                try:
                    result = self.do(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value

    def do(self, step: Any) -> Any:
        match step:
            case Notify(event):
                if isinstance(event, Gap):
                    self.reported.append(event)
            case Sleep(seconds):
                self.pass_time(int(seconds * 1000) + 1)
            case Together(asks):
                return self.together(list(asks))
            case Wait(asks, seconds):
                return self.wait(list(asks), seconds)
        return None

    def wait(self, asks: list[Any], seconds: float | None) -> list[Any]:
        self.start(asks)
        endless = seconds is None or seconds == float("inf")
        until_ms = float("inf") if endless else self.world.now_ms + ceil((seconds or 0) * 1000)
        self.spins = self.spins + 1 if self.world.now_ms == self.spun_ms else 0
        self.spun_ms = self.world.now_ms
        assert self.spins < 100, "the reader spins"
        while True:
            answers = self.world.arrived()
            if answers or self.world.now_ms >= until_ms:
                return answers
            self.jump(until_ms)

    def together(self, asks: list[Any]) -> list[Any]:
        for ask in asks:
            self.world.start(ask)
        answers: dict[Any, Any] = {}
        others = []
        while True:
            for answer in self.world.arrived():
                if answer.ask in asks:
                    answers[answer.ask] = answer
                else:
                    others.append(answer)
            if len(answers) == len(asks):
                break
            self.jump(float("inf"))
        for answer in others:  # they come with the next wait
            self.world.flights.append(arrived_flight(answer, self.world.now_ms))
        found = []
        for ask in asks:
            if answers[ask].error is not None:
                raise answers[ask].error
            for reply in answers[ask].replies:
                if isinstance(reply, Exception):
                    raise reply
            found.append(answers[ask].replies)
        return found

    def start(self, asks: list[Any]) -> None:
        under_way = [flight.ask for flight in self.world.flights]
        for ask in [ask for ask in asks if ask not in under_way]:
            for shard in getattr(ask.about, "shards", ()):
                assert not shard.buffer, "a shard with a buffer is asked"
            self.world.start(ask)

    def pass_time(self, milliseconds: int) -> None:
        until_ms = self.world.now_ms + milliseconds
        while self.world.now_ms < until_ms:
            self.jump(until_ms)

    def jump(self, until_ms: float) -> None:
        """To the next moment at which something happens; the writers may be faster."""
        next_ms = min(self.world.next_ms(), until_ms)
        if self.writers.active and self.random.random() < 0.2:
            next_ms = min(next_ms, self.world.now_ms + self.random.choice((1, 5, 50)))
            self.world.now_ms = max(self.world.now_ms, int(next_ms))
            self.writers.act()
        assert next_ms < float("inf"), "a wait for nothing never ends"
        self.world.now_ms = max(self.world.now_ms, int(-(-next_ms // 1)))
        self.world.proceed()

    # ------------------------------------------------------------ reading

    def open(self, position: Any) -> None:
        """Open the follower, even if a server does not answer several times."""
        roots = [Shard(key, self.writers.home[key]) for key in ("r0", "r1", "r2")]
        start = positions.parse(position)
        creates = not isinstance(position, dict)
        for _ in range(1000):
            try:
                return self.run(self.follower.open(roots, start, creates))
            except UNREACHABLE:
                self.writers.restart() if self.random.random() < 0.2 else None
                self.pass_time(10)
        raise AssertionError("the stream does not open")

    def read(self, timeout_s: float | None, cancel: float = 0.0) -> bool:
        """Read once. False if there was no record."""
        taken = None
        if self.random.random() < 0.5:  # as in a loop over the stream
            run = self.follower.run(self.follower.stops.count)
            taken = next(iter(run), None) or self.follower.take()
        try:
            record = taken or self.run(self.follower.read(timeout_s), cancel)
        except RecordsExpired as error:
            self.expired.append((error.shard, error.after, error.resumed))
            return True
        except Cancelled:
            return False
        self.check_buffers()
        if record is None:
            return False
        incarnation = self.incarnation_of(record)
        self.records.append((record.shard, incarnation, record.id))
        self.late.append(record.late)
        return True

    def incarnation_of(self, record: Any) -> int:
        """The stream of this name that had the record: IDs are never used twice in these worlds."""
        found = self.writers.incarnations.get((record.shard, record.id))
        assert found is not None, f"{record} was never written"
        return found

    def check_buffers(self) -> None:
        for state in self.follower._lineage.states.values():
            assert len(state.buffer) <= self.kind.batch

    def look(self) -> None:
        self.watermarks.append((self.follower.watermark, len(self.records)))

    def token(self) -> Any:
        return json.loads(json.dumps(self.follower.token))

    def replace(self, position: Any, end: Any = None) -> None:
        """Continue with another follower, as a program does that was started again."""
        self.gaps += self.follower.gaps
        self.world.flights.clear()
        self.follower = self.new_follower(end)
        self.open(position)

    def read_a_part(self) -> None:
        """Continue with a stream that ends, and after that with its token."""
        end = self.random.choice(
            ("latest", ID(self.world.now_ms - 5, 0), ID(self.world.now_ms + 9))
        )
        self.replace(self.token(), end)
        first = len(self.records)
        for _ in range(self.random.choice((2, 40))):
            if self.follower.ended:
                break
            self.read(0.05)
        if isinstance(end, ID):
            assert all(entry_id <= end for _, _, entry_id in self.records[first:])
        self.look()
        self.replace(self.token())

    def to_the_end(self) -> None:
        idle = 0
        while not self.follower.ended:
            if self.read(0.5):
                idle = 0
            else:
                idle += 1
                assert idle < 50, f"the reader stalls: {self.follower.token}"
        while self.read(0):
            pass
        self.look()
        self.gaps += self.follower.gaps


def arrived_flight(answer: Any, now_ms: int) -> Flight:
    """An answer that has arrived."""
    server: Any = None
    return Flight(answer.ask, server, 0, 0, False, 0, 0, answer, now_ms)


# ---------------------------------------------------------------- one world


def play(seed: int) -> None:
    random = Random(seed)
    kind = Kind.of(random)
    world = World(random, kind.faults)
    for name in "ABC"[: random.choice((1, 2, 3))]:
        skew_ms = random.choice((0, 0, 3, -20, 400, -3000)) if kind.skews else 0
        world.servers[name] = SimServer(world, name, skew_ms)
    writers = Writers(world, random, kind)
    for key in ("r0", "r1", "r2"):
        writers.home[key] = random.choice(list(world.servers))
    reader = Reader(world, writers, kind, random)
    for _ in range(random.choice((0, 5, 20))):
        writers.act()
        world.now_ms += random.choice((0, 1, 10))
    before = visible(writers)
    position: Any = kind.start
    moment_ms = world.now_ms - random.choice((0, 5, 20, 60))
    if kind.start == "time":
        position = Moment(moment_ms)
    opened_ms = world.now_ms
    reader.open(position)
    opening = Opening(kind, before, moment_ms, opened_ms, set(writers.facts))
    tokens: list[tuple[int, list[Gap], Any]] = []
    for _ in range(random.randrange(STEPS)):
        for _ in range(random.choice((0, 1, 3))):
            writers.act()
        reader.pass_time(random.choice((0, 1, 2, 30)))
        choice = random.random()
        if choice < 0.7:
            cancel = 0.2 if kind.cancels and random.random() < 0.5 else 0.0
            reader.read(random.choice((0, 0, 0.002, 0.05)), cancel)
        elif choice < 0.75:
            reported = reader.gaps + list(reader.follower.gaps)
            tokens.append((len(reader.records), reported, reader.token()))
        elif choice < 0.8:
            if random.random() < 0.5:
                reader.replace(reader.token())
            else:
                reader.read_a_part()
        elif choice < 0.85:
            reader.run(reader.follower.heartbeat())
        elif choice < 0.88:
            move(reader)
        reader.look()
    writers.finish()
    reader.to_the_end()
    check(reader, writers, opening)
    check_range(world, writers, kind, random)
    for count, reported, token in tokens[-3:]:
        again = Reader(world, writers, kind, random)
        again.records = reader.records[:count]
        again.replace(token)
        again.gaps += reported
        again.to_the_end()
        check(again, writers, opening)
        if kind.strict and not kind.evicts and not kind.deletes:
            assert again.records == reader.records, "the rest after a token is another one"


def check_range(world: World, writers: Writers, kind: Kind, random: Random) -> None:
    """A stream with an end has the records of one without, up to that end."""
    if kind.deletes or not kind.strict:
        return
    whole = Reader(world, writers, kind, random)
    whole.open("trim_horizon")
    whole.to_the_end()
    for end in ("latest", random.choice([*whole.records, ("", 0, ID(5))])[2]):
        part = Reader(world, writers, kind, random)
        part.replace("trim_horizon", end)
        part.to_the_end()
        wanted = [one for one in whole.records if end == "latest" or one[2] <= end]
        assert part.records == wanted, "a stream with an end has other records"


def move(reader: Reader) -> None:
    """To the place where the stream is: it continues as if nothing had happened."""
    roots = [Shard(key, reader.writers.home[key]) for key in ("r0", "r1", "r2")]
    with suppress(*UNREACHABLE):  # then it has not moved
        reader.run(reader.follower.open(roots, positions.parse(reader.token()), False))


@dataclass
class Moment:
    ms: int

    def timestamp(self) -> float:
        return self.ms / 1000


@dataclass
class Opening:
    """The start of the stream."""

    kind: Kind
    before: set[tuple[str, int, ID]]
    """The entries that were visible before the stream was opened."""
    moment_ms: int
    opened_ms: int
    known: set[tuple[str, int, ID]]
    """The entries that had an ID when the stream had been opened."""


def visible(writers: Writers) -> set[tuple[str, int, ID]]:
    found = set()
    for key in writers.home:
        stream = writers.stream(key)
        if stream is not None:
            found |= {(key, stream.incarnation, entry_id) for entry_id in stream.visible()}
    return found


def check(reader: Reader, writers: Writers, opening: Opening) -> None:
    kind = reader.kind
    records = reader.records
    twice = [record for record, count in Counter(records).items() if count > 1]
    assert not twice, f"given twice: {twice}"
    order = [(entry_id, shard) for shard, _, entry_id in records]
    if kind.strict:
        wrong = [
            (one, two)
            for one, two in pairwise(order)
            if one > two and not (writers.was_cut_off(one[1]) or writers.was_cut_off(two[1]))
        ]
        assert not wrong, f"out of order: {wrong}"
    for key in writers.home:
        own = [(incarnation, entry_id) for shard, incarnation, entry_id in records if shard == key]
        assert own == sorted(own), f"{key} is out of order"
    for mark, count in reader.watermarks:
        wrong = [
            record
            for record in records[count:]
            if record[2] <= mark and not writers.was_cut_off(record[0])
        ]
        assert not wrong, f"the watermark was {mark}, and then came {wrong}"
    check_gaps(reader, writers)
    check_complete(reader, writers, opening)


def check_gaps(reader: Reader, writers: Writers) -> None:
    gaps = reader.gaps
    # A shard that was deleted and created again no longer knows its parents.
    twice = [
        gap
        for gap, count in Counter(gaps).items()
        if count > 1 and not writers.was_cut_off(gap.shard)
    ]
    assert not twice, f"a gap was reported twice: {twice}"
    if reader.kind.skip:
        assert not reader.expired
    given = set(reader.records)
    for gap in gaps:
        lost = [
            fact
            for fact in writers.facts.values()
            if fact.shard == gap.shard
            and fact.state in ("evicted", "deleted", "given up")
            and (fact.shard, fact.incarnation, fact.id) not in given
            and fact.id > gap.after
        ]
        assert lost or gap.shard in writers.deleted, f"nothing was lost: {gap}"


def check_complete(reader: Reader, writers: Writers, opening: Opening) -> None:
    given = set(reader.records)
    kind = reader.kind
    for name, fact in writers.facts.items():
        if name in given:
            assert fact.state in ("visible", "evicted", "deleted"), f"{fact} was given"
            if kind.start == "latest":
                assert name not in opening.before, f"{fact} was there before"
            if kind.start == "time":
                # For a server whose clock is before the time, the stream starts at its end.
                after = fact.id.ms >= opening.moment_ms or name not in opening.before
                assert after, f"{fact} is before the start"
            continue
        if fact.state not in ("visible", "evicted"):
            continue
        if is_before_the_start(fact, name, opening) or writers.was_cut_off(fact.shard):
            continue
        covered = any(
            gap.shard == fact.shard
            and gap.resumed is not None
            and gap.after < fact.id <= gap.resumed
            for gap in reader.gaps
        )
        if fact.state == "visible":
            raise AssertionError(f"lost: {fact}")
        first = min((entry_id for shard, _, entry_id in given if shard == fact.shard), default=None)
        is_start = fact.shard in ("r0", "r1", "r2") or kind.start == "time"
        fresh = is_start and (first is None or fact.id < first)
        assert covered or fresh, f"lost without a gap: {fact}"


def is_before_the_start(fact: Fact, name: Any, opening: Opening) -> bool:
    if opening.kind.start == "latest":
        return name in opening.known
    if opening.kind.start == "time":
        return fact.id.ms < opening.moment_ms or name in opening.known
    return False


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_a_reader_gets_every_record_once_and_in_order(first: int) -> None:
    for seed in range(first, first + 50):
        play_named(seed)


def play_named(seed: int) -> None:
    try:
        play(seed)
    except BaseException as error:
        error.add_note(f"again: python -m tests.client.test_core_worlds {seed}")
        raise


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("seed", type=int, nargs="?")
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    logging.disable()
    if arguments.seed is not None:
        play_named(arguments.seed)
    failed = 0
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        try:
            play(seed)
        except Exception as error:
            failed += 1
            print(f"{seed}: {type(error).__name__}: {error}"[:500], flush=True)
    print(f"{arguments.seeds} worlds, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
