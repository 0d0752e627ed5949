"""The entries that fill both servers: the same IDs, bytes and order on both sides.

They are sent as `XADD key ms-seq field value ...`, which both servers support, as raw RESP that is
encoded in advance, so that the loader costs little. IDs are explicit, ten entries per millisecond.
The first millisecond is 10^12 because redis-benchmark can only put twelve random digits into an
argument: `1__rand_int__` is then a random millisecond of the stream.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

KEY = "key"
FIRST_MS = 1_000_000_000_000
ENTRIES_PER_MS = 10
RANDOM_MS = "1__rand_int__"
CHUNK_BYTES_MAX = 64 * 1024
SEED = 11

Fields = tuple[str, ...]
"""Field, value, field, value, ..."""

SENSOR_ENTRY: Fields = ("sensor", "01", "temperature", "35.6")
TEN_FIELD_ENTRY: Fields = (
    *("level", "INFO", "host", "web-03.local", "service", "checkout", "pid", "48213"),
    *("method", "POST", "path", "/api/v1/orders/91734", "status", "201"),
    *("duration_ms", "12.75", "user", "u-55301", "request_id", "9f8e7d6c-5b4a392"),
)


@dataclass(frozen=True)
class Chunk:
    """Some whole commands as raw RESP, and their number of replies."""

    data: bytes
    entries: int


@dataclass(frozen=True)
class DataSet:
    """A named, repeatable series of entries; `fields` makes the next entry from a random source."""

    name: str
    entries: int
    fields: Callable[[random.Random], Fields]


def entry_id(index: int) -> str:
    """The ID (`ms-seq`) of the entry with this index."""
    return f"{FIRST_MS + index // ENTRIES_PER_MS}-{index % ENTRIES_PER_MS}"


def milliseconds(entries: int) -> int:
    """The number of milliseconds that a stream of `entries` entries covers."""
    return -(-entries // ENTRIES_PER_MS)


def iot_fields(source: random.Random) -> Fields:
    """`sensor` with two digits, `temperature` with one decimal."""
    return iot_entry(source.randrange(100_000))


IOT_KINDS = 90_000


def iot_entry(number: int) -> Fields:
    """One of the IOT_KINDS different entries."""
    return ("sensor", f"{number % 100:02d}", "temperature", f"{10 + number // 100 % 900 / 10:.1f}")


LEVELS = ("INFO", "WARN", "DEBUG", "ERROR")
SERVICES = ("checkout", "catalog", "identity", "payments", "shipping")
METHODS = ("GET", "PUT", "POST", "DELETE")
STATUSES = ("200", "201", "204", "304", "400", "404", "500")


def log_fields(source: random.Random) -> Fields:
    """Ten fields of a web log, values of 3 to 22 bytes."""
    bits = source.getrandbits(128)
    # One random number for all fields: otherwise the generator would be slower than the servers.
    return (
        "level", LEVELS[bits & 3],
        "host", f"web-{bits >> 2 & 31:02d}.local",
        "service", SERVICES[(bits >> 7 & 255) % 5],
        "pid", str(10_000 + (bits >> 15 & 0x7FFF)),
        "method", METHODS[bits >> 30 & 3],
        "path", f"/api/v1/orders/{bits >> 32 & 0xFFFFF}",
        "status", STATUSES[(bits >> 52 & 255) % 7],
        "duration_ms", f"{(bits >> 60 & 0xFFFF) / 100:.2f}",
        "user", f"u-{bits >> 76 & 0xFFFF:05d}",
        "request_id", f"{bits >> 92 & 0xFFFFFFFF:08x}-{bits & 0xFFFFFFF:07x}",
    )  # fmt: skip


def payload_fields(source: random.Random) -> Fields:
    """One field of 200 random hexadecimal characters."""
    return ("payload", source.randbytes(100).hex())


IOT = DataSet("IoT", 1_000_000, iot_fields)
LOG = DataSet("log", 300_000, log_fields)
PAYLOAD = DataSet("payload", 300_000, payload_fields)


def encode(*arguments: str) -> bytes:
    """One command as RESP (ASCII arguments only)."""
    parts = [f"*{len(arguments)}\r\n"]
    parts += [f"${len(argument)}\r\n{argument}\r\n" for argument in arguments]
    return "".join(parts).encode("ascii")


def chunks(data_set: DataSet, entries: int, key: str = KEY) -> Iterator[Chunk]:
    """The first `entries` entries in chunks of at most CHUNK_BYTES_MAX, the same in every call."""
    commands = _commands(data_set, entries, key)
    kept: list[bytes] = []
    size_bytes = 0
    for command in commands:
        if size_bytes + len(command) > CHUNK_BYTES_MAX:
            yield Chunk(b"".join(kept), len(kept))
            kept, size_bytes = [], 0
        kept.append(command)
        size_bytes += len(command)
    if kept:
        yield Chunk(b"".join(kept), len(kept))


def _commands(data_set: DataSet, entries: int, key: str) -> Iterator[bytes]:
    """The XADD commands. Constant parts are encoded once."""
    source = random.Random(SEED)
    make = data_set.fields
    sample = make(random.Random(SEED))
    head = f"*{3 + len(sample)}\r\n$4\r\nXADD\r\n${len(key)}\r\n{key}\r\n"
    names = [f"${len(name)}\r\n{name}\r\n$" for name in sample[::2]]
    for index in range(entries):
        name_of_entry = entry_id(index)
        values = make(source)[1::2]
        pairs = [
            f"{name}{len(value)}\r\n{value}\r\n" for name, value in zip(names, values, strict=True)
        ]
        yield f"{head}${len(name_of_entry)}\r\n{name_of_entry}\r\n{''.join(pairs)}".encode()


def ranges_data(entries: int) -> Iterator[Chunk]:
    """A stream of `entries` IoT entries.

    They are as random as `IOT`, so that they do not compress too well, but generated ten times
    faster: the ends of all possible commands are encoded in advance, and whole milliseconds are
    assembled at once.
    """
    total_ms, left_over = divmod(entries, ENTRIES_PER_MS)
    if left_over:
        raise ValueError(f"entries must be a multiple of {ENTRIES_PER_MS}")
    source = random.Random(SEED)
    ends = [_end_of_command(number) for number in range(IOT_KINDS)]
    template = _template()
    per_chunk = CHUNK_BYTES_MAX // len(template % ((FIRST_MS, ends[0]) * ENTRIES_PER_MS))
    for first in range(0, total_ms, per_chunk):
        span = range(first, min(first + per_chunk, total_ms))
        drawn = iter(source.choices(ends, k=len(span) * ENTRIES_PER_MS))
        parts = [_millisecond(template, FIRST_MS + ms, drawn) for ms in span]
        yield Chunk(b"".join(parts), len(parts) * ENTRIES_PER_MS)


def _template() -> bytes:
    """The commands of one millisecond, with placeholders for it and for the end of each command."""
    place = "?" * len(str(FIRST_MS))
    heads = [
        encode("XADD", KEY, f"{place}-{seq}", *IOT_FIELDS).rpartition(b"$6\r\nsensor")[0]
        for seq in range(ENTRIES_PER_MS)
    ]
    return b"".join(head.replace(place.encode(), b"%d") + b"%b" for head in heads)


IOT_FIELDS: Fields = ("sensor", "00", "temperature", "10.0")


def _end_of_command(number: int) -> bytes:
    """The end of a command, from the first field on."""
    fields = encode(*iot_entry(number))
    return fields[fields.index(b"$") :]


def _millisecond(template: bytes, ms: int, ends: Iterator[bytes]) -> bytes:
    return template % tuple(
        part for end in itertools.islice(ends, ENTRIES_PER_MS) for part in (ms, end)
    )
