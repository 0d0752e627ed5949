# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Today's Redis consumer groups: XGROUP, XREADGROUP, XACK, XPENDING.

Semantics and error words are Redis 8.6's. The groups are the ones that TREAD and TACK use: delivery
has what both dialects do to a group, and blocked readers of both wait in one queue. What differs is
ownership: XREADGROUP delivers to a named consumer, and such entries are never retried by a timer.
"""

from libc.stdint cimport INT64_MAX as TIME_MAX, UINT64_MAX as MAX, int64_t, uint64_t

from millstream.commands.arguments cimport Args, take_timeout_ms
from millstream.commands.context cimport Context
from millstream.commands.delivery cimport (
    acknowledge, give_new, live_group, new_group, stream_to_write, used,
)
from millstream.commands.ranges cimport (
    length_room, put_length_here, take_end, take_start,
)
from millstream.commands.replies cimport BlockedRead, make_raw
from millstream.encoding cimport Output, Slice, put_null_array
from millstream.ids cimport EntryId, id_less, make_id, parse_id, step_up
from millstream.storage.block cimport Entry, IdText, View, encode_entry
from millstream.storage.group cimport Chunk, Consumer, Group, Pending, PendingAt
from millstream.storage.keyspace cimport Database
from millstream.storage.stream cimport Stream

from millstream.commands.containers import container
from millstream.commands.registry import command
from millstream.commands.replies import NULL_ARRAY, OK, Wait
from millstream.errors import INVALID_ID, SYNTAX, CommandError, shown


KEY_NEEDED = (
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use "
    "the MKSTREAM option to create an empty stream automatically.")
ENTRIES_READ = "ERR value for ENTRIESREAD must be positive or -1"
BUSY_GROUP = "BUSYGROUP Consumer Group name already exists"
NO_CONSUMER_NAME = "ERR The consumer name must not be empty: it stands for deliveries without owner"
UNBALANCED = (
    "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be "
    "specified.")
MEANINGLESS = (
    "ERR The {0} ID is meaningless in the context of XREADGROUP: you want to read the history of "
    "this consumer by specifying a proper ID, or use the > ID to get new messages. The {0} ID "
    "would just return an empty result set.")


# ---------------------------------------------------------------- XGROUP

container("XGROUP", group="stream", summary="A container for consumer groups commands.")


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


cdef Stream existing_stream(Context ctx, Args args):
    """The stream of an XGROUP subcommand that does not make one."""
    cdef Stream stream = ctx.db.writable_at(&args.items[2])
    if stream is None:
        raise CommandError(KEY_NEEDED)
    return stream


cdef Group existing_group(Context ctx, Args args):
    """The group of an XGROUP subcommand that needs it. Its time to live starts anew."""
    cdef Stream stream = existing_stream(ctx, args)
    cdef bytes key = args[2]
    cdef bytes name = args[3]
    cdef Group group = live_group(ctx, key, stream, name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such consumer group '{shown(name)}' for key name '{shown(key)}'")
    used(ctx, key, group)
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
    summary="Creates a consumer group.",
    syntax="key group <id | $> [MKSTREAM] [ENTRIESREAD entries-read]",
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
        if args.next_is(b"MKSTREAM", 8):
            make = True
        elif args.pos + 1 < args.count and args.next_is(b"ENTRIESREAD", 11):
            entries_read = take_entries_read(args)
        else:
            raise malformed(args)
    stream = ctx.db.writable_stream(key)
    absent = stream is None
    if absent and not make:
        raise CommandError(KEY_NEEDED)
    if args.count > 8:
        raise malformed(args)
    group_start(&args.items[4], stream, &start)
    if absent:
        stream = stream_to_write(ctx, key)
    elif live_group(ctx, key, stream, name) is not None:
        raise CommandError(BUSY_GROUP)
    new_group(ctx, key, stream, name, start.ms, start.seq, entries_read, 0)
    return OK


@command(
    "XGROUP|SETID", arity=-5, flags="write", keys=(2, 2, 1), group="stream",
    summary="Sets the last-delivered ID of a consumer group.",
    syntax="key group <id | $> [ENTRIESREAD entries-read]",
)
def xgroup_setid(Context ctx not None, Args args not None):
    cdef int64_t entries_read = -1
    cdef EntryId offset
    cdef Stream stream
    cdef Group group
    cdef Slice* word = &args.items[4]
    args.pos = 5
    while args.pos < args.count:
        if args.pos + 1 >= args.count or not args.next_is(b"ENTRIESREAD", 11):
            raise malformed(args)
        entries_read = take_entries_read(args)
    group = existing_group(ctx, args)
    stream = ctx.db.stream_at(&args.items[2])
    if args.count > 7:
        raise malformed(args)
    if word.size == 1 and (word.ptr[0] == c'-' or word.ptr[0] == c'+'):
        offset.ms = offset.seq = 0 if word.ptr[0] == c'-' else MAX
    else:
        group_start(word, stream, &offset)
    stream.move_group(group, offset.ms, offset.seq, entries_read)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, b"GROUPSETID", args[2], group.name,
                       bytes(make_id(offset.ms, offset.seq, False)), b"%d" % entries_read)
    return OK


@command(
    "XGROUP|DESTROY", arity=4, flags="write", keys=(2, 2, 1), group="stream",
    summary="Destroys a consumer group.", syntax="key group",
    complexity="O(n), n the number of its pending entries",
)
def xgroup_destroy(Context ctx not None, Args args not None):
    cdef Stream stream = existing_stream(ctx, args)
    cdef bytes key = args[2]
    cdef bytes name = args[3]
    if live_group(ctx, key, stream, name) is None:
        return 0
    stream.drop_group(name)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, b"GROUPDROP", key, name)
    ctx.db.mark_ready(key)
    return 1


@command(
    "XGROUP|CREATECONSUMER", arity=5, flags="write denyoom", keys=(2, 2, 1), group="stream",
    summary="Creates a consumer in a consumer group.", syntax="key group consumer",
)
def xgroup_createconsumer(Context ctx not None, Args args not None):
    cdef Group group = existing_group(ctx, args)
    cdef bytes consumer = checked_name(args[4])
    if group.consumer(consumer) is not None:
        return 0
    new_consumer(ctx, args[2], group, consumer)
    return 1


@command(
    "XGROUP|DELCONSUMER", arity=5, flags="write", keys=(2, 2, 1), group="stream",
    summary="Deletes a consumer from a consumer group.", syntax="key group consumer",
    complexity="O(n), n the number of the group's pending entries",
)
def xgroup_delconsumer(Context ctx not None, Args args not None):
    cdef Group group = existing_group(ctx, args)
    cdef bytes consumer = args[4]
    if group.consumer(consumer) is None:
        return 0
    dropped = group.delete_consumer(consumer)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, b"CONSUMERDROP", args[2], group.name, consumer)
    return dropped


cdef bytes checked_name(bytes consumer):
    """A consumer's name; the empty one is how deliveries of TREAD, which nobody owns, are told."""
    if not consumer:
        raise CommandError(NO_CONSUMER_NAME)
    return consumer


cdef Consumer new_consumer(Context ctx, bytes key, Group group, bytes name):
    cdef Consumer made = group.make_consumer(name, ctx.now_ms)
    ctx.keyspace.dirty += 1
    ctx.effects.record(ctx.db.index, b"CONSUMER", key, group.name, name, ctx.now_ms)
    return made


# ---------------------------------------------------------------- XREADGROUP

def stream_key_positions(list words not None) -> list[int]:
    """Indexes of the keys in XREAD's and XREADGROUP's words; ValueError when there are none."""
    skipped = {b"BLOCK": 1, b"COUNT": 1, b"CLAIM": 1, b"GROUP": 2, b"NOACK": 0}
    at = 1
    while at < len(words):
        word = words[at].upper()
        if word == b"STREAMS":
            keys = (len(words) - at - 1) // 2
            if keys == 0 or len(words) - at - 1 != 2 * keys:
                break
            return list(range(at + 1, at + 1 + keys))
        if word not in skipped:
            break
        at += 1 + skipped[word]
    raise ValueError("no balanced list of keys and ids")


@command(
    "XREADGROUP", arity=-7, flags="write blocking movablekeys", group="stream",
    summary="Reads the new entries of a group for one of its consumers, or that consumer's "
            "pending ones; waits for new entries on request.",
    syntax="GROUP group consumer [COUNT count] [BLOCK milliseconds] [NOACK] "
           "STREAMS key [key ...] id [id ...]",
    complexity="O(log n) to find the start and O(m) for the m entries answered",
    find_keys=stream_key_positions,
)
def xreadgroup(Context ctx not None, Args args not None):
    cdef ConsumerRead read = ConsumerRead.__new__(ConsumerRead)
    cdef Py_ssize_t streams
    cdef int64_t timeout_ms = 0
    cdef int64_t limit
    cdef bint block = False
    read.keep = True
    read.limit = MAX
    read.db_index = ctx.db.index
    args.pos = 1
    while True:
        if args.next_is(b"STREAMS", 7):
            break
        if args.next_is(b"COUNT", 5):
            limit = args.take_int()
            read.limit = MAX if limit <= 0 else <uint64_t>limit
        elif args.next_is(b"BLOCK", 5):
            timeout_ms = take_timeout_ms(args)
            if timeout_ms > TIME_MAX - <int64_t>ctx.now_ms:
                raise CommandError("ERR timeout is out of range")
            block = True
        elif args.next_is(b"GROUP", 5):
            read.group = args.take()
            read.consumer = args.take()
        elif args.next_is(b"NOACK", 5):
            read.keep = False
        else:
            raise CommandError(SYNTAX)
    streams = args.count - args.pos
    if streams == 0:
        raise CommandError(SYNTAX)
    if streams & 1:
        raise CommandError(UNBALANCED)
    if read.group is None:
        raise CommandError("ERR Missing GROUP option for XREADGROUP")
    checked_name(read.consumer)
    return first_read(ctx, args, read, streams // 2, block,
                      <int64_t>ctx.now_ms + timeout_ms if timeout_ms else 0)


cdef first_read(Context ctx, Args args, ConsumerRead read, Py_ssize_t count, bint block,
                int64_t deadline_ms):
    """The read when it comes: each stream, its group and its id are checked in turn, and only then
    is anything delivered."""
    cdef Py_ssize_t i
    cdef list opened = []
    cdef list behind = []
    cdef bytes key
    read.keys = []
    for i in range(args.pos, args.pos + count):
        key = args[i]
        opened.append(read.open_one(ctx, key))
        behind.append(read_behind(&args.items[i + count]))
        read.keys.append((read.db_index, key))
    reply = read.serve(ctx, opened, behind)
    if reply is None and block and ctx.may_block:
        read.hold([group for _, group in opened])
    read.note_use(ctx, opened)
    if reply is not None:
        return reply
    return Wait(read, deadline_ms) if block and ctx.may_block else NULL_ARRAY


cdef read_behind(Slice* word):
    """What an id argument asks for: None for new entries (`>`), else the history behind an id."""
    cdef EntryId found
    if word.size == 1 and word.ptr[0] == c'>':
        return None
    if word.size == 1 and (word.ptr[0] == c'$' or word.ptr[0] == c'+'):
        raise CommandError(MEANINGLESS.format(chr(word.ptr[0])))
    if parse_id(word.ptr, word.size, False, 0, &found) < 0:
        raise CommandError(INVALID_ID)
    # Redis notes `>` as the greatest id, so that id means the same.
    return None if found.ms == MAX and found.seq == MAX else (found.ms, found.seq)


cdef class ConsumerRead(BlockedRead):
    """An XREADGROUP. While it waits it holds the groups of all its streams: none of them can end by
    its time to live. It takes no redeliveries, so it is not counted among the retry waiters."""

    cdef tuple open_one(self, Context ctx, bytes key):
        """A stream of the list and its group; the errors of a fresh XREADGROUP also end a wait."""
        cdef Stream stream = ctx.db.writable_stream(key)
        cdef Group group = None
        if stream is not None:
            group = live_group(ctx, key, stream, self.group)
        if group is None:
            raise no_group(key, self.group)
        return stream, group

    cdef serve(self, Context ctx, list opened, list behind):
        """The streams that have something, or None when none has."""
        cdef Output out = None
        cdef Py_ssize_t room = length_room(len(opened))
        cdef uint64_t answered = 0
        cdef Py_ssize_t i
        cdef Stream stream
        cdef Group group
        cdef Consumer consumer
        cdef bytes key
        cdef int resp = ctx.session.resp
        for i in range(len(opened)):
            stream, group = opened[i]
            key = (<tuple>self.keys[i])[1]
            consumer = group.consumer(self.consumer)
            if consumer is None:
                consumer = new_consumer(ctx, key, group, self.consumer)
            consumer.seen_ms = ctx.now_ms
            if behind[i] is None and not stream.has_newer(group.offset_ms, group.offset_seq):
                continue
            if out is None:
                out = Output()
                out.reserve(room)
                out.size = room
            if resp == 2:
                out.put_raw(b"*2\r\n", 4)
            out.put_bulk_bytes(key)
            self.put_entries(ctx, key, stream, group, consumer, behind[i], out)
            answered += 1
        if out is None:
            return None
        put_length_here(out, 0, room, answered)
        if resp == 3:
            out.buf[0] = c'%'
        return make_raw(out.take_bytes())

    cdef int put_entries(self, Context ctx, bytes key, Stream stream, Group group,
                         Consumer consumer, behind, Output out) except -1:
        """The array of one stream's entries."""
        cdef Py_ssize_t at = out.size
        cdef Py_ssize_t room
        cdef uint64_t made
        cdef uint64_t most = stream.length if behind is None else consumer.pending
        room = length_room(min(self.limit, most))
        out.reserve(room)
        out.size += room
        if behind is None:
            made = give_new(ctx, key, stream, group, self.consumer, self.keep, None, self.limit,
                            False, out)
            if self.keep:
                consumer.active_ms = ctx.now_ms
        else:
            made = give_history(ctx, key, stream, group, consumer, behind, self.limit, out)
        return put_length_here(out, at, room, made)

    def attempt(self, Context ctx not None):
        cdef list opened
        if ctx.write_error is not None:
            return None
        ctx.db = <Database>ctx.keyspace.databases[self.db_index]
        opened = []
        for _, key in self.keys:
            if ctx.remade is not None and (self.db_index, key, self.group) in ctx.remade:
                # A waiting TREAD was tried before us and made the group anew: ours is gone.
                ctx.db.stream(key)
                raise no_group(key, self.group)
            opened.append(self.open_one(ctx, key))
        self.hold([group for _, group in opened])
        reply = self.serve(ctx, opened, [None] * len(opened))
        if reply is not None:
            self.note_use(ctx, opened)
        return reply

    cdef int note_use(self, Context ctx, list opened) except -1:
        cdef Py_ssize_t i
        for i in range(len(opened)):
            used(ctx, (<tuple>self.keys[i])[1], (<tuple>opened[i])[1])
        return 0

    def join(self, Stream stream not None, Group group not None) -> None:
        group.blocked_clients += 1
        self.held.append(group)

    cdef int hold(self, list groups) except -1:
        """Be counted as waiting on these groups, and no more on others."""
        cdef Group group
        if self.held is not None:
            for group in self.held:
                group.blocked_clients -= 1
        self.held = groups
        for group in groups:
            group.blocked_clients += 1
        return 0

    def ended(self, Context ctx not None) -> None:
        cdef Database db = <Database>ctx.keyspace.databases[self.db_index]
        cdef Group group
        self.hold([])
        for _, key in self.keys:
            value = db.get(key)
            group = (<Stream>value).group(self.group) if isinstance(value, Stream) else None
            if group is not None:
                # The time to live runs from the end of the wait.
                group.last_used_ms = ctx.now_ms
                ctx.keyspace.schedule(self.db_index, key, group)


cdef no_group(bytes key, bytes name):
    return CommandError(
        f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}' in XREADGROUP with "
        "GROUP option")


cdef uint64_t give_history(Context ctx, bytes key, Stream stream, Group group, Consumer consumer,
                           behind, uint64_t limit, Output out) except? 0xffffffffffffffff:
    """A consumer's own pending entries with ids above `behind`, each thereby delivered once more;
    one whose entry is gone is shown with a null in place of its fields. Returns how many."""
    cdef EntryId start
    cdef Pending* record
    cdef PendingAt at
    cdef View view
    cdef Entry entry
    cdef IdText id_text
    cdef uint64_t made = 0
    cdef uint64_t left = consumer.pending
    cdef list again = []
    cdef uint64_t ms, seq
    start.ms, start.seq = behind
    step_up(&start)
    id_text.size = 0
    id_text.dotted = False
    record = group.first_at_least(start.ms, start.seq, &at)
    while record != NULL and made < limit and made < left:
        if record.consumer == consumer.index:
            if stream.find(record.ms, record.seq, &view, &entry):
                encode_entry(out, &view, &entry, &id_text)
                again.append((record.ms, record.seq))
            else:
                out.put_raw(b"*2\r\n", 4)
                out.put_id(record.ms, record.seq, False)
                put_null_array(out, ctx.session.resp)
            made += 1
        record = group.after(&at)
    for ms, seq in again:
        record = group.find(ms, seq, &at)
        group.redeliver(record, &at, ctx.now_ms, 0, False)
    if again:
        ctx.keyspace.dirty += len(again)
        if ctx.effects.enabled:
            ctx.effects.record(ctx.db.index, b"REDELIVER", key, group.name, ctx.now_ms, b"-", b"-",
                               *[bytes(make_id(ms, seq, False)) for ms, seq in again])
    return made


# ---------------------------------------------------------------- XACK, XPENDING

@command(
    "XACK", arity=-4, flags="write fast", keys=(1, 1, 1), group="stream",
    summary="Acknowledges entries of a group: they are no longer pending.",
    syntax="key group id [id ...]", complexity="O(log n) for each id",
)
def xack(Context ctx not None, Args args not None):
    return acknowledge(ctx, args, False)


@command(
    "XPENDING", arity=-3, flags="readonly", keys=(1, 1, 1), group="stream",
    summary="Answers the pending entries of a group: how many there are, or which.",
    syntax="key group [[IDLE min-idle-time] start end count [consumer]]",
    complexity="O(log n) to find the start and O(m) for the m pending entries looked at",
)
def xpending(Context ctx not None, Args args not None):
    cdef bytes key = args[1]
    cdef bytes name = args[2]
    cdef bytes consumer = None
    cdef EntryId start
    cdef EntryId end
    cdef int64_t min_idle_ms = 0
    cdef int64_t limit = 0
    cdef bint summary = args.count == 3
    cdef Stream stream
    cdef Group group = None
    if not summary:
        if args.count < 6 or args.count > 9:
            raise CommandError(SYNTAX)
        args.pos = 3
        if args.next_is(b"IDLE", 4):
            min_idle_ms = args.take_int()
            if args.count < 8:
                raise CommandError(SYNTAX)
        # The count is looked at before the ids, as Redis does.
        args.pos += 2
        limit = args.take_int()
        args.pos -= 3
        take_start(args, &start, False)
        take_end(args, &end, False)
        args.pos += 1
        if args.pos < args.count:
            consumer = args.take()
    stream = ctx.db.writable_at(&args.items[1])
    if stream is not None:
        group = live_group(ctx, key, stream, name)
    if group is None:
        raise CommandError(
            f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}'")
    used(ctx, key, group)
    if summary:
        return pending_summary(group)
    return pending_entries(ctx, group, start, end, limit, min_idle_ms, consumer)


cdef list pending_summary(Group group):
    """[total, first id, last id, [[consumer, pending], ...]]; the total counts unowned entries, the
    consumers are those that own any, by name."""
    cdef Chunk* first
    cdef Chunk* last
    cdef Consumer consumer
    if group.pending_count == 0:
        return [0, None, None, NULL_ARRAY]
    first = group.chunks[0]
    last = group.chunks[group.chunk_count - 1]
    return [
        group.pending_count,
        make_id(first.items[0].ms, first.items[0].seq, False),
        make_id(last.items[last.used - 1].ms, last.items[last.used - 1].seq, False),
        [[name, b"%d" % consumer.pending]
         for name, consumer in sorted(group.consumers.items()) if consumer.pending],
    ]


cdef list pending_entries(Context ctx, Group group, EntryId start, EntryId end, int64_t limit,
                          int64_t min_idle_ms, bytes consumer):
    """[[id, consumer, idle ms, deliveries], ...] in id order; b"" names nobody."""
    cdef PendingAt at
    cdef Pending* record
    cdef Consumer owner = None
    cdef int64_t idle_ms
    cdef list found = []
    if consumer is not None:
        owner = group.consumer(consumer)
        if owner is None:
            return found
    record = group.first_at_least(start.ms, start.seq, &at)
    while record != NULL and len(found) < limit and not id_less(
            end.ms, end.seq, record.ms, record.seq):
        idle_ms = max(0, <int64_t>(ctx.now_ms - record.last_delivery_ms))
        if idle_ms >= min_idle_ms and (owner is None or record.consumer == owner.index):
            named = group.consumer_list[record.consumer]
            found.append([
                make_id(record.ms, record.seq, False),
                b"" if named is None else (<Consumer>named).name,
                idle_ms,
                record.deliveries,
            ])
        record = group.after(&at)
    return found
