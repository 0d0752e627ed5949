# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""TNACK: a reader of a managed group gives entries back, for now or for later.

Only entries that the reader holds are touched, so a reader that has lost an entry cannot disturb
the next one. The empty name stands for the readers of TREAD, which have none.
"""

from libc.stdint cimport int64_t

from millstream.commands.engine.claiming cimport Target, take_target
from millstream.commands.engine.lifecycle cimport note_used, read_effects_most
from millstream.commands.engine.managed_groups cimport (
    check_managed, give_back_by, give_back_held, make_codes,
)
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Ids, ids_of
from millstream.entry_id cimport EntryId

from millstream.commands.engine.given_options import note_option, quoted
from millstream.commands.engine.managed_groups import held_ids
from millstream.commands.table.registry import command
from millstream.errors import BAD_NUMIDS, NEEDS_IDS, SYNTAX, TOO_FEW_IDS, CommandError

DELAY_MAX_MS = 30 * 86_400_000
BAD_DELAY = f"ERR DELAY must be from 0 to {DELAY_MAX_MS}"
BAD_REASON = "ERR REASON must have at most 1024 bytes"
REASON_MAX_BYTES = 1024
DELAY_WITH_FATAL = f"{SYNTAX}, DELAY cannot be used with FATAL"


@command(
    "TNACK key group consumer [mode: SILENT | FAIL | FATAL] [DELAY ms] [REASON text] "
    "<which: {ids: IDS numids id [id ...]} | ALL>",
    "write fast hot",
    complexity="O(log n) for each ID, n the number of the group's pending entries; with ALL O(n)",
)
def tnack(Context ctx not None, Args args not None):
    """Gives entries that a consumer holds back to their group, for now or for later.

    The reply is a code for each ID: 1 if the entry was given back, 2 if it was copied to the dead
    letter stream, 3 if it is dead and not copied yet, -1 if the consumer does not hold it. With
    ALL, the number of entries: all that the consumer held.
    """
    cdef Target target = take_target(ctx, args)
    cdef bytes holder = args.take()
    cdef bytes mode = b"FAIL"
    cdef bytes reason = b""
    cdef bytes codes
    cdef int64_t delay_ms = -1
    cdef Py_ssize_t first = 0
    cdef Py_ssize_t count = 0
    cdef dict given = {}
    cdef bint everything = False
    cdef Ids ids
    while args.pos < args.count:
        if args.next_is(b"SILENT"):
            mode = take_mode(given, b"SILENT")
        elif args.next_is(b"FAIL"):
            mode = take_mode(given, b"FAIL")
        elif args.next_is(b"FATAL"):
            mode = take_mode(given, b"FATAL")
        elif args.count - args.pos > 1 and args.next_is(b"DELAY"):
            note_option(given, b"DELAY")
            delay_ms = args.take_int_between(0, DELAY_MAX_MS, BAD_DELAY)
        elif args.count - args.pos > 1 and args.next_is(b"REASON"):
            note_option(given, b"REASON")
            reason = args.take()
            if len(reason) > REASON_MAX_BYTES:
                raise CommandError(BAD_REASON)
        elif args.count - args.pos > 1 and args.next_is(b"IDS"):
            note_option(given, b"IDS", b"which")
            first = args.pos + 1
            count = args.skip_ids(BAD_NUMIDS, TOO_FEW_IDS)
        elif args.next_is(b"ALL"):
            note_option(given, b"ALL", b"which")
            everything = True
        else:
            raise CommandError(f"ERR Unrecognized TNACK option '{quoted(args[args.pos])}'")
    if not count and not everything:
        raise CommandError(NEEDS_IDS)
    if mode == b"FATAL" and delay_ms >= 0:
        raise CommandError(DELAY_WITH_FATAL)
    ids = ids_at(args, first, count)
    check_managed(target.group)
    if everything:
        ids = all_held(ctx, target, holder)
    codes = give_back_held(ctx, target, holder, give_back_by(mode, delay_ms, reason), ids)
    note_used(ctx, target.key, target.group)
    return len(codes) if everything else make_codes(codes)


cdef bytes take_mode(dict given, bytes word):
    note_option(given, word, b"mode")
    return word


cdef Ids ids_at(Args args, Py_ssize_t first, Py_ssize_t count):
    """`count` IDs of either dialect from the word `first` on."""
    cdef EntryId found
    cdef Ids ids = Ids.__new__(Ids)
    args.pos = first
    while args.pos < first + count:
        args.take_id(&found, True, 0)
        ids.add(found.ms, found.seq)
    return ids


cdef Ids all_held(Context ctx, Target target, bytes holder):
    """The IDs of all entries that a consumer holds; their number has no limit."""
    cdef list held = held_ids(target.group, holder)
    ctx.effects.require(read_effects_most(target.key, target.group, b"", len(held)))
    ctx.timed_alone = True
    return ids_of(held)
