"""Reservations against plain appends, and the readers that follow them against plain reads.

Redis has no such commands, so these rows compare our server with itself: the figure is the cost of
the new command as a multiple of the cost of the plain command for the same work. A completion needs
the ID of its reservation, which redis-benchmark cannot pass on. Therefore all requests, including
plain appends, are sent over connections of this process. All requests are encoded before the first
one is sent: a server that wakes up for each client in turn would spend more time on wake-ups than
on the commands.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence

from bench.datasets import KEY, SENSOR_ENTRY, encode, ranges_data
from bench.figures import OURS, BenchError, Lanes, Reading, alone
from bench.harness import Harness, Pair, Side, fill
from bench.load import Load
from bench.persistence_rows import worst_ping_us
from bench.wire import Client

CONNECTIONS = 50
PIPELINE = 16
TOGETHER = 100
# How 100 requests are sent at -P 16.
PIPELINES = [PIPELINE] * (TOGETHER // PIPELINE) + [TOGETHER % PIPELINE]
LEASE_MS = "600000"
STREAMS = 10
READ_COUNT = 100


def times_as_long(harness: Harness, old: Callable[[], float], new: Callable[[], float]) -> Lanes:
    """The cost of `new` as a multiple of the cost of `old`; both are called in turn."""
    found = []
    old(), new()
    for _ in range(harness.plan.rounds):
        before = old()
        found.append(Reading(new() / before))
    return alone(found)


def ours(harness: Harness) -> Side:
    return harness.pair("writers")[OURS]


# ---------------------------------------------------------------- reserving and completing


def reserve_and_complete(harness: Harness, full: int, quick: int) -> Lanes:
    """A reservation and its completion against two appends, -P 16."""
    side = ours(harness)
    rounds = harness.plan.size(full, quick) // (CONNECTIONS * PIPELINE)
    with connections(side, CONNECTIONS) as clients:
        return times_as_long(
            harness,
            lambda: cost(side, rounds, lambda: append_twice(clients)),
            lambda: cost(side, rounds, lambda: reserve_then_complete(clients)),
        )


def completed_in_reverse(harness: Harness, full: int, quick: int) -> Lanes:
    """100 IDs per connection, reserved together and completed from last to first, against 100
    appends; both -P 16."""
    side = ours(harness)
    rounds = harness.plan.size(full, quick) // (CONNECTIONS * TOGETHER)
    with connections(side, CONNECTIONS) as clients:
        return times_as_long(
            harness,
            lambda: cost(side, rounds, lambda: append_together(clients)),
            lambda: cost(side, rounds, lambda: complete_in_reverse(clients)),
        )


@contextlib.contextmanager
def connections(side: Side, count: int) -> Iterator[list[Client]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Client(side.server.port)) for _ in range(count)]


def cost(side: Side, rounds: int, once: Callable[[], None]) -> float:
    """The server's CPU time for this many rounds on an empty server."""
    side.empty()
    before_ns = side.server.cpu_ns()
    for _ in range(rounds):
        once()
    side.server.settle()
    return side.server.cpu_ns() - before_ns


def append_twice(clients: list[Client]) -> None:
    request = encode("TAPPEND", KEY, *SENSOR_ENTRY) * PIPELINE
    for _ in range(2):
        send_all(clients, [request] * len(clients), PIPELINE)


def reserve_then_complete(clients: list[Client]) -> None:
    send_each(
        clients,
        [encode("TRESERVE", KEY, f"w{number}") * PIPELINE for number in range(len(clients))],
    )
    send_all(
        clients,
        [
            completions(number, [client.receive("TRESERVE") for _ in range(PIPELINE)])
            for number, client in enumerate(clients)
        ],
        PIPELINE,
    )


def append_together(clients: list[Client]) -> None:
    request = encode("TAPPEND", KEY, *SENSOR_ENTRY)
    for count in PIPELINES:
        send_all(clients, [request * count] * len(clients), count)


def complete_in_reverse(clients: list[Client]) -> None:
    send_each(
        clients,
        [
            encode("TRESERVE", KEY, f"w{number}", "COUNT", str(TOGETHER))
            for number in range(len(clients))
        ],
    )
    batches = [
        completion_batches(number, client.receive("TRESERVE")[::-1])
        for number, client in enumerate(clients)
    ]
    for count, together in zip(PIPELINES, zip(*batches, strict=True), strict=True):
        send_all(clients, together, count)


def completion_batches(number: int, entry_ids: list[str]) -> list[bytes]:
    ids = iter(entry_ids)
    return [completions(number, list(itertools.islice(ids, count))) for count in PIPELINES]


def send_each(clients: list[Client], requests: Sequence[bytes]) -> None:
    for client, request in zip(clients, requests, strict=True):
        client.send(request)


def send_all(clients: list[Client], requests: Sequence[bytes], replies: int) -> None:
    """Send each client its requests and read `replies` IDs."""
    send_each(clients, requests)
    for client in clients:
        client.skip_ids(replies)


def completions(number: int, entry_ids: list[str]) -> bytes:
    return b"".join(
        encode("TCOMPLETE", KEY, f"w{number}", entry_id, *SENSOR_ENTRY) for entry_id in entry_ids
    )


# ---------------------------------------------------------------- appends after a reservation


def held_appends(harness: Harness, full: int, quick: int) -> Lanes:
    """Appends after one open reservation against appends without it, -P 16."""
    side = ours(harness)
    request = Load(harness.plan.size(full, quick), PIPELINE)

    def appends(reserved: bool) -> float:
        side.empty()
        if reserved:
            side.call("TRESERVE", KEY, "w", "LEASE", LEASE_MS)
        return side.drive(request, side.append(KEY, SENSOR_ENTRY)).cost

    return times_as_long(harness, lambda: appends(False), lambda: appends(True))


def held_memory(harness: Harness, full: int, quick: int) -> Lanes:
    """Memory of held entries against that of visible ones."""
    entries = harness.plan.size(full, quick)
    request = Load(entries, PIPELINE)

    def growth(reserved: bool) -> float:
        side = harness.fresh_pair()[OURS]
        side.call(*side.append(KEY, SENSOR_ENTRY))
        if reserved:
            side.call("TRESERVE", KEY, "w", "LEASE", LEASE_MS)
        before = side.server.rss_bytes()
        side.drive(request, side.append(KEY, SENSOR_ENTRY))
        return side.server.rss_bytes() - before

    return times_as_long(harness, lambda: growth(False), lambda: growth(True))


def release_stall(harness: Harness, full: int, quick: int) -> Lanes:
    """The worst PING while the end of one reservation releases all appends after it."""
    side = ours(harness)
    entries = harness.plan.size(full, quick)

    def once() -> Reading:
        side.empty()
        side.call("TRESERVE", KEY, "w", "LEASE", LEASE_MS)
        side.drive(Load(entries, PIPELINE), side.append(KEY, SENSOR_ENTRY))
        worst_us = worst_ping_us(side, giving_up(side))
        if side.call("XLEN", KEY) != entries:
            raise BenchError(f"{entries} entries were held, {side.call('XLEN', KEY)} are visible")
        return Reading(worst_us)

    return harness.repeat(once)


def giving_up(side: Side) -> Iterator[None]:
    """Yield once before, some times during and some times after the end of the reservation."""
    yield
    with Client(side.server.port) as client:
        client.send_call("TABORT", KEY, "w")
        for _ in range(10):
            yield
        client.receive("TABORT")


# ---------------------------------------------------------------- following readers


def follow_many(harness: Harness, full: int, quick: int) -> Lanes:
    """TMREAD of ten streams, 100 entries each, against XREAD."""
    side = filled(harness)
    keys = [f"{KEY}:{number}" for number in range(STREAMS)]
    for key in keys:
        side.call("COPY", KEY, key, "REPLACE")
    after = ["0"] * STREAMS
    return compared(
        harness,
        Load(harness.plan.size(full, quick)),
        ("XREAD", "COUNT", str(READ_COUNT), "STREAMS", *keys, *after),
        ("TMREAD", str(READ_COUNT), "STREAMS", *keys, *after),
    )


def peek(harness: Harness, full: int, quick: int) -> Lanes:
    """TPEEK of 100 entries, nothing held, against TREAD."""
    return compared(
        harness,
        Load(harness.plan.size(full, quick), PIPELINE),
        ("TREAD", KEY, "1", str(READ_COUNT)),
        ("TPEEK", KEY, "1", str(READ_COUNT)),
    )


def compared(harness: Harness, request: Load, old: tuple[str, ...], new: tuple[str, ...]) -> Lanes:
    side = filled(harness)
    return times_as_long(
        harness, lambda: side.drive(request, old).cost, lambda: side.drive(request, new).cost
    )


def filled(harness: Harness) -> Side:
    """The server with 1,000 entries at KEY, in a stream whose IDs were reserved once."""

    def prepare(pair: Pair) -> None:
        fill(pair, ranges_data(1000))
        side = pair[OURS]
        side.call("TRESERVE", KEY, "w")
        side.call("TABORT", KEY, "w")

    return harness.pair("followed", prepare=prepare)[OURS]
