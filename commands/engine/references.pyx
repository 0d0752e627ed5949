# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What removing an entry means to the groups that know of it: KEEPREF, DELREF and ACKED.

A group holds an entry that it has yet to read, or has given out and not seen acknowledged. KEEPREF
(as before there were policies) removes the entry and leaves it pending; DELREF takes it out of every
group's pending entries, ids whose entry has long been gone included; ACKED removes only what no group
holds. Without groups nothing is held.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.group_lifecycle cimport change_pending, live_group, read_effects_most
from millstream.ids cimport id_less
from millstream.storage.streams.group cimport Group, Pending, PendingAt
from millstream.storage.streams.stream cimport Stream


cdef bint take_reference_handling(Args args, ReferenceHandling* policy) noexcept:
    """Take a policy if the next argument is one. A second one is no option, as in Redis."""
    if policy.given:
        return False
    if args.next_is(b"KEEPREF"):
        policy.kind = KEEP_REFERENCES
    elif args.next_is(b"DELREF"):
        policy.kind = DROP_REFERENCES
    elif args.next_is(b"ACKED"):
        policy.kind = ONLY_ACKED
    else:
        return False
    policy.given = True
    return True


cdef int settle_groups(Context ctx, bytes key, Stream stream) except -1:
    """Apply due automatic changes in every group, so that none holds an entry beyond its time."""
    for name in stream.due_groups(ctx.steady_ms):
        live_group(ctx, key, stream, name)
    return 0


cdef int drop_references(Context ctx, bytes key, Stream stream, list ids) except -1:
    """Take ids (ms, seq) out of every group's pending entries; returns how many were there."""
    cdef Group group
    cdef int dropped = 0
    ctx.effects.require(dropped_most(key, stream, len(ids)))
    for group in stream.groups.values():
        gone = [(ms, seq) for ms, seq in ids if group.acknowledge(ms, seq)]
        if gone:
            change_pending(ctx, b"ACK", key, group.name, gone, <uint64_t>len(gone))
            dropped += len(gone)
    return dropped


cdef int drop_references_between(Context ctx, bytes key, Stream stream, uint64_t ms, uint64_t seq,
                                 uint64_t end_ms, uint64_t end_seq) except -1:
    """Take every id with start <= id < end out of every group's pending entries."""
    cdef Group group
    cdef list gone
    cdef list held = []
    cdef int64_t most = 0
    for group in stream.groups.values():
        gone = pending_between(group, ms, seq, end_ms, end_seq)
        if gone:
            held.append((group, gone))
            most += read_effects_most(key, group, b"", len(gone))
    ctx.effects.require(most)
    for group, gone in held:
        change_pending(ctx, b"ACK", key, group.name, gone, 0)
        for gone_ms, gone_seq in gone:
            group.acknowledge(gone_ms, gone_seq)
    return 0


cdef list pending_between(Group group, uint64_t ms, uint64_t seq, uint64_t end_ms,
                          uint64_t end_seq):
    cdef PendingAt at
    cdef list found = []
    cdef Pending* record = group.first_at_least(ms, seq, &at)
    while record != NULL and id_less(record.ms, record.seq, end_ms, end_seq):
        found.append((record.ms, record.seq))
        record = group.after(&at)
    return found


cdef int64_t dropped_most(bytes key, Stream stream, uint64_t ids) except -1:
    """The maximum size of the effects when `ids` ids leave the groups' pending entries."""
    cdef Group group
    cdef int64_t most = 0
    for group in stream.groups.values():
        most += read_effects_most(key, group, b"", min(ids, group.pending_count))
    return most
