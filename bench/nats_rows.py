"""The rows that compare with NATS JetStream, and the harness that runs the two servers.

Each kind of storage is compared with the closest directives: memory with no journal; files that are
synced every 2 minutes (the default of NATS) or every second with `appendfsync` `no` or `everysec`;
`sync_interval: always` with `appendfsync always`. Both sides get the same client: one connection,
which sends the next entries when those before are confirmed. The lane REDIS is NATS.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from bench.datasets import SEED
from bench.figures import NO_GOAL, OURS, REDIS, BenchError, Goal, Lanes, Reading
from bench.harness import JOURNAL_OFF, Harness, Row, version_of
from bench.nats_logs import Log, NatsLog, NatsServer, OurLog, Values
from bench.nats_wire import NatsClient
from bench.persistence_rows import START_TIMEOUT_S, journal_of
from bench.server import Server
from bench.wire import Client

VALUES_IN_TURN = 1000
WINDOWS = (1, 16, 100, 1000)
ENTRIES = 100_000
GROUPS_EVERYSEC = ("--appendfsync-groups", "everysec")

PUBLISHING = "Publish 100 bytes"
LARGE_VALUES = "Publish large values"
READING = "Read, 100,000 entries in memory"
CONSUMING = "Consumers, one connection"
KEEPING = "Memory, disk and start"


def values_of(size_bytes: int, count: int) -> list[bytes]:
    """Values that no server can make smaller by sharing their parts."""
    source = random.Random(SEED)
    return [source.randbytes(size_bytes // 2).hex().encode() for _ in range(count)]


HUNDRED = values_of(100, VALUES_IN_TURN)


@dataclass(frozen=True)
class Storage:
    """One kind of storage: the settings of NATS, and our directives."""

    name: str
    nats: str
    sync: str
    ours: tuple[str, ...]


MEMORY = Storage("memory", "memory", "2m", JOURNAL_OFF)
FILE = Storage("file", "file", "2m", journal_of("no"))
EVERYSEC = Storage("everysec", "file", "1s", journal_of("everysec"))
ALWAYS = Storage("always", "file", "always", journal_of("always"))
ALWAYS_GROUPS_EVERYSEC = Storage(
    "always-groups-everysec", "file", "always", (*journal_of("always"), *GROUPS_EVERYSEC)
)


@dataclass
class NatsHarness(Harness):
    """A harness whose peer is a NATS server. `redis_command` is its command."""

    _logs: dict[str, Log] = field(default_factory=dict)
    _storage: Storage | None = None

    def stop(self) -> None:
        while self._logs:
            self._logs.popitem()[1].server.stop()
        self._storage = None

    def _running(self) -> dict[str, Server]:
        return {lane: log.server for lane, log in self._logs.items()}

    def logs(self, storage: Storage, fresh: bool = False) -> dict[str, Log]:
        """The running pair with this storage, both logs empty; a new pair if it must be fresh."""
        if fresh or storage != self._storage:
            self.stop()
            nats = NatsServer(self.redis_command[0], storage.sync, self.server_core)
            self._logs[REDIS] = NatsLog(nats, storage.nats)
            ours = Server(self.ours_command, storage.ours, self.server_core)
            self._logs[OURS] = OurLog(ours)
            self._storage = storage
            with NatsClient(nats.port) as peer, Client(ours.port) as client:
                ours_version = version_of(client, "millstream_version")
                self.versions = {REDIS: peer.version, OURS: ours_version}
        for log in self._logs.values():
            log.clear()
        return self._logs

    def measure(
        self, logs: dict[str, Log], operations: int, work: Callable[[Log, int], None]
    ) -> Lanes:
        """CPU time of a server per operation. `work` does a number of operations, and is called
        with a tenth of them first."""

        def once(log: Log, count: int) -> Reading:
            log.server.settle()
            before_ns, began = log.server.cpu_ns(), time.perf_counter()
            work(log, count)
            seconds = time.perf_counter() - began
            log.server.settle()
            return Reading((log.server.cpu_ns() - before_ns) / count, count / seconds)

        for log in logs.values():
            once(log, max(1, operations // 10))
        return self.alternate(
            {lane: functools.partial(once, log, operations) for lane, log in logs.items()}
        )


Measure = Callable[[NatsHarness], Lanes]
NATS_ROWS: list[Row] = []


def add(
    name: str, section: str, title: str, measure: Measure, goal: Goal, unit: str = "ns/op"
) -> None:
    """Add a row, which needs a harness with NATS."""

    def measured(harness: Harness) -> Lanes:
        if not isinstance(harness, NatsHarness):
            raise BenchError("this row compares with NATS: --peer nats")
        return measure(harness)

    NATS_ROWS.append(Row(name, section, title, measured, goal, unit))


# Publishing


def publications(
    storage: Storage, values: Values, window: int, full: int, quick: int, once: bool = False
) -> Measure:
    """Publish to an empty log, `window` entries at a time."""

    def measure(harness: NatsHarness) -> Lanes:
        def work(log: Log, entries: int) -> None:
            log.clear()
            windows = max(1, entries // window)
            if once:
                log.publish_once(values[0], window, windows)
            else:
                log.publish(values, window, windows)
            if log.length() != windows * window:
                raise BenchError(f"{windows * window} entries were confirmed, {log.length()} exist")

        logs = harness.logs(storage)
        # A tenth, for the first round, in whole windows.
        windows = max(10, harness.plan.size(full, quick) // window // 10 * 10)
        lanes = harness.measure(logs, windows * window, work)
        for log in logs.values():
            log.clear()
        return lanes

    return measure


for storage, full in ((MEMORY, 200_000), (EVERYSEC, 200_000), (ALWAYS, 100_000)):
    for window in WINDOWS:
        # One at a time, each entry takes a turn of both processes, or a sync.
        entries = full // 10 if window < 100 else full
        entries = entries // 10 if storage is ALWAYS and window == 1 else entries
        add(
            f"nats-publish-{storage.name}-{window}",
            PUBLISHING,
            f"{storage.name}, windows of {window:,}",
            publications(storage, HUNDRED, window, entries, entries // 2),
            Goal(ratio=1.0),
        )
add(
    "nats-publish-once-100",
    PUBLISHING,
    "everysec, once, windows of 100",
    publications(EVERYSEC, HUNDRED, 100, 200_000, 50_000, once=True),
    Goal(ratio=1.0),
)

for storage in (FILE, EVERYSEC, ALWAYS):
    for size_name, size_bytes, entries in (("100k", 100_000, 2000), ("1m", 1_000_000, 200)):
        for window in (16, 100):
            add(
                f"nats-large-{size_name}-{storage.name}-{window}",
                LARGE_VALUES,
                f"{size_name.upper()}B, {storage.name}, windows of {window}",
                publications(storage, values_of(size_bytes, 1), window, entries * 2, entries),
                Goal(ratio=1.1),
            )


# Reading


def of_filled(work: Callable[[Log, int], None], full: int, quick: int) -> Measure:
    """Operations on logs of ENTRIES entries in memory."""

    def measure(harness: NatsHarness) -> Lanes:
        logs = harness.logs(MEMORY)
        for log in logs.values():
            log.publish(HUNDRED, 1000, ENTRIES // 1000)
        return harness.measure(logs, harness.plan.size(full, quick), work)

    return measure


def read_ranges(log: Log, times: int) -> None:
    log.read_ranges(ENTRIES // 2 + 37, 1000, times)


def follow(log: Log, times: int) -> None:
    log.follow(1000, times)


add("nats-range-1000", READING, "1,000 from the middle",
    of_filled(read_ranges, 400, 100), Goal(ratio=1.0))  # fmt: skip
add("nats-follow-1000", READING, "in order, 1,000 at a time",
    of_filled(follow, ENTRIES // 1000, ENTRIES // 1000), Goal(ratio=1.0))  # fmt: skip


# Consumers


def consumers(storage: Storage, batch: int, full: int, quick: int) -> Measure:
    """Take a batch of entries for a group and acknowledge them: CPU time per entry."""

    def measure(harness: NatsHarness) -> Lanes:
        def work(log: Log, entries: int) -> None:
            log.new_group()
            log.consume(batch, entries // batch)

        logs, entries = harness.logs(storage), harness.plan.size(full, quick)
        for log in logs.values():
            log.publish(HUNDRED, 1000, -(-entries // 1000))
        return harness.measure(logs, entries, work)

    return measure


def woken(storage: Storage, full: int, quick: int) -> Measure:
    """A reader waits, and an entry that is published wakes it."""

    def measure(harness: NatsHarness) -> Lanes:
        def work(log: Log, times: int) -> None:
            log.wake(HUNDRED[0], times)

        return harness.measure(harness.logs(storage), harness.plan.size(full, quick), work)

    return measure


for storage, goal in (
    (MEMORY, Goal(ratio=1.0)),
    (ALWAYS, NO_GOAL),
    (ALWAYS_GROUPS_EVERYSEC, Goal(ratio=1.0, rate_ratio=1.0)),
):
    title = storage.name.replace("always-groups-everysec", "always, groups 1 s")
    add(f"nats-consume-1-{storage.name}", CONSUMING, f"{title}, 1 and ack",
        consumers(storage, 1, 4_000, 2_000), goal)  # fmt: skip
    add(f"nats-consume-10-{storage.name}", CONSUMING, f"{title}, 10",
        consumers(storage, 10, 20_000, 10_000), goal)  # fmt: skip
for storage in (MEMORY, ALWAYS):
    add(f"nats-wake-{storage.name}", CONSUMING, f"{storage.name}, a reader is woken",
        woken(storage, 2_000, 500), Goal(ratio=1.0))  # fmt: skip


# Memory, disk and start


def growth_of(
    storage: Storage, window: int, entries: int, size: Callable[[Server], int]
) -> Measure:
    """Growth of a size per entry, in bytes, on servers that were just started."""

    def measure(harness: NatsHarness) -> Lanes:
        readings: dict[str, list[Reading]] = {REDIS: [], OURS: []}
        for _ in range(1 if harness.plan.quick else harness.plan.rounds):
            for lane, log in harness.logs(storage, fresh=True).items():
                before = size(log.server)
                log.publish(HUNDRED, window, entries // window)
                log.server.settle()
                grown_bytes = size(log.server) - before
                if grown_bytes <= 0:
                    raise BenchError(f"{lane}: nothing has grown")
                readings[lane].append(Reading(grown_bytes / entries))
        harness.stop()
        return readings

    return measure


def restarts(entries: int) -> Measure:
    """Microseconds of a start after a kill, from the launch until the server has every entry."""

    def measure(harness: NatsHarness) -> Lanes:
        logs = harness.logs(EVERYSEC, fresh=True)
        for log in logs.values():
            log.publish(HUNDRED, 1000, entries // 1000)
            log.server.settle()

        def once(log: Log) -> Reading:
            log.server.kill()
            seconds = log.server.start(START_TIMEOUT_S)
            if log.length() != entries:
                raise BenchError(f"a start from {entries} entries left {log.length()}")
            return Reading(seconds * 1e6, entries / seconds)

        lanes = harness.alternate(
            {lane: functools.partial(once, log) for lane, log in logs.items()}
        )
        harness.stop()
        return lanes

    return measure


add("nats-memory", KEEPING, "memory",
    growth_of(MEMORY, 1000, 200_000, Server.rss_bytes), Goal(ratio=1.0), "bytes/entry")  # fmt: skip
for window, entries in ((1, 20_000), (1000, 200_000)):
    add(f"nats-disk-{window}", KEEPING, f"disk, windows of {window:,}",
        growth_of(EVERYSEC, window, entries, Server.data_bytes), Goal(ratio=1.0),
        "bytes/entry")  # fmt: skip
add("nats-restart-50k", KEEPING, "start, 50,000 entries", restarts(50_000), NO_GOAL, "us")
add("nats-restart-1m", KEEPING, "start, 1 M entries", restarts(1_000_000), Goal(ratio=1.0), "us")
