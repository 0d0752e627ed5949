"""The streams that Spark reads: loaded into our server, which then saves a snapshot.

The live rows read the same server, so the snapshot and the server have the same entries. Entries
are sent as `XADD key ms-seq ...` from bytes that are encoded in advance. Values are random, so that
they do not compress too well.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.datasets import ENTRIES_PER_MS, FIRST_MS, SEED, Chunk, encode
from bench.harness import Side
from bench.persistence_rows import LOOK_S, saving
from bench.server import Server
from bench.wire import Client, load

KINDS = 50_000
ENTRIES_PER_CHUNK = 500
STATUSES = ("ok", "ok", "ok", "low battery", "offline")


@dataclass(frozen=True)
class Shape:
    """The number of streams, and of entries in each."""

    streams: int
    entries_each: int

    @property
    def entries(self) -> int:
        return self.streams * self.entries_each

    @property
    def keys(self) -> list[str]:
        return [f"site:{number:05d}" for number in range(self.streams)]


def fill(server: Server, shape: Shape) -> None:
    """Load the streams and save a snapshot."""
    source = random.Random(SEED)
    ends = [_fields(source) for _ in range(KINDS)]
    with Client(server.port) as client:
        load([client], _chunks(shape, ends, source))
    for _ in saving(Side(server, "T")):
        time.sleep(LOOK_S)
    server.settle()


def _fields(source: random.Random) -> bytes:
    """Four fields, as the end of a command."""
    command = encode(
        *("sensor", f"{source.randrange(100):02d}"),
        *("temperature", f"{source.randrange(100, 1000) / 10:.1f}"),
        *("humidity", str(source.randrange(10, 100))),
        *("status", source.choice(STATUSES)),
    )
    return command[command.index(b"$") :]


def _chunks(shape: Shape, ends: list[bytes], source: random.Random) -> Iterator[Chunk]:
    """Chunks, stream by stream. Small streams share chunks, so that they load as fast as large
    ones."""
    parts: list[bytes] = []
    for key in shape.keys:
        head = f"*11\r\n$4\r\nXADD\r\n${len(key)}\r\n{key}\r\n$15\r\n%d-%d\r\n%b".encode()
        for index, end in enumerate(source.choices(ends, k=shape.entries_each)):
            ms, seq = divmod(index, ENTRIES_PER_MS)
            parts.append(head % (FIRST_MS + ms, seq, end))
            if len(parts) == ENTRIES_PER_CHUNK:
                yield Chunk(b"".join(parts), len(parts))
                parts = []
    if parts:
        yield Chunk(b"".join(parts), len(parts))
