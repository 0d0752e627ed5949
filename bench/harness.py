"""The harness of the benchmark: a pair of servers, alternating rounds, and the kinds of
measurement.

One pair runs at a time. Rows that need the same pair share it (a stream of twenty million entries
is loaded once), and a request for another pair stops it. All readings of a row come from rounds
that alternate between the two sides, after a short warm-up round for each side.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType

from bench import load as load_tool
from bench.datasets import (
    KEY,
    RANDOM_MS,
    Chunk,
    DataSet,
    Fields,
    chunks,
    encode,
    entry_id,
    milliseconds,
    ranges_data,
)
from bench.figures import OURS, REDIS, BenchError, Goal, Lanes, Reading, alone
from bench.load import Load
from bench.server import Server
from bench.wire import Client, load

JOURNAL_OFF = ("--appendonly", "no", "--save", "")
WARM_UP_SHARE = 10
QUICK_ROUNDS, FULL_ROUNDS = 3, 5
PENDING_READ = 1000
OURS_X = "ours, X command"
GROUP = "g"


@dataclass(frozen=True)
class Plan:
    """The size of this run."""

    quick: bool
    rounds: int
    large_entries: int = 20_000_000

    @property
    def kept_entries(self) -> int:
        """The number of entries that the snapshot and journal rows save and load."""
        return self.size(5_000_000, 2_000_000)

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True)
class Row:
    """One line of the report. `measure` returns the lanes; `unit` is the unit of their cost."""

    name: str
    section: str
    title: str
    measure: Callable[[Harness], Lanes]
    goal: Goal
    unit: str = "ns/op"
    full_only: bool = False


@dataclass(frozen=True)
class Side:
    """One of the two servers, and its command words."""

    server: Server
    dialect: str
    """`T` or `X`"""

    def append(self, key: str, fields: Fields) -> tuple[str, ...]:
        """An append with an automatic ID."""
        return ("TAPPEND", key, *fields) if self.dialect == "T" else ("XADD", key, "*", *fields)

    def range(self, key: str, start: str, count: int) -> tuple[str, ...]:
        """`count` entries from `start` on."""
        return (f"{self.dialect}RANGE", key, start, "+", "COUNT", str(count))

    def read(self, key: str, after: str, count: int) -> tuple[str, ...]:
        """`count` entries after an ID."""
        if self.dialect == "T":
            return ("TREAD", key, after, str(count))
        return ("XREAD", "COUNT", str(count), "STREAMS", key, after)

    def group_read(self, count: int) -> tuple[str, ...]:
        """The next `count` entries for the group, which keeps them pending."""
        if self.dialect == "T":
            return ("TREAD", KEY, "0", str(count), "GROUP", GROUP, "0", "RETRY", "3600000", "0")
        return ("XREADGROUP", "GROUP", GROUP, "c", "COUNT", str(count), "STREAMS", KEY, ">")

    def acknowledge(self, entry: str) -> tuple[str, ...]:
        return (f"{self.dialect}ACK", KEY, GROUP, entry)

    def wait_for_more(self) -> bytes:
        """A read that waits for the next entry of KEY, as raw RESP."""
        if self.dialect == "T":
            return encode("TREAD", KEY, "", "10", "BLOCK", "0")
        return encode("XREAD", "COUNT", "10", "BLOCK", "0", "STREAMS", KEY, "$")

    def new_group(self) -> None:
        """Create the group again, before the first entry and without pending entries."""
        self.call("XGROUP", "DESTROY", KEY, GROUP)
        self.call("XGROUP", "CREATE", KEY, GROUP, "0")

    def call(self, *words: str) -> object:
        """Run one command on a separate connection."""
        with Client(self.server.port) as client:
            return client.call(*words)

    def empty(self) -> None:
        """Reset the server to an empty state."""
        self.call("FLUSHALL")
        self.server.settle()

    def drive(self, request: Load, words: tuple[str, ...]) -> Reading:
        """Send the load; the cost is the server's CPU time per operation, in nanoseconds."""
        before_ns = self.server.cpu_ns()
        port = self.server.tls_port if request.authority else self.server.port
        ops_per_s = load_tool.run(port, request, words)
        self.server.settle()
        return Reading((self.server.cpu_ns() - before_ns) / request.requests, ops_per_s)


Pair = Mapping[str, Side]
"""The sides by lane: REDIS and OURS."""


@dataclass
class Harness:
    """Owns the servers. Use it as a context manager, which stops the running servers at its end."""

    redis_command: Sequence[str]
    ours_command: Sequence[str]
    dialects: Mapping[str, str]
    """"T" or "X" by lane."""

    server_core: int
    plan: Plan
    versions: dict[str, str] = field(default_factory=dict)
    """The versions that the servers reported, by lane."""

    _pair: dict[str, Side] = field(default_factory=dict)
    _pair_name: str = ""
    _measured: dict[str, Lanes] = field(default_factory=dict)

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop the running pair, if any."""
        while self._pair:
            self._pair.popitem()[1].server.stop()
        self._pair_name = ""

    def _running(self) -> dict[str, Server]:
        """The servers of the running pair, by lane."""
        return {lane: side.server for lane, side in self._pair.items()}

    def measured(self, row: Row) -> Lanes:
        """The row's readings, measured in the first call, so that rows can use other rows."""
        if row.name not in self._measured:
            try:
                self._measured[row.name] = row.measure(self)
            except (BenchError, OSError) as error:
                said = "".join(
                    f"; {lane} has ended: {server.log_tail()}"
                    for lane, server in self._running().items()
                    if not server.alive()
                )
                # The next row must not use a server in an unknown state.
                self.stop()
                raise BenchError(f"{error}{said}") from error
        return self._measured[row.name]

    # Pairs

    def pair(
        self,
        name: str,
        directives: Sequence[str] = JOURNAL_OFF,
        prepare: Callable[[Pair], None] | None = None,
    ) -> Pair:
        """The running pair of that name, or a new one, started with `directives` and prepared."""
        if name == self._pair_name:
            return self._pair
        self.stop()
        self._pair[REDIS] = Side(
            Server(self.redis_command, directives, self.server_core), self.dialects[REDIS]
        )
        ours = Server(self.ours_command, directives, self.server_core)
        self._pair[OURS] = Side(ours, self.dialects[OURS])
        self._note_versions()
        if prepare is not None:
            prepare(self._pair)
        self._pair_name = name
        return self._pair

    def fresh_pair(self) -> Pair:
        """A new pair that is not shared with other rows."""
        self.stop()
        return self.pair("fresh")

    def loaded_pair(self, entries: int, directives: Sequence[str] = JOURNAL_OFF) -> Pair:
        """A pair whose stream KEY has `entries` IoT entries."""
        return self.pair(
            " ".join(("loaded", str(entries), *directives)),
            directives,
            lambda pair: fill(pair, ranges_data(entries)),
        )

    def _note_versions(self) -> None:
        names = {REDIS: "redis_version", OURS: "millstream_version"}
        if not self.versions:
            self.versions = {lane: version_of(self._pair[lane], names[lane]) for lane in names}

    # Rounds

    def alternate(self, lanes: Mapping[str, Callable[[], Reading]]) -> Lanes:
        """Call the lanes in turn, once per round."""
        readings: dict[str, list[Reading]] = {lane: [] for lane in lanes}
        for _ in range(self.plan.rounds):
            for lane, once in lanes.items():
                readings[lane].append(once())
        return readings

    def repeat(self, once: Callable[[], Reading]) -> Lanes:
        """Measure only our server, once per round."""
        return alone([once() for _ in range(self.plan.rounds)])

    def alternate_sides(self, pair: Pair, once: Callable[[Side], Reading]) -> Lanes:
        """Measure the sides in turn, once per round."""
        return self.alternate({lane: functools.partial(once, side) for lane, side in pair.items()})

    def in_turns(self, once: Callable[[Side, Load], Reading], request: Load, sides: Pair) -> Lanes:
        """A short warm-up of each side, then the rounds."""
        for side in sides.values():
            once(side, warm_up_of(request))
        return self.alternate_sides(sides, lambda side: once(side, request))

    # Kinds of measurement

    def appends(
        self,
        fields: Fields,
        pipeline: int,
        full: int,
        quick: int,
        keys: int | None = None,
        directives: Sequence[str] = JOURNAL_OFF,
        authority: str = "",
    ) -> Lanes:
        """Append `full` (or `quick`) entries to one stream, or to `keys` streams at random."""
        pair = self.pair(" ".join(("appends", *directives)), directives)
        key = KEY if keys is None else f"{KEY}:__rand_int__"
        request = Load(self.plan.size(full, quick), pipeline, keys, authority=authority)

        def once(side: Side, request: Load) -> Reading:
            side.empty()
            reading = side.drive(request, side.append(key, fields))
            if keys is None and side.call("XLEN", KEY) != request.requests:
                raise BenchError(
                    f"{request.requests} appends left {side.call('XLEN', KEY)} entries"
                )
            return reading

        lanes = self._measure(once, request, pair)
        for side in pair.values():
            side.empty()
        return lanes

    def ranges(
        self, entries: int, position: str, count: int, pipeline: int, full: int, quick: int
    ) -> Lanes:
        """Read `count` entries at the head, in the middle or at the tail of a long stream."""
        start = entry_id(range_start(position, entries, count))
        self._check_range(self.loaded_pair(entries), start, count)
        return self._ranges(entries, start, count, Load(self.plan.size(full, quick), pipeline))

    def reads(self, entries: int, count: int, pipeline: int, full: int, quick: int) -> Lanes:
        """Read `count` entries after an ID in the middle of a long stream."""
        after = entry_id(range_start("middle", entries, count))
        request = Load(self.plan.size(full, quick), pipeline)

        def once(side: Side, request: Load) -> Reading:
            return side.drive(request, side.read(KEY, after, count))

        return self._measure(once, request, self.loaded_pair(entries))

    def group_reads(self, entries: int, count: int, pipeline: int) -> Lanes:
        """Read a long stream through a group, `count` entries at a time; they become pending."""
        requests = self.plan.size(entries, entries // 4) // count // pipeline * pipeline

        def once(side: Side, request: Load) -> Reading:
            side.new_group()
            return side.drive(request, side.group_read(count))

        return self._measure(once, Load(requests, pipeline), self.loaded_pair(entries))

    def acknowledgements(self, entries: int, pipeline: int, full: int, quick: int) -> Lanes:
        """Acknowledge random entries of a group in which the whole stream is pending."""
        request = Load(self.plan.size(full, quick), pipeline, milliseconds(entries))

        def once(side: Side, request: Load) -> Reading:
            side.new_group()
            side.drive(Load(entries // 1000), side.group_read(1000))
            return side.drive(request, side.acknowledge(RANDOM_MS))

        return self._measure(once, request, self.loaded_pair(entries))

    def command(
        self,
        request: Load,
        prepare: Callable[[Side], None],
        words: Callable[[Side], tuple[str, ...]],
    ) -> Lanes:
        """Send the same command, or each side's own for the same work, to both sides in turn."""
        pair = self.pair("commands")

        def once(side: Side, request: Load) -> Reading:
            prepare(side)
            return side.drive(request, words(side))

        return self.in_turns(once, request, pair)

    def _measure(self, once: Callable[[Side, Load], Reading], request: Load, pair: Pair) -> Lanes:
        """Both sides, and our own X command compared with our T command."""
        sides = dict(pair)
        if pair[OURS].dialect == "T":
            sides[OURS_X] = Side(pair[OURS].server, "X")
        return self.in_turns(once, request, sides)

    def seeks(self, entries: int, pipeline: int, full: int, quick: int) -> Lanes:
        """Read one entry at a random millisecond of a long stream."""
        sample = entry_id(range_start("middle", entries, 1))
        self._check_range(self.loaded_pair(entries), sample, 1)
        request = Load(self.plan.size(full, quick), pipeline, milliseconds(entries))
        return self._ranges(entries, RANDOM_MS, 1, request)

    def _ranges(self, entries: int, start: str, count: int, request: Load) -> Lanes:
        def once(side: Side, request: Load) -> Reading:
            return side.drive(request, side.range(KEY, start, count))

        return self._measure(once, request, self.loaded_pair(entries))

    def _check_range(self, pair: Pair, start: str, count: int) -> None:
        """Check that both sides return the same entries; otherwise the comparison is
        meaningless."""
        answers = [ids_of(side.call(*side.range(KEY, start, count))) for side in pair.values()]
        if answers[0] != answers[1] or len(answers[0]) != count:
            raise BenchError(f"the two servers differ on {count} entries from {start}")

    def memory(self, data_set: DataSet) -> Lanes:
        """Growth of resident memory per entry, in bytes, on servers started for this purpose."""
        return self.growth_of(
            data_set.entries,
            lambda pair: None,
            lambda pair: fill(pair, chunks(data_set, data_set.entries)),
        )

    def pending_memory(self, entries: int) -> Lanes:
        """Growth of resident memory per pending entry, in bytes: a group reads a whole stream."""

        def prepare(pair: Pair) -> None:
            fill(pair, ranges_data(entries))
            for side in pair.values():
                side.new_group()
                # Allocate the buffers that any long reply needs before the first reading.
                side.call(*side.range(KEY, "-", PENDING_READ))

        def grow(pair: Pair) -> None:
            for side in pair.values():
                with Client(side.server.port) as client:
                    for _ in range(entries // PENDING_READ):
                        client.call(*side.group_read(PENDING_READ))
                pending = side.call("XPENDING", KEY, GROUP)
                if not isinstance(pending, list) or pending[0] != entries:
                    raise BenchError(f"{entries} entries were read, XPENDING says {pending!r}")

        return self.growth_of(entries, prepare, grow)

    def growth_of(
        self, entries: int, prepare: Callable[[Pair], None], grow: Callable[[Pair], None]
    ) -> Lanes:
        """The growth of resident memory per entry, in bytes, caused by `grow`."""
        readings: dict[str, list[Reading]] = {REDIS: [], OURS: []}
        for _ in range(1 if self.plan.quick else self.plan.rounds):
            pair = self.fresh_pair()
            prepare(pair)
            before = {lane: side.server.rss_bytes() for lane, side in pair.items()}
            grow(pair)
            for lane, side in pair.items():
                growth_bytes = side.server.rss_bytes() - before[lane]
                if growth_bytes <= 0:
                    raise BenchError(f"{lane}: the memory did not grow")
                readings[lane].append(Reading(growth_bytes / entries))
        self.stop()
        return readings


def warm_up_of(request: Load) -> Load:
    """A tenth of the load, in whole pipelines."""
    pipelines = max(1, request.requests // request.pipeline // WARM_UP_SHARE)
    return replace(request, requests=pipelines * request.pipeline)


def fill(pair: Pair, source: Iterable[Chunk]) -> None:
    """Send the same chunks to both sides and wait until both are idle."""
    sides = list(pair.values())
    with Client(sides[0].server.port) as first, Client(sides[1].server.port) as second:
        load([first, second], source)
    for side in sides:
        side.server.settle()


def range_start(position: str, entries: int, count: int) -> int:
    """Index of the first entry to read: at the `head`, in the `middle`, `count` from the `tail`."""
    if position == "head":
        return 0
    if position == "tail":
        return entries - count
    # Not a round number, which could be the first entry of a block in one of the servers.
    return entries // 2 + 37


def ids_of(reply: object) -> list[str]:
    """The IDs in a range reply, with a hyphen for both dialects."""
    if not isinstance(reply, list):
        raise BenchError(f"not a range reply: {reply!r}")
    return [str(entry[0]).replace(".", "-") for entry in reply]


def version_of(server: Side | Client, name: str) -> str:
    """The version in INFO under that name; empty if there is none."""
    lines = str(server.call("INFO", "server")).splitlines()
    info = dict(line.split(":", 1) for line in lines if ":" in line)
    return info.get(name, "")
