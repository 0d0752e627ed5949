# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""XGROUP: consumer groups and their consumers are made, moved and removed.

The groups are the ones that TREAD and TACK use, too. Semantics and error words are Redis 8.6's.
"""

from libc.stdint cimport UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context
from millstream.commands.upkeep cimport (
    end_group, live_group, new_consumer, new_group, used,
)
from millstream.encoding cimport Slice
from millstream.ids cimport EntryId, make_id, parse_id
from millstream.storage.group cimport Group
from millstream.storage.stream cimport Stream

from millstream.commands.containers import container
from millstream.commands.registry import command
from millstream.commands.replies import OK
from millstream.errors import INVALID_ID, CommandError, shown

KEY_NEEDED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically.")
ENTRIES_READ = "ERR value for ENTRIESREAD must be positive or -1"
BUSY_GROUP = "BUSYGROUP Consumer Group name already exists"
NO_CONSUMER_NAME = "ERR The consumer name must not be empty: it stands for deliveries without owner"


container(
    "XGROUP", group="stream", since="5.0.0",
    summary="A container for consumer groups commands.")


cdef malformed(Args args):
    """Redis' words for options that do not fit a subcommand."""
    return CommandError(
        f"ERR unknown subcommand or wrong number of arguments for '{shown(args[1])}'. "
        "Try XGROUP HELP.")


cdef int64_t take_entries_read(Args args) except? -1:
    cdef int64_t entries_read = args.take_int()
    if entries_read < -1:
        raise CommandError(ENTRIES_READ)
    return entries_read


cdef int64_t possible(int64_t entries_read, Stream stream) noexcept:
    """Nobody has read more entries than were ever added."""
    if entries_read > 0 and <uint64_t>entries_read > stream.entries_added:
        return stream.entries_added
    return entries_read


cdef Stream existing_stream(Context ctx, Args args):
    """The stream of an XGROUP subcommand that does not make one."""
    cdef Stream stream = ctx.write_stream_at(&args.items[2])
    if stream is None:
        raise CommandError(KEY_NEEDED)
    return stream


cdef Group existing_group(Context ctx, Args args):
    """The group of an XGROUP subcommand that needs it; `used` is to follow when it is not refused."""
    cdef Stream stream = existing_stream(ctx, args)
    cdef bytes key = args[2]
    cdef bytes name = args[3]
    cdef Group group = live_group(ctx, key, stream, name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such consumer group '{shown(name)}' for key name '{shown(key)}'")
    return group


cdef int group_start(Slice* word, Stream stream, EntryId* out) except -1:
    """Where a group is to begin or go on: `$` for the stream's last id, or an id."""
    if word.size == 1 and word.ptr[0] == c'$':
        out.ms = 0 if stream is None else stream.last_ms
        out.seq = 0 if stream is None else stream.last_seq
        return 0
    if parse_id(word.ptr, word.size, False, 0, out) < 0:
        raise CommandError(INVALID_ID)
    return 0


@command(
    "XGROUP|CREATE", arity=-5, flags="write denyoom", keys=(2, 2, 1), group="stream",
    since="5.0.0", summary="Creates a consumer group.",
    syntax="key group <id-selector: id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
)
def xgroup_create(Context ctx not None, Args args not None):
    cdef bytes key = args[2]
    cdef bytes name = args[3]
    cdef bint make = False
    cdef bint absent
    cdef int64_t entries_read = -1
    cdef EntryId start
    cdef Stream stream
    args.pos = 5
    while args.pos < args.count:
        if args.next_is(b"MKSTREAM"):
            make = True
        elif args.pos + 1 < args.count and args.next_is(b"ENTRIESREAD"):
            entries_read = take_entries_read(args)
        else:
            raise malformed(args)
    stream = ctx.write_stream(key)
    absent = stream is None
    if absent and not make:
        raise CommandError(KEY_NEEDED)
    if args.count > 8:
        raise malformed(args)
    group_start(&args.items[4], stream, &start)
    if absent:
        stream = ctx.open_stream(key)
    elif live_group(ctx, key, stream, name) is not None:
        raise CommandError(BUSY_GROUP)
    new_group(ctx, key, stream, name, start.ms, start.seq, possible(entries_read, stream), 0)
    return OK


@command(
    "XGROUP|SETID", arity=-5, flags="write", keys=(2, 2, 1), group="stream",
    since="5.0.0", summary="Sets the last-delivered ID of a consumer group.",
    syntax="key group <id-selector: id | $> [ENTRIESREAD entries-read]",
)
def xgroup_setid(Context ctx not None, Args args not None):
    cdef int64_t entries_read = -1
    cdef EntryId offset
    cdef Stream stream
    cdef Group group
    cdef Slice* word = &args.items[4]
    args.pos = 5
    while args.pos < args.count:
        if args.pos + 1 >= args.count or not args.next_is(b"ENTRIESREAD"):
            raise malformed(args)
        entries_read = take_entries_read(args)
    group = existing_group(ctx, args)
    stream = existing_stream(ctx, args)
    if args.count > 7:
        raise malformed(args)
    if word.size == 1 and (word.ptr[0] == c'-' or word.ptr[0] == c'+'):
        offset.ms = offset.seq = 0 if word.ptr[0] == c'-' else MAX
    else:
        group_start(word, stream, &offset)
    entries_read = possible(entries_read, stream)
    stream.move_group(group, offset.ms, offset.seq, entries_read)
    ctx.change((b"GROUPSETID", args[2], group.name,
                bytes(make_id(offset.ms, offset.seq, False)), b"%d" % entries_read),
               b"xgroup-setid", 1)
    used(ctx, args[2], group)
    return OK


@command(
    "XGROUP|DESTROY", arity=4, flags="write", keys=(2, 2, 1), group="stream",
    since="5.0.0", summary="Destroys a consumer group.", syntax="key group",
    complexity="O(n), n the number of its pending entries",
)
def xgroup_destroy(Context ctx not None, Args args not None):
    cdef Stream stream = existing_stream(ctx, args)
    cdef bytes key = args[2]
    cdef bytes name = args[3]
    if live_group(ctx, key, stream, name) is None:
        return 0
    end_group(ctx, key, stream, name)
    return 1


@command(
    "XGROUP|CREATECONSUMER", arity=5, flags="write denyoom", keys=(2, 2, 1), group="stream",
    since="6.2.0", summary="Creates a consumer in a consumer group.", syntax="key group consumer",
)
def xgroup_createconsumer(Context ctx not None, Args args not None):
    cdef Group group = existing_group(ctx, args)
    cdef bytes consumer = checked_name(args[4])
    cdef bint is_new = group.consumer(consumer) is None
    if is_new:
        new_consumer(ctx, args[2], group, consumer)
    used(ctx, args[2], group)
    return 1 if is_new else 0


@command(
    "XGROUP|DELCONSUMER", arity=5, flags="write", keys=(2, 2, 1), group="stream",
    since="5.0.0", summary="Deletes a consumer from a consumer group.", syntax="key group consumer",
    complexity="O(n), n the number of the group's pending entries",
)
def xgroup_delconsumer(Context ctx not None, Args args not None):
    cdef Group group = existing_group(ctx, args)
    cdef bytes consumer = args[4]
    dropped = 0
    if group.consumer(consumer) is not None:
        dropped = group.delete_consumer(consumer)
        ctx.change((b"CONSUMERDROP", args[2], group.name, consumer), b"xgroup-delconsumer", 1)
    used(ctx, args[2], group)
    return dropped


cdef bytes checked_name(bytes consumer):
    """A consumer's name; the empty one is how deliveries of TREAD, which nobody owns, are told."""
    if not consumer:
        raise CommandError(NO_CONSUMER_NAME)
    return consumer
