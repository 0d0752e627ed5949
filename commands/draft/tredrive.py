"""TREDRIVE: entries that were copied to a dead letter stream go back to their group."""

from __future__ import annotations

from millstream.commands.engine.claiming import no_group
from millstream.commands.engine.dead_letters import append_words, check_appends, entries_after
from millstream.commands.engine.given_options import note_option
from millstream.commands.engine.lifecycle import change_entries, live_group, note_used
from millstream.commands.engine.managed_groups import check_managed, return_ended
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.effects import EFFECT_BYTES, ID_WORD_BYTES
from millstream.commands.runtime.stream_effects import XDEL
from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError
from millstream.ids import Id, parse
from millstream.storage.groups.group import Group
from millstream.storage.streams.stream import Stream

EntryId = tuple[int, int]

COUNT_MAX = 10_000
BAD_COUNT = f"ERR count must be from 1 to {COUNT_MAX}"
FIELDS_WORDS = 18  # the names and values that every copy ends with


class Redrive:
    """The copies that are taken: the IDs of those whose entries return, and these entries; the IDs
    of those that are appended, and the words of each."""

    def __init__(self) -> None:
        self.returned: list[EntryId] = []
        self.sources: dict[EntryId, None] = {}
        self.appended: list[EntryId] = []
        self.words: list[list[bytes]] = []


@command(
    "TREDRIVE dead:key key group count [AFTER id] [FROM name] [APPEND]",
    "write",
    complexity="O(n log m), n entries looked at, m the number of the group's pending entries",
)
def tredrive(ctx: Context, args: Args) -> list[Id | int | None]:
    """Delivers entries again that were copied to a dead letter stream, and deletes the copies.

    The reply is the last ID looked at, or null, and the numbers of entries that were returned to
    the group, appended again, and left.
    """
    dead_key, key, name = args.take(), args.take(), args.take()
    count = args.take_int_between(1, COUNT_MAX, BAD_COUNT)
    after, origin, appends = (0, 0), key, False
    given: dict[bytes, bytes] = {}
    while args.remaining:
        if args.remaining > 1 and args.option(b"AFTER"):
            note_option(given, b"AFTER")
            after = args.take_entry_id(dot_allowed=True)
        elif args.remaining > 1 and args.option(b"FROM"):
            note_option(given, b"FROM")
            origin = args.take()
        elif args.option(b"APPEND"):
            note_option(given, b"APPEND")
            appends = True
        else:
            raise CommandError(SYNTAX)
    stream = ctx.write_stream(key)
    group = None if stream is None else live_group(ctx, key, stream, name)
    dead = ctx.write_stream(dead_key)
    if stream is None or group is None:
        raise no_group(key, name)
    check_managed(group)
    looked_at = [] if dead is None else entries_after(dead, *after, count)
    found = _sorted_out(stream, group, looked_at, origin, appends=appends)
    if found.words:
        check_appends(ctx, stream, len(found.words))
    _require_room(ctx, key, dead_key, found)
    return_ended(ctx, key, stream, group, list(found.sources))
    for words in found.words:
        append_words(ctx, key, stream, words)
    taken = found.returned + found.appended
    if dead is not None and taken:
        for entry_id in taken:
            dead.delete_id(*entry_id)
        change_entries(ctx, (XDEL, dead_key), taken, b"xdel", len(taken))
    note_used(ctx, key, group)
    last = Id(*looked_at[-1][0], True) if looked_at else None
    return [last, len(found.returned), len(found.appended), len(looked_at) - len(taken)]


def _sorted_out(
    stream: Stream,
    group: Group,
    looked_at: list[tuple[EntryId, list[bytes] | None]],
    origin: bytes,
    *,
    appends: bool,
) -> Redrive:
    found = Redrive()
    offset = group.offset_ms, group.offset_seq
    for copy_id, words in looked_at:
        source = None if words is None else _source_of(words, origin, group.name)
        if words is None or source is None:
            continue
        if stream.has_entry(*source):
            is_held = group.pending.has(*source) or group.has_parked(*source)
            if source > offset or is_held or source in found.sources:
                continue
            found.returned.append(copy_id)
            found.sources[source] = None
        elif appends:
            found.appended.append(copy_id)
            found.words.append(words[:-FIELDS_WORDS])
    return found


def _source_of(words: list[bytes], origin: bytes, name: bytes) -> EntryId | None:
    """The ID of the entry that a copy has the fields of, if it was in this stream and group."""
    own = words[-FIELDS_WORDS:]
    fields = dict(zip(own[::2], own[1::2], strict=True))
    if fields[b"dead_stream"] != origin or fields[b"dead_group"] != name:
        return None
    try:
        return parse(fields[b"dead_id"], False)
    except ValueError:
        return None


def _require_room(ctx: Context, key: bytes, dead_key: bytes, found: Redrive) -> None:
    ids = 2 * len(found.returned) + len(found.appended)
    words = sum(len(word) + 12 for words in found.words for word in words)
    effects = (3 + len(found.words)) * (EFFECT_BYTES + len(key) + len(dead_key))
    ctx.effects.require_room(effects + ids * ID_WORD_BYTES + words)
