"""Entries of a stream with given IDs, as a long reply.

The entries of a consumer's history, or of an XAUTOCLAIM, are not a range, but their IDs ascend. A
reply keeps the IDs and the blocks with the entries, which never change, and is encoded as the
client reads it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from millstream.commands.runtime.replies import NULL_ARRAY, LongReply, Raw, Several
from millstream.ids import Id
from millstream.storage.log.log_ranges import blocks_between

if TYPE_CHECKING:
    from collections.abc import Iterator

    from millstream.storage.blocks.block import Block
    from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

ENTRIES_PER_PART = 64


def entries_by_id(stream: Stream, ids: list[EntryId]) -> LongReply:
    """The entries with these ascending IDs as the elements of an array whose head the caller
    writes; an entry that no longer exists is [ID, null]. Later changes of the stream do not affect
    them."""
    blocks = blocks_between(stream, *ids[0], *ids[-1]) if ids else []
    blocks.reverse()
    return LongReply(_parts(blocks, ids, stream.first_kept))


def _parts(blocks: list[Block], ids: list[EntryId], first_kept: EntryId) -> Iterator[object]:
    """`blocks` is in reverse order: the next block is the last item."""
    at = 0
    while at < len(ids):
        while blocks and blocks[-1].last_id < ids[at]:
            blocks.pop()
        end = min(at + ENTRIES_PER_PART, len(ids))
        if blocks:
            end = bisect_right(ids, blocks[-1].last_id, at, end)
        wanted = ids[at:end]
        found = blocks[-1].encoded_entries(wanted, first_kept) if blocks else [None] * len(wanted)
        yield Several(
            [Id(*entry_id), NULL_ARRAY] if data is None else Raw(data)
            for entry_id, data in zip(wanted, found, strict=True)
        )
        at = end
