"""Groups with rules (TGROUP) against plain groups: our server against itself, and TEXTEND against
XCLAIM JUSTID of Redis.

All requests but those of TEXTEND are sent over a connection of this process. Where the server
chooses the entries of a read, the acknowledgement takes the IDs of the reply, in both lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.datasets import KEY, encode
from bench.evict_rows import COUNT, TOGETHER, batch_of, entry_id, sent
from bench.figures import OURS, BenchError, Lanes, Reading
from bench.harness import GROUP, JOURNAL_OFF, Harness, Side, ids_of
from bench.load import Load
from bench.persistence_rows import worst_ping_us
from bench.wire import Client
from bench.writer_rows import connections, ours, times_as_long

PIPELINE = 16
FILLED_AT_ONCE = 1000
CONSUMER = "c"
DEAD = "dead"
KEYS = 10_000
MATCHING = 10  # one of ten entries matches the filter of a group
LEAST_BYTES = 0.1  # a reading is above 0
PARKED = 100_000  # group-parked-max
TIMEOUT = ("TIMEOUT", "3600000")
ALL_RULES = (
    *TIMEOUT, "BACKOFF", "3", "1000", "10000", "60000", "MAXDELIVER", "5", "DEADLETTER", DEAD,
)  # fmt: skip
DEAD_LETTERS = (*TIMEOUT, "DEADLETTER", DEAD)
ORDERED = (*TIMEOUT, "ORDER", "FIELD", "place")
FILTERED = ("WHERE", "1", "kind", "EQ", "0")
READ = ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", str(COUNT), "STREAMS", KEY, ">")


def new_stream(
    side: Side, client: Client, entries: int, rules: Sequence[str], keys: int = KEYS, hot: int = 0
) -> None:
    """A stream with a group that begins before the first entry. The entries have `keys` values of
    the field `place`, and of every two, `hot` have the same one."""
    side.empty()
    client.call("XGROUP", "CREATE", KEY, GROUP, "0", "MKSTREAM")
    for first in range(0, entries, FILLED_AT_ONCE):
        numbers = range(first, min(first + FILLED_AT_ONCE, entries))
        client.send(b"".join(entry_of(number, keys, hot) for number in numbers))
        client.skip_ids(len(numbers))
    if rules:
        client.call("TGROUP", KEY, GROUP, *rules)
    side.server.settle()


def entry_of(number: int, keys: int, hot: int) -> bytes:
    place = "hot" if number % 2 < hot else f"{number % keys:05}"
    kind = str(number % MATCHING)
    return encode("XADD", KEY, entry_id(number), "place", place, "kind", kind, "celsius", "35.6")


# ---------------------------------------------------------------- rules without effects


def with_rules(harness: Harness, full: int, quick: int) -> Lanes:
    """Reading and acknowledging all entries with TIMEOUT, BACKOFF, MAXDELIVER and DEADLETTER, as a
    multiple of the same without."""
    side = ours(harness)
    batches = harness.plan.size(full, quick) // (COUNT * TOGETHER)
    requests = [batch_of(number) for number in range(batches)]
    entries = batches * COUNT * TOGETHER

    def cost(client: Client, rules: Sequence[str]) -> float:
        new_stream(side, client, entries, rules)
        return sent(side, client, requests, 2 * TOGETHER)

    with connections(side, 1) as (client,):
        return times_as_long(harness, lambda: cost(client, ()), lambda: cost(client, ALL_RULES))


def memory_with_rules(harness: Harness, full: int, quick: int) -> Lanes:
    """The memory of an entry in flight, as a multiple of that in a plain group."""
    entries = harness.plan.size(full, quick)

    def grown_by(rules: Sequence[str]) -> float:
        return grown(harness, entries, rules, "100", entries)

    return times_as_long(harness, lambda: grown_by(()), lambda: grown_by(ALL_RULES))


def memory_in_order(harness: Harness, full: int, quick: int) -> Lanes:
    """The memory of an entry in flight in a group with ORDER, in bytes more than in a plain
    group."""
    entries = harness.plan.size(full, quick)

    def once() -> Reading:
        plain = grown(harness, entries, (), "100", entries)
        more = grown(harness, entries, ORDERED, "100", entries) - plain
        return Reading(max(more, LEAST_BYTES))

    return harness.repeat(once)


def parked_memory(harness: Harness) -> Lanes:
    """The memory of a parked entry: all entries but the first have a key that is busy."""

    def once() -> Reading:
        return Reading(grown(harness, PARKED, ORDERED, "10", PARKED - 1, keys=1))

    return harness.repeat(once)


def grown(
    harness: Harness, entries: int, rules: Sequence[str], count: str, found: int, keys: int = 10**9
) -> float:
    """The growth of resident memory for each of `found` entries, while a group reads a stream."""
    side = harness.fresh_pair()[OURS]
    read = (*READ[:5], count, *READ[6:])
    with Client(side.server.port) as client:
        new_stream(side, client, entries, rules, keys)
        client.call("XRANGE", KEY, "-", "+", "COUNT", count)
        before = side.server.rss_bytes()
        while client.call(*read) is not None:
            pass
    return (side.server.rss_bytes() - before) / found


# ---------------------------------------------------------------- failures


def nack_and_read(harness: Harness, full: int, quick: int) -> Lanes:
    """TNACK of ten entries and their redelivery, against XACK and a read of ten."""
    side = ours(harness)
    batches = harness.plan.size(full, quick) // (COUNT * TOGETHER)
    plain = [batch_of(number) for number in range(batches)]
    nack = encode("TNACK", KEY, GROUP, CONSUMER, "IDS", str(COUNT), *map(entry_id, range(COUNT)))
    failing = [(encode(*READ) + nack) * TOGETHER] * batches
    entries = batches * COUNT * TOGETHER

    def cost(client: Client, requests: Sequence[bytes], rules: Sequence[str]) -> float:
        new_stream(side, client, entries, rules)
        return sent(side, client, requests, 2 * TOGETHER)

    with connections(side, 1) as (client,):
        return times_as_long(
            harness, lambda: cost(client, plain, ()), lambda: cost(client, failing, TIMEOUT)
        )


def extend(harness: Harness, full: int, quick: int) -> Lanes:
    """TEXTEND of ten entries against XCLAIM JUSTID of ten in Redis, -P 16."""
    pair = harness.pair("managed", JOURNAL_OFF)
    ids = [entry_id(number) for number in range(COUNT)]
    request = Load(harness.plan.size(full, quick), PIPELINE)
    claims = ("XCLAIM", KEY, GROUP, CONSUMER, "0", *ids, "JUSTID")
    extends = ("TEXTEND", KEY, GROUP, CONSUMER, "60000", "IDS", str(COUNT), *ids)
    for lane, side in pair.items():
        with Client(side.server.port) as client:
            new_stream(side, client, COUNT, TIMEOUT if lane == OURS else ())
            client.call(*READ)
    return harness.alternate_sides(
        pair, lambda side: side.drive(request, extends if side is pair[OURS] else claims)
    )


def dead_letters(harness: Harness, full: int, quick: int) -> Lanes:
    """The copy and the acknowledgement of an entry (TNACK FATAL) against TAPPEND and XACK."""
    side = ours(harness)
    entries = harness.plan.size(full, quick) // PIPELINE * PIPELINE
    copied = ("place", "00000", "kind", "0", "celsius", "35.6")

    def done(entry: str) -> bytes:
        return encode("TAPPEND", DEAD, *copied) + encode("XACK", KEY, GROUP, entry)

    def ended(entry: str) -> bytes:
        return encode("TNACK", KEY, GROUP, CONSUMER, "FATAL", "IDS", "1", entry)

    def cost(client: Client, of: object, replies: int) -> float:
        assert callable(of)
        new_stream(side, client, entries, DEAD_LETTERS)
        while client.call(*READ[:5], "1000", *READ[6:]) is not None:
            pass
        side.server.settle()
        starts = range(0, entries, PIPELINE)
        requests = [
            b"".join(of(entry_id(number)) for number in range(first, first + PIPELINE))
            for first in starts
        ]
        taken = sent(side, client, requests, replies * PIPELINE)
        if client.call("XLEN", DEAD) != entries:
            raise BenchError(f"{DEAD} does not have {entries} copies")
        return taken

    with connections(side, 1) as (client,):
        return times_as_long(harness, lambda: cost(client, done, 2), lambda: cost(client, ended, 1))


# ---------------------------------------------------------------- order and filters


def ordered(harness: Harness, full: int, quick: int, hot: int) -> Lanes:
    """Reading and acknowledging all entries of a group with ORDER, as a multiple of the cost in a
    plain group. With `hot`, half of all entries have one key."""
    side = ours(harness)
    entries = harness.plan.size(full, quick)

    def cost(client: Client, rules: Sequence[str]) -> float:
        new_stream(side, client, entries, rules, hot=hot)
        return cost_of_reading(side, client, entries)

    with connections(side, 1) as (client,):
        return times_as_long(harness, lambda: cost(client, ()), lambda: cost(client, ORDERED))


def ordered_stall(harness: Harness, full: int, quick: int) -> Lanes:
    """The worst PING while a group with ORDER reads a stream of which half is one key."""
    side = ours(harness)
    entries = harness.plan.size(full, quick)

    def once() -> Reading:
        with Client(side.server.port) as client:
            new_stream(side, client, entries, ORDERED, hot=1)
            return Reading(worst_ping_us(side, read_and_acknowledged(client, entries)))

    return harness.repeat(once)


def read_and_acknowledged(client: Client, entries: int) -> Iterator[None]:
    """Read and acknowledge everything; an acknowledgement and the next read go together."""
    left = entries
    client.send(encode(*READ))
    while left:
        reply = client.receive("XREADGROUP")
        if reply is None:
            raise BenchError(f"{left} entries were not delivered")
        ids = ids_of(reply[0][1])
        left -= len(ids)
        client.send(encode("XACK", KEY, GROUP, *ids) + (encode(*READ) if left else b""))
        client.receive("XACK")
        yield


def cost_of_reading(side: Side, client: Client, entries: int) -> float:
    before_ns = side.server.cpu_ns()
    for _ in read_and_acknowledged(client, entries):
        pass
    side.server.settle()
    return side.server.cpu_ns() - before_ns


def filtered(harness: Harness, full: int, quick: int) -> Lanes:
    """A match of a group with WHERE, which one of ten entries meets, as a multiple of an entry of a
    plain group."""
    side = ours(harness)
    matches = harness.plan.size(full, quick)

    def cost(client: Client, entries: int, rules: Sequence[str]) -> float:
        new_stream(side, client, entries, rules)
        return cost_of_reading(side, client, matches)

    with connections(side, 1) as (client,):
        return times_as_long(
            harness,
            lambda: cost(client, matches, ()),
            lambda: cost(client, matches * MATCHING, FILTERED),
        )
