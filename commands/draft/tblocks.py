"""TBLOCKS: whole blocks, for readers of millions of entries.

Blocks are sent in the form of a snapshot (docs/formats.md). The server copies them and adds a
checksum, instead of encoding every entry; the reader decodes them with the code that reads
snapshots, instead of making an object of every word.
"""

from __future__ import annotations

from collections.abc import Iterator

from millstream.commands.engine.group_replies import shown_count
from millstream.commands.engine.ranges import take_bounds
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import ArrayHead, LongReply, MapHead, Several
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError
from millstream.ids import Id
from millstream.storage.blocks.block import Block
from millstream.storage.log.log_ranges import next_blocks

PAGE_BYTES = 1_048_576
PAGE_BLOCKS_MAX = 16_384  # they are found in one step, before the first is sent
NOT_POSITIVE = "ERR value is out of range, must be positive"


@command(
    "TBLOCKS key start end [COUNT blocks] [BYTES bytes]",
    "readonly",
    complexity="O(log n) to find the start and O(m) for the m bytes returned",
)
def tblocks(ctx: Context, args: Args) -> LongReply | None:
    """Returns the blocks that hold the entries between two IDs, page by page."""
    key = args.take()
    start, end = take_bounds(args, True)
    most, size_bytes = PAGE_BLOCKS_MAX, PAGE_BYTES
    while args.remaining:
        if args.option(b"COUNT"):
            most = min(_take_positive(args), PAGE_BLOCKS_MAX)
        elif args.option(b"BYTES"):
            size_bytes = _take_positive(args)
        else:
            raise CommandError(SYNTAX)
    stream = ctx.read_stream(key)
    if stream is None:
        return None
    start, end = max(start, stream.first_kept), min(end, stream.last_id)
    blocks, following = next_blocks(stream, start, end, most, size_bytes)
    facts: dict[bytes, object] = {
        b"first-id": Id(*start, True),
        b"last-id": Id(*end, True),
        b"next-id": None if following is None else Id(*following, True),
        b"length": len(stream),
        b"entries-added": shown_count(stream.entries_added),
        b"entries-evicted": stream.entries_evicted,
        b"max-evicted-id": Id(*stream.max_evicted_id, True),
        b"incarnation": stream.incarnation,
    }
    return LongReply(_page(facts, blocks))


def _take_positive(args: Args) -> int:
    number = args.take_int()
    if number <= 0:
        raise CommandError(NOT_POSITIVE)
    return number


def _page(facts: dict[bytes, object], blocks: list[Block]) -> Iterator[object]:
    yield MapHead(len(facts) + 1)
    yield Several(word for fact in facts.items() for word in fact)
    yield b"blocks"
    yield ArrayHead(len(blocks))
    blocks.reverse()
    while blocks:
        yield blocks.pop().to_bytes()
