"""Rows with very many small streams, and with very large values.

Two kinds of small streams: 20 IoT entries each, without a journal; 2 entries with a group, a
consumer and one pending entry each, with a journal. Keys end in twelve digits, because
redis-benchmark puts twelve random digits into a key.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

from bench.datasets import KEY, SEED, Chunk, encode, entry_id, iot_entry
from bench.figures import BenchError, Lanes, Reading
from bench.harness import JOURNAL_OFF, Harness, Pair, Side, fill
from bench.load import Load
from bench.persistence_rows import (
    JOURNAL,
    LOADED_STARTS,
    background_writes,
    saving,
    spent_ns,
    starts,
    worst_ping_us,
)
from bench.wire import TIMEOUT_S, Client

STREAMS, STREAMS_QUICK = 100_000, 20_000
ENTRIES = 20
GROUP, CONSUMER = "group", "consumer"
STREAMS_AT_ONCE = 50
READ_LINES = 17  # the lines of one XREADGROUP reply of one entry with two fields
NAMES = 10


def streams_of(harness: Harness) -> int:
    return harness.plan.size(STREAMS, STREAMS_QUICK)


def key_of(number: int) -> str:
    return f"{KEY}:{number:012d}"


# ---------------------------------------------------------------- the streams


def appends_of(streams: int, entries: int) -> Iterator[Chunk]:
    """XADD commands: `entries` entries to each stream, stream by stream."""
    source = random.Random(SEED)
    for first in range(0, streams, STREAMS_AT_ONCE):
        commands = [
            encode("XADD", key_of(number), entry_id(at), *iot_entry(source.randrange(90_000)))
            for number in range(first, min(first + STREAMS_AT_ONCE, streams))
            for at in range(entries)
        ]
        yield Chunk(b"".join(commands), len(commands))


def send_to_each(
    side: Side, streams: int, lines: int, words: Callable[[str], tuple[str, ...]]
) -> None:
    """Send one command for each stream; each reply has `lines` lines."""
    with Client(side.server.port) as client:
        for first in range(0, streams, STREAMS_AT_ONCE):
            numbers = range(first, min(first + STREAMS_AT_ONCE, streams))
            client.send(b"".join(encode(*words(key_of(number))) for number in numbers))
            client.skip_lines(len(numbers) * lines)
    side.server.settle()


def make_group(key: str) -> tuple[str, ...]:
    return ("XGROUP", "CREATE", key, GROUP, "0")


def read_one(key: str) -> tuple[str, ...]:
    return ("XREADGROUP", "GROUP", GROUP, CONSUMER, "COUNT", "1", "STREAMS", key, ">")


def plain_pair(harness: Harness) -> Pair:
    """A pair with small streams of 20 entries."""
    streams = streams_of(harness)
    return harness.pair(
        "small streams", prepare=lambda pair: fill(pair, appends_of(streams, ENTRIES))
    )


def grouped_pair(harness: Harness) -> Pair:
    """A pair with small streams that have a group with a pending entry, and with a journal."""
    streams = streams_of(harness)

    def prepare(pair: Pair) -> None:
        fill(pair, appends_of(streams, 2))
        for side in pair.values():
            send_to_each(side, streams, 1, make_group)
            send_to_each(side, streams, READ_LINES, read_one)

    return harness.pair("small streams with groups", JOURNAL, prepare)


def check_streams(side: Side, streams: int, entries: int) -> None:
    """Check the number of streams, and the length of the first and of the last one."""
    found = side.call("DBSIZE"), *(side.call("XLEN", key_of(at)) for at in (0, streams - 1))
    if found != (streams, entries, entries):
        raise BenchError(f"{streams} streams of {entries} entries became {found}")


# ---------------------------------------------------------------- files


def save(harness: Harness) -> Lanes:
    """CPU time of SAVE per stream; streams per second."""
    streams = streams_of(harness)

    def once(side: Side) -> Reading:
        before_ns, began = spent_ns(side.server), time.perf_counter()
        side.call("SAVE")
        seconds = time.perf_counter() - began
        side.server.settle()
        return Reading((spent_ns(side.server) - before_ns) / streams, streams / seconds)

    return harness.alternate_sides(plain_pair(harness), once)


def file_size(harness: Harness) -> Lanes:
    """Bytes of the snapshot per stream."""
    streams = streams_of(harness)

    def once(side: Side) -> Reading:
        side.call("SAVE")
        return Reading(side.server.data_bytes() / streams)

    return harness.alternate_sides(plain_pair(harness), once)


def load(harness: Harness) -> Lanes:
    """CPU time per stream of a start from the snapshot; streams per second."""
    streams, pair = streams_of(harness), plain_pair(harness)
    for side in pair.values():
        side.call("SAVE")
    return starts(
        harness, pair, streams, LOADED_STARTS, lambda side: check_streams(side, streams, ENTRIES)
    )


def loaded_memory(harness: Harness) -> Lanes:
    """Resident memory of a whole server that has just loaded the snapshot, per stream."""
    streams = streams_of(harness)

    def once(side: Side) -> Reading:
        side.call("SAVE")
        side.server.kill()
        side.server.start(TIMEOUT_S)
        check_streams(side, streams, ENTRIES)
        side.server.settle()
        return Reading(side.server.rss_bytes() / streams)

    return harness.alternate_sides(plain_pair(harness), once)


def background(begin: Callable[[Side], Iterator[None]]) -> Callable[[Harness], Lanes]:
    """CPU time of a `saving` or `rewriting` per stream, with a child's; streams per second."""

    def measure(harness: Harness) -> Lanes:
        return background_writes(harness, grouped_pair(harness), streams_of(harness), begin)

    return measure


def stall(harness: Harness) -> Lanes:
    """The slowest PING during BGSAVE, in microseconds."""
    return harness.alternate_sides(
        grouped_pair(harness),
        lambda side: Reading(worst_ping_us(side, saving(side))),
    )


def replay(harness: Harness) -> Lanes:
    """CPU time per stream of a start from a journal that was never rewritten; streams per second.

    On servers of its own: another row rewrites the journal.
    """
    harness.stop()
    streams = streams_of(harness)
    return starts(
        harness,
        grouped_pair(harness),
        streams,
        1,
        lambda side: check_streams(side, streams, 2),
    )


# ---------------------------------------------------------------- memory and reads


def memory(harness: Harness) -> Lanes:
    """Growth of resident memory per stream of 20 entries."""
    streams = streams_of(harness)
    return harness.growth_of(
        streams, lambda pair: None, lambda pair: fill(pair, appends_of(streams, ENTRIES))
    )


def group_memory(harness: Harness) -> Lanes:
    """Growth of resident memory per group, each of a stream of its own."""
    streams = streams_of(harness)

    def grow(pair: Pair) -> None:
        for side in pair.values():
            send_to_each(side, streams, 1, make_group)

    return harness.growth_of(streams, lambda pair: fill(pair, appends_of(streams, 2)), grow)


def consumer_memory(harness: Harness) -> Lanes:
    """Growth of resident memory per consumer with one pending entry, each of a group of its own."""
    streams = streams_of(harness)

    def prepare(pair: Pair) -> None:
        fill(pair, appends_of(streams, 2))
        for side in pair.values():
            send_to_each(side, streams, 1, make_group)

    def grow(pair: Pair) -> None:
        for side in pair.values():
            send_to_each(side, streams, READ_LINES, read_one)

    return harness.growth_of(streams, prepare, grow)


def last_entries(harness: Harness) -> Lanes:
    """The last entry of a random stream: XREVRANGE key + - COUNT 1, 16 in a pipeline."""
    request = Load(harness.plan.size(800_000, 80_000), 16, streams_of(harness))
    words = ("XREVRANGE", f"{KEY}:__rand_int__", "+", "-", "COUNT", "1")
    return harness.alternate_sides(plain_pair(harness), lambda side: side.drive(request, words))


def unique_names(harness: Harness) -> Lanes:
    """Growth of resident memory per entry of 10 fields whose names never repeat."""
    entries = harness.plan.size(100_000, 50_000)
    return harness.growth_of(
        entries, lambda pair: None, lambda pair: fill(pair, unique_appends(entries))
    )


def unique_appends(entries: int) -> Iterator[Chunk]:
    source = random.Random(SEED)
    for first in range(0, entries, STREAMS_AT_ONCE):
        commands = [
            encode("XADD", KEY, entry_id(at), *unique_fields(source))
            for at in range(first, min(first + STREAMS_AT_ONCE, entries))
        ]
        yield Chunk(b"".join(commands), len(commands))


def unique_fields(source: random.Random) -> tuple[str, ...]:
    """Ten names of eight hexadecimal digits, each with a value of two digits."""
    words: list[str] = []
    for _ in range(NAMES):
        words += (f"{source.getrandbits(32):08x}", f"{source.randrange(100):02d}")
    return tuple(words)


# ---------------------------------------------------------------- large values


def large_values(
    size_bytes: int, full: int, quick: int, directives: tuple[str, ...] = JOURNAL_OFF
) -> Callable[[Harness], Lanes]:
    """Appends of one value of `size_bytes`, one after the other on one connection."""

    def measure(harness: Harness) -> Lanes:
        times = harness.plan.size(full, quick)
        request = encode("XADD", KEY, "*", "f", "x" * size_bytes)

        def once(side: Side) -> Reading:
            side.empty()
            before_ns, began = side.server.cpu_ns(), time.perf_counter()
            with Client(side.server.port) as client:
                for _ in range(times):
                    client.send(request)
                    client.skip_ids(1)
            seconds = time.perf_counter() - began
            side.server.settle()
            if side.call("XLEN", KEY) != times:
                raise BenchError(f"{times} appends left {side.call('XLEN', KEY)} entries")
            return Reading((side.server.cpu_ns() - before_ns) / times / 1000, times / seconds)

        pair = harness.pair(" ".join(("large values", *directives)), directives)
        for side in pair.values():
            once(side)
        lanes = harness.alternate_sides(pair, once)
        for side in pair.values():
            side.empty()
        return lanes

    return measure
