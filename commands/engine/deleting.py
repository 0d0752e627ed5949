"""Deleting entries by their IDs with a reply for each ID, for XDELEX and XACKDEL.

Deletions are recorded as one effect, XDEL, as those of the command XDEL.
"""

from __future__ import annotations

from millstream.commands.engine.lifecycle import change_entries
from millstream.commands.engine.trim_options import take_references
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.stream_effects import XDEL
from millstream.errors import SYNTAX, CommandError
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

IDS_NOT_POSITIVE = "ERR Number of IDs must be a positive integer"
IDS_TOO_FEW = "ERR The `numids` parameter must match the number of arguments"

# The replies for an ID.
NO_SUCH_ENTRY, DELETED, REFERENCED = -1, 1, 2


def take_deletion(args: Args) -> tuple[int, int, int]:
    """Take the handling of references and the block of IDs, in any order; returns the handling, the
    index of the first ID and their number. Of several IDS blocks the last one counts. The IDs are
    parsed later, so a malformed ID is reported only if the stream exists. A second word for
    references is not an option, as in Redis."""
    references = first = count = 0
    while args.remaining:
        if not references and (references := take_references(args)):
            continue
        if args.remaining < 2 or not args.option(b"IDS"):
            raise CommandError(SYNTAX)
        first = args.pos + 1
        count = args.skip_ids(IDS_NOT_POSITIVE, IDS_TOO_FEW)
    if not count:
        raise CommandError(SYNTAX)
    return references, first, count


def delete_each(
    ctx: Context, key: bytes, stream: Stream, ids: list[EntryId], *, only_acked: bool
) -> list[int]:
    """Delete entries, with only_acked only those that no group holds; returns a reply for each
    ID."""
    answers = []
    gone = []
    for entry_id in ids:
        if only_acked and stream.is_held(*entry_id):
            answers.append(REFERENCED)
        elif stream.delete_id(*entry_id):
            gone.append(entry_id)
            answers.append(DELETED)
        else:
            answers.append(NO_SUCH_ENTRY)
    _report(ctx, key, gone)
    return answers


def _report(ctx: Context, key: bytes, gone: list[EntryId]) -> None:
    if gone:
        change_entries(ctx, (XDEL, key), gone, b"xdel", len(gone))
