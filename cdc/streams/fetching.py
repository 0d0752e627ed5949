"""Entries of a stream on their way from millstream to a worker, in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from millstream.cdc.streams.changes import Id
from millstream.pipeline.range_plan import Range
from millstream.pipeline.range_reader import open_range
from millstream.pipeline.server_connection import ServerConnection
from millstream.storage.blocks.block import Block

Words: TypeAlias = list[bytes]
Entry: TypeAlias = tuple[Id, Words]

ENTRIES_MAX = 20_000
BYTES_MAX = 32 << 20


class StreamChanged(Exception):
    """The stream is no longer what the plan was made for: it was deleted, created again or
    trimmed."""


def fetch(
    server: ServerConnection, range_: Range, entries_max: int = ENTRIES_MAX
) -> Iterator[list[Entry]]:
    """The entries of a range, as many at a time as a worker may hold. StreamChanged if some of them
    no longer exist."""
    pages = open_range(server, range_)
    chunk: list[Entry] = []
    size_bytes = 0
    for page in pages.pages():
        if page.max_evicted_id > range_.after:
            raise StreamChanged
        for data in page.blocks:
            size_bytes += len(data)
            for ms, seq, words in Block.from_bytes(data).entries():
                if page.first <= (ms, seq) <= page.last:
                    chunk.append(((ms, seq), words))
                    if len(chunk) >= entries_max:
                        yield chunk
                        chunk, size_bytes = [], 0
            if size_bytes >= BYTES_MAX and chunk:
                yield chunk
                chunk, size_bytes = [], 0
    if pages.last_page is None or pages.last_page.incarnation != range_.incarnation:
        raise StreamChanged
    if chunk:
        yield chunk
