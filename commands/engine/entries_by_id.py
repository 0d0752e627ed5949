"""Entries of a stream with given IDs, as a long reply.

The entries of a consumer's history, or of a claim, are not a range, and an XCLAIM may name them in
any order. A reply keeps the IDs and the blocks with the entries, which never change, and is encoded
as the client reads it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import repeat

from millstream.commands.runtime.replies import NULL_ARRAY, LongReply, Raw, Several
from millstream.ids import Id
from millstream.storage.blocks.block import Block
from millstream.storage.log.log_ranges import blocks_between
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

ENTRIES_PER_PART = 64


def entries_by_id(stream: Stream, ids: list[EntryId], *, in_order: bool = True) -> LongReply:
    """The entries with these IDs as the elements of an array whose head the caller writes; an entry
    that no longer exists is [ID, null]. Later changes of the stream do not affect them."""
    blocks: list[Block] = []
    if ids:
        first, last = (ids[0], ids[-1]) if in_order else (min(ids), max(ids))
        blocks = blocks_between(stream, *first, *last)
    return LongReply(_parts(blocks, ids, in_order, stream.first_kept))


def _parts(
    blocks: list[Block], ids: list[EntryId], in_order: bool, first_kept: EntryId
) -> Iterator[object]:
    lasts = [block.last_id for block in blocks]
    at = 0
    while at < len(ids):
        place, end = bisect_left(lasts, ids[at]), min(at + ENTRIES_PER_PART, len(ids))
        if not in_order:
            end = at + 1
        elif place < len(lasts):
            end = bisect_right(ids, lasts[place], at, end)
        wanted = ids[at:end]
        found: Iterable[bytes | None] = repeat(None, len(wanted))
        if place < len(blocks):
            found = blocks[place].encoded_entries(wanted, first_kept)
        yield Several(
            [Id(*entry_id), NULL_ARRAY] if data is None else Raw(data)
            for entry_id, data in zip(wanted, found, strict=True)
        )
        at = end
