# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""XADD: appending an entry to a stream.

Semantics and error words are Redis 8.6's. An XADD is a TAPPEND with more options and another form
of the ID. Options that trim (`trim_options`) and messages that count once (`messages`) cost nothing
if they are not used.
"""

from libc.stdint cimport UINT64_MAX as MAX
from libc.string cimport memcmp

from millstream.commands.engine.appending cimport (
    NewEntry, append_entry, append_message, append_new, check_above_promise, check_append, new_id,
    stream_to_append,
)
from millstream.commands.engine.trim_options cimport (
    Trim, begin_trim, check_trim, take_trim, trim_stream,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.ids cimport parse_id, parse_part
from millstream.storage.reservations.held cimport handed_out
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.idempotent_messages import name_of, repeated_id, take_message
from millstream.commands.table.registry import CommandGroup
from millstream.errors import EXHAUSTED, INVALID_ID, CommandError, wrong_arity

command = CommandGroup("stream", since="5.0.0")

ID_TOO_LOW = "ERR The ID specified in XADD is equal or smaller than the target stream top item"
ID_ZERO = "ERR The ID specified in XADD must be greater than 0-0"
ONCE_WITH_ID = "ERR syntax error, IDMP/IDMPAUTO can be used only with auto-generated IDs"


cdef bint read_id(Slice* word, EntryId* out) except -1:
    """Read XADD's ID other than `*`: `ms-seq`, `ms`, or `ms-*`. True for the last form, in which
    the stream generates the sequence number."""
    if word.size > 2 and word.ptr[word.size - 1] == c'*' and word.ptr[word.size - 2] == c'-':
        if parse_part(word.ptr, word.size - 2, &out.ms) < 0:
            raise CommandError(INVALID_ID)
        return True
    if parse_id(word.ptr, word.size, False, 0, out) < 0:
        raise CommandError(INVALID_ID)
    return False


cdef int complete_id(Context ctx, Stream stream, EntryId* out, bint any_seq) except -1:
    """Generate the sequence number if any_seq; refuse an ID that is not above the stream's last
    one."""
    cdef EntryId last = EntryId(0, 0) if stream is None else handed_out(stream)
    if last.ms == MAX and last.seq == MAX:
        raise CommandError(EXHAUSTED)
    if any_seq and out.ms == last.ms and stream is not None:
        if last.seq == MAX:
            raise CommandError(ID_TOO_LOW)
        out.seq = last.seq + 1
    elif any_seq:
        out.seq = 1 if out.ms == 0 else 0
    if not id_less(last.ms, last.seq, out.ms, out.seq):
        raise CommandError(ID_TOO_LOW)
    return 0 if stream is None else check_above_promise(ctx, stream, out[0], "XADD", False)


cdef inline bint is_star(Slice* word) noexcept:
    return word.size == 1 and word.ptr[0] == c'*'


@command(
    "XADD key [NOMKSTREAM] [condition: KEEPREF | DELREF | ACKED] [idmp: IDMPAUTO producer-id | "
    "IDMP producer-id idempotent-id] [trim: <strategy: MAXLEN | MINID> [operator: = | ~] "
    "threshold [LIMIT count]] <id-selector: * | id> field value [field value ...]",
    "write denyoom fast hot nondeterministic_output",
    complexity="O(1), and O(n) of evicted blocks with trimming",
)
def xadd(Context ctx not None, Args args not None):
    """Appends an entry to a stream. Creates the stream if it doesn't exist.

    The reply is the entry's ID; nil with NOMKSTREAM if the stream does not exist. IDMP and IDMPAUTO
    identify the message: if the producer has sent it before, the reply is its first ID, and it is
    not added again. Trimming can also remove entries from every group's pending entries (DELREF),
    or keep entries that a group has not yet read or acknowledged (ACKED).
    """
    args.pos = 2
    # Most requests have no options.
    return append_auto(ctx, args) if is_star(&args.items[2]) else add_with_options(ctx, args)


def append_of_source(Context ctx not None, Args args not None) -> bool:
    """Run the most frequent request of a source: an XADD with an ID and without options. False if
    it is another one: nothing is done."""
    if args.count < 5 or args.items[2].size == 0 or args.items[0].size != 4 or memcmp(
            args.items[0].ptr, b"XADD", 4) != 0:
        return False
    if not 48 <= <unsigned char>args.items[2].ptr[0] <= 57:  # `*` is below the digits
        return False
    args.pos = 2
    add_with_options(ctx, args)
    return True


cdef append_auto(Context ctx, Args args):
    """Append the words after the `*` at the cursor."""
    cdef Slice* items = &args.items[args.pos + 1]
    cdef Py_ssize_t count = args.count - args.pos - 1
    if count < 2 or count & 1:
        raise wrong_arity("xadd")
    return append_new(ctx, &args.items[1], items, count, False)


cdef add_with_options(Context ctx, Args args):
    cdef Trim trim
    cdef NewEntry entry
    cdef Stream stream
    cdef bint auto
    cdef bint any_seq = False
    cdef bint make = True
    cdef tuple message
    cdef bytes producer = None
    cdef bytes iid = None
    message = take_options(args, &trim, &make)
    entry.items = &args.items[args.pos + 1]
    entry.count = args.count - args.pos - 1
    auto = is_star(&args.items[args.pos])
    if not auto:
        # A malformed ID is reported before contradictory options, as in Redis.
        any_seq = read_id(&args.items[args.pos], &entry.id)
        if message is not None and not is_obeyed(ctx):
            raise CommandError(ONCE_WITH_ID)
    check_trim(&trim)
    if entry.count < 2 or entry.count & 1:
        raise wrong_arity("xadd")
    if not auto and not any_seq and entry.id.ms == 0 and entry.id.seq == 0:
        raise CommandError(ID_ZERO)
    stream = ctx.write_stream_at(&args.items[1])
    if stream is None and not make:
        return None
    if message is not None:
        producer, iid = message
        if iid is None:
            iid = name_of([
                entry.items[i].ptr[:entry.items[i].size] for i in range(entry.count)])
        if stream is not None and auto:
            first = repeated_id(ctx, args[1], stream, producer, iid)
            if first is not None:
                return first
        if auto and is_obeyed(ctx):
            return None  # it was a repeat at the source
    if not auto:
        if stream is not None and stream.restrictions:
            check_append(ctx, stream)  # no other ID would be accepted either
        complete_id(ctx, stream, &entry.id, any_seq)
    stream = stream_to_append(ctx, &args.items[1], entry.items, entry.count)
    if auto:
        new_id(ctx, stream, &entry.id)
    if producer is None:
        reply = append_entry(ctx, &args.items[1], stream, &entry, False)
    else:
        reply = append_message(ctx, &args.items[1], stream, &entry, producer, iid)
    if trim.by_length or trim.by_id:
        trim_after_append(ctx, ctx.db.key_of(&args.items[1]), stream, &trim)
    return reply


cdef bint is_obeyed(Context ctx) except -1:
    """True if the request is one of the source that this server follows. The source has chosen the ID
    of a message, and sends `*` for a repeat."""
    return getattr(ctx.session, "is_obeyed", False)


cdef int trim_after_append(Context ctx, bytes key, Stream stream, Trim* trim) except -1:
    """Trim after a completed append. Entries that the journal has no room to list stay until the
    next trim."""
    try:
        trim_stream(ctx, key, stream, trim, False)
    except CommandError:
        pass
    return 0


cdef tuple take_options(Args args, Trim* trim, bint* make):
    """Take the options before the ID, where the cursor then is; NOMKSTREAM sets `make` to False.
    Returns the producer and the name of the message, None without IDMP."""
    cdef tuple message = None
    cdef tuple taken
    begin_trim(trim)
    while args.pos < args.count and not is_star(&args.items[args.pos]):
        if args.next_is(b"NOMKSTREAM"):
            make[0] = False
        elif not take_trim(args, trim):
            taken = take_message(args, message) if may_be_idmp(&args.items[args.pos]) else None
            if taken is None:
                break
            message = taken
    if args.pos >= args.count:
        check_trim(trim)
        raise wrong_arity("xadd")
    return message


cdef inline bint may_be_idmp(Slice* word) noexcept:
    """False for an ID, which most requests have here."""
    return word.size >= 4 and (word.ptr[0] == c'I' or word.ptr[0] == c'i')
