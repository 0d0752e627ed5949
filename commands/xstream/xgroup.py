"""XGROUP: creating, moving and removing consumer groups and their consumers.

The groups are the ones that TREAD and TACK use, too. Semantics and error words are those of Redis.
"""

from __future__ import annotations

from millstream.commands.engine.lifecycle import (
    checked_consumer_name,
    end_group,
    live_group,
    new_consumer,
    new_group,
    note_used,
    read_effects_most,
)
from millstream.commands.engine.managed_groups import GiveBack, held_ids
from millstream.commands.runtime.arguments import Args
from millstream.commands.runtime.context import Context
from millstream.commands.runtime.replies import OK, Simple
from millstream.commands.runtime.stream_effects import CONSUMERDROP, GROUPSETID
from millstream.commands.table.containers import Container, wrong_subcommand
from millstream.errors import INVALID_ID, CommandError, shown
from millstream.ids import Id, parse
from millstream.storage.groups.group import Group
from millstream.storage.groups.pending_sweeps import delete_consumer
from millstream.storage.streams.stream import Stream

KEY_NEEDED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically."
)
ENTRIES_READ = "ERR value for ENTRIESREAD must be positive or -1"
BUSY_GROUP = "BUSYGROUP Consumer Group name already exists"
ID_MAX = 2**64 - 1


xgroup_command = Container(
    "XGROUP", "stream", "A container for consumer groups commands.", since="5.0.0", tags="write"
)


def _take_entries_read(args: Args) -> int:
    entries_read = args.take_int()
    if entries_read < -1:
        raise CommandError(ENTRIES_READ)
    return entries_read


def _possible(entries_read: int, stream: Stream) -> int:
    """Limit a count of entries read to the number of entries ever added."""
    return min(entries_read, stream.entries_added) if entries_read > 0 else entries_read


def _existing_stream(ctx: Context, key: bytes) -> Stream:
    """The stream of a subcommand that does not create one."""
    stream = ctx.write_stream(key)
    if stream is None:
        raise CommandError(KEY_NEEDED)
    return stream


def _existing_group(ctx: Context, key: bytes, name: bytes) -> tuple[Stream, Group]:
    """The stream and the group of a subcommand that needs both. A successful subcommand must call
    `note_used` at its end."""
    stream = _existing_stream(ctx, key)
    group = live_group(ctx, key, stream, name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such consumer group '{shown(name)}' for key name '{shown(key)}'"
        )
    return stream, group


def _group_start(word: bytes, stream: Stream | None) -> tuple[int, int]:
    """The ID after which a group begins or continues: `$` for the stream's last ID, or an ID."""
    if word == b"$":
        return (0, 0) if stream is None else stream.last_id
    try:
        return parse(word, False)
    except ValueError:
        raise CommandError(INVALID_ID) from None


@xgroup_command(
    "CREATE key group <id-selector: id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
    "denyoom",
    keys="RW insert",
)
def xgroup_create(ctx: Context, args: Args) -> Simple:
    """Creates a consumer group."""
    key, name, start = args.take(), args.take(), args.take()
    make, entries_read = False, -1
    while args.remaining:
        if args.option(b"MKSTREAM"):
            make = True
        elif args.remaining > 1 and args.option(b"ENTRIESREAD"):
            entries_read = _take_entries_read(args)
        else:
            raise wrong_subcommand("XGROUP", args[1])
    stream = ctx.write_stream(key)
    if stream is None and not make:
        raise CommandError(KEY_NEEDED)
    if args.count > 8:
        raise wrong_subcommand("XGROUP", args[1])
    ms, seq = _group_start(start, stream)
    if stream is None:
        stream = ctx.open_stream(key)
    elif live_group(ctx, key, stream, name) is not None:
        raise CommandError(BUSY_GROUP)
    new_group(ctx, key, stream, name, (ms, seq), _possible(entries_read, stream), 0)
    return OK


@xgroup_command("SETID key group <id-selector: id | $> [ENTRIESREAD entries-read]")
def xgroup_setid(ctx: Context, args: Args) -> Simple:
    """Sets the last-delivered ID of a consumer group."""
    key, name, word = args.take(), args.take(), args.take()
    entries_read = -1
    while args.remaining:
        if args.remaining < 2 or not args.option(b"ENTRIESREAD"):
            raise wrong_subcommand("XGROUP", args[1])
        entries_read = _take_entries_read(args)
    stream, group = _existing_group(ctx, key, name)
    if args.count > 7:
        raise wrong_subcommand("XGROUP", args[1])
    extremes = {b"-": (0, 0), b"+": (ID_MAX, ID_MAX)}
    ms, seq = extremes.get(word) or _group_start(word, stream)
    entries_read = _possible(entries_read, stream)
    stream.move_group(group, ms, seq, entries_read)
    offset = bytes(Id(ms, seq))
    ctx.changed(GROUPSETID, key, group.name, offset, b"%d" % entries_read, event=b"xgroup-setid")
    note_used(ctx, key, group)
    return OK


@xgroup_command(
    "DESTROY key group",
    "removes",
    complexity="O(n), n the number of its pending entries",
    keys="RW delete",
)
def xgroup_destroy(ctx: Context, args: Args) -> int:
    """Destroys a consumer group."""
    key, name = args.take(), args.take()
    stream = _existing_stream(ctx, key)
    if live_group(ctx, key, stream, name) is None:
        return 0
    end_group(ctx, key, stream, name)
    return 1


@xgroup_command("CREATECONSUMER key group consumer", "denyoom", since="6.2.0", keys="RW insert")
def xgroup_createconsumer(ctx: Context, args: Args) -> int:
    """Creates a consumer in a consumer group."""
    key, name, consumer = args.take(), args.take(), args.take()
    _, group = _existing_group(ctx, key, name)
    checked_consumer_name(consumer)
    is_new = group.pending.consumer(consumer) is None
    if is_new:
        new_consumer(ctx, key, group, consumer)
    note_used(ctx, key, group)
    return int(is_new)


@xgroup_command(
    "DELCONSUMER key group consumer",
    "removes",
    complexity="O(n), n the number of the group's pending entries",
    keys="RW delete",
)
def xgroup_delconsumer(ctx: Context, args: Args) -> int:
    """Deletes a consumer from a consumer group."""
    key, name, consumer = args.take(), args.take(), args.take()
    stream, group = _existing_group(ctx, key, name)
    dropped = 0
    if group.pending.consumer(consumer) is not None:
        if group.timeout_ms:  # the entries stay: other consumers get them
            held = held_ids(group, consumer)
            ctx.effects.require_room(read_effects_most(key, group, consumer, len(held)))
            GiveBack(b"SILENT").from_holder(ctx, key, stream, group, consumer, held)
            dropped = len(held)
        dropped += delete_consumer(group, consumer)
        ctx.changed(CONSUMERDROP, key, group.name, consumer, event=b"xgroup-delconsumer")
    note_used(ctx, key, group)
    return dropped
