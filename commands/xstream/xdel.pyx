# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Removing entries by their ids: XDEL, XDELEX and XACKDEL.

The extended forms answer for each id and say what becomes of references to the entry (`references`).
All three end in one recorded deletion, XDEL; what leaves a group's pending entries is recorded as
acknowledged.
"""

from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.references cimport (
    DROP_REFERENCES, KEEP_REFERENCES, ONLY_ACKED, ReferenceHandling, drop_references, dropped_most,
    settle_groups, take_reference_handling,
)
from millstream.commands.engine.group_lifecycle cimport change_pending, id_words, live_group, used
from millstream.ids cimport EntryId
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.stream cimport Stream

from millstream.commands.table.registry import command
from millstream.errors import SYNTAX, CommandError

IDS_NOT_POSITIVE = "ERR Number of IDs must be a positive integer"
IDS_TOO_FEW = "ERR The `numids` parameter must match the number of arguments"

# What is answered for an id.
cdef enum:
    NO_SUCH_ENTRY = -1
    DELETED = 1
    REFERENCED = 2


@command(
    "XDEL", arity=-3, flags="write fast", keys=(1, 1, 1), group="stream", since="5.0.0",
    summary="Deletes entries by ID and returns the number deleted.", syntax="key id [id ...]",
    complexity="O(log n) for each id, and a copy of its block",
)
def xdel(Context ctx not None, Args args not None):
    cdef Stream stream = ctx.write_stream_at(&args.items[1])
    cdef EntryId found
    cdef list gone = []
    if stream is None:
        return 0
    args.pos = 2
    while args.pos < args.count:
        args.take_id(&found, False, 0)
    args.pos = 2
    while args.pos < args.count:
        args.take_id(&found, False, 0)
        if stream.delete(found.ms, found.seq):
            gone.append((found.ms, found.seq))
    note_deleted(ctx, ctx.db.key_of(&args.items[1]), gone)
    return len(gone)


cdef int note_deleted(Context ctx, bytes key, list gone) except -1:
    """Report that entries were deleted."""
    if not gone:
        return 0
    return ctx.change((b"XDEL", key, *id_words(ctx, gone)), b"xdel", <uint64_t>len(gone))


# ---------------------------------------------------------------- one answer an id

cdef struct IdBlock:
    Py_ssize_t first
    Py_ssize_t count


cdef IdBlock take_options(Args args, ReferenceHandling* policy) except *:
    """A policy and an IDS block, in any order; of several blocks the last one counts. The ids are
    read later: an error among them shows only where there is something to delete."""
    cdef IdBlock block
    block.first = block.count = 0
    policy.kind = KEEP_REFERENCES
    policy.given = False
    while args.pos < args.count:
        if take_reference_handling(args, policy):
            continue
        if args.pos + 1 >= args.count or not args.next_is(b"IDS"):
            raise CommandError(SYNTAX)
        block.first = args.pos + 1
        block.count = args.skip_ids(IDS_NOT_POSITIVE, IDS_TOO_FEW)
    if block.count == 0:
        raise CommandError(SYNTAX)
    return block


@command(
    "XDELEX", arity=-5, flags="write fast", keys=(1, 1, 1), group="stream", since="8.2.0",
    summary="Deletes entries by ID, with a choice of what happens to references to them.",
    syntax="key [condition: KEEPREF | DELREF | ACKED] {ids: IDS numids id [id ...]}",
    complexity="O(log n) for each id, and a copy of its block",
)
def xdelex(Context ctx not None, Args args not None):
    """An array with one number per ID: 1 (deleted), -1 (no such entry) or, with ACKED, 2 (a group
    has not yet read or acknowledged this ID, whether or not its entry exists). KEEPREF, the
    default, leaves pending entries pending. DELREF removes the IDs from every group's pending
    entries, whether or not their entries still exist.
    """
    cdef ReferenceHandling policy
    cdef Stream stream = ctx.write_stream_at(&args.items[1])
    cdef IdBlock block
    cdef bytes key
    args.pos = 2
    block = take_options(args, &policy)
    if stream is None:
        return [NO_SUCH_ENTRY] * block.count
    ids = args.ids_at(block.first, block.count)
    key = ctx.db.key_of(&args.items[1])
    if policy.kind != KEEP_REFERENCES:
        settle_groups(ctx, key, stream)
    if policy.kind == DROP_REFERENCES:
        drop_references(ctx, key, stream, ids)
    return delete_each(ctx, key, stream, ids, policy.kind == ONLY_ACKED)


cdef list delete_each(Context ctx, bytes key, Stream stream, list ids, bint only_acked):
    """Delete entries, with only_acked those that no group holds; an answer for each id."""
    cdef list answers = []
    cdef list gone = []
    for ms, seq in ids:
        if only_acked and stream.is_held(ms, seq):
            answers.append(REFERENCED)
        elif stream.delete(ms, seq):
            gone.append((ms, seq))
            answers.append(DELETED)
        else:
            answers.append(NO_SUCH_ENTRY)
    note_deleted(ctx, key, gone)
    return answers


@command(
    "XACKDEL", arity=-6, flags="write fast", keys=(1, 1, 1), group="stream", since="8.2.0",
    summary="Acknowledges entries for a group and deletes them, if the option allows it.",
    syntax="key group [condition: KEEPREF | DELREF | ACKED] {ids: IDS numids id [id ...]}",
    complexity="O(log n) for each id, and a copy of its block",
)
def xackdel(Context ctx not None, Args args not None):
    """An array with one number per ID: 1 (acknowledged, and the entry is deleted or was gone
    already), -1 (not pending in this group) or, with ACKED, 2 (acknowledged, but another group has
    not yet read or acknowledged this ID, so an existing entry stays). The options are those of
    XDELEX.
    """
    cdef ReferenceHandling policy
    cdef Stream stream = ctx.read_for_update_at(&args.items[1])  # Redis counts it as a reader
    cdef IdBlock block
    cdef Group group = None
    cdef bytes key
    args.pos = 3
    block = take_options(args, &policy)
    if stream is not None:
        key = ctx.db.key_of(&args.items[1])
        group = live_group(ctx, key, stream, args[2])
    if group is None:
        return [NO_SUCH_ENTRY] * block.count
    ids = args.ids_at(block.first, block.count)
    if policy.kind != KEEP_REFERENCES:
        settle_groups(ctx, key, stream)
    if policy.kind == DROP_REFERENCES:
        ctx.effects.require(dropped_most(key, stream, len(ids)))
    acked = [(ms, seq) for ms, seq in ids if group.acknowledge(ms, seq)]
    if acked:
        change_pending(ctx, b"ACK", key, group.name, acked, <uint64_t>len(acked))
    if policy.kind == DROP_REFERENCES:
        drop_references(ctx, key, stream, acked)
    deleted = delete_each(ctx, key, stream, acked, policy.kind == ONLY_ACKED)
    answers = {
        acked_id: DELETED if answer == NO_SUCH_ENTRY else answer
        for acked_id, answer in zip(acked, deleted)
    }
    used(ctx, key, group)
    # What was not pending in this group is not answered for, nor is an id that comes again.
    return [answers.pop((ms, seq), NO_SUCH_ENTRY) for ms, seq in ids]
