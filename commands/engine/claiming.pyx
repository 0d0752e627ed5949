# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""Claiming pending entries for a consumer (XCLAIM, XAUTOCLAIM), and finding the group of a request.

A claim collects the IDs that it has given to the consumer, and those that are pending although the
stream no longer has their entries. Both become effects at the end, even if memory runs out before.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.engine.delivery cimport drop_gone, one_more
from millstream.commands.engine.lifecycle cimport live_group, note_seen
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport ClaimTerms, Ids, record_claim
from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.managed_entries cimport claim_retry_number, take_back_later
from millstream.storage.groups.ordered_pending cimport OrderedPending, may_claim, ordered
from millstream.storage.groups.pending cimport Pending, PendingAt, is_at_limit, is_dead
from millstream.storage.streams.stream cimport Stream

from millstream.commands.engine.entries_by_id import entries_by_id
from millstream.commands.runtime.replies import ArrayHead
from millstream.errors import CommandError, shown


cdef class Target:
    """A key, its stream, and a group of the stream."""


cdef Target target_in(Context ctx, bytes key, Stream stream, bytes name):
    """The group with this name; NOGROUP if the stream (None: there is none) does not have it."""
    cdef Target made = Target.__new__(Target)
    made.key = key
    made.stream = stream
    made.group = None if stream is None else live_group(ctx, key, stream, name)
    if made.group is None:
        raise no_group(key, name)
    return made


def no_group(bytes key not None, bytes name not None) -> CommandError:
    """The error of a command on a group that does not exist."""
    return CommandError(f"NOGROUP No such key '{shown(key)}' or consumer group '{shown(name)}'")


cdef Target take_target(Context ctx, Args args):
    """Take a key and a group. The key counts as read, but the group may be changed."""
    cdef Slice* word = args.take_slice()
    cdef bytes key = ctx.db.key_of(word)
    cdef Stream stream = ctx.read_for_update_at(word)
    return target_in(ctx, key, stream, args.take())


def named_group(Context ctx not None, Args args not None) -> tuple:
    """`take_target` for callers in Python: (key, stream, group)."""
    cdef Target target = take_target(ctx, args)
    return target.key, target.stream, target.group


cdef class Claims:
    """The terms and the results of a claim. It takes entries that have been idle for `min_idle_ms`.
    Their last delivery becomes `delivery_ms`, their number of deliveries `count`: a number, `+` for
    one more, `=` for no change. `claimed` has the IDs of claimed entries, `gone` those that are
    pending without an entry, (ms, seq) each.
    """

    def __cinit__(self):
        self.claimed = Ids.__new__(Ids)
        self.gone = []

    cdef bint is_too_early(self, const Pending* record, uint64_t now_ms) noexcept:
        """True if an entry has not been idle for long enough. One that waits has no reader."""
        cdef uint64_t last_ms = record.last_delivery_ms
        return self.min_idle_ms and not record.waiting and now_ms - min(last_ms, now_ms) < self.min_idle_ms

    cdef bint is_refused(self, Group group, const Pending* record) noexcept:
        """True if an entry has ended, or is at the limit of deliveries, and the claim does not set its
        number of deliveries."""
        return not self.sets_count and (
            is_at_limit(group.pending.records, record) or is_dead(group.pending.records, record))

    cdef bint may_take(self, Context ctx, Group group, const Pending* record) except -1:
        """True if a pending entry has been idle for long enough, may be delivered again, and its key
        allows the claim."""
        cdef OrderedPending keyed
        if self.is_too_early(record, ctx.steady_ms) or self.is_refused(group, record):
            return False
        keyed = ordered(group.pending)
        return keyed is None or may_claim(
            keyed, EntryId(record.ms, record.seq), ctx.steady_ms)

    cdef int take(self, Context ctx, Group group, Consumer consumer, EntryId at_id, Pending* record,
                  PendingAt* at) except -1:
        """Give an entry, pending or not (NULL), to the consumer."""
        cdef int64_t deliveries
        cdef uint32_t retry_number = claim_retry_number(group, ctx.steady_ms, self.delivery_ms)
        self.claimed.add(at_id.ms, at_id.seq)
        if record == NULL:
            group.pending.claim(at_id.ms, at_id.seq, consumer, self.delivery_ms, self.count,
                                retry_number)
        else:
            deliveries = group.pending.deliveries(record)
            if self.count == b"+":
                deliveries = one_more(deliveries)
            elif self.count != b"=":
                deliveries = int(self.count)
            group.pending.transfer(
                at, consumer.index, self.delivery_ms, deliveries, retry_number)
        group.pending.note_again(at_id.ms, at_id.seq, self.delivery_ms, ctx.steady_ms)
        take_back_later(group.pending, at_id)
        consumer.active_ms = ctx.steady_ms
        return 0

    cdef int record(self, Context ctx, bytes key, Group group, Consumer consumer) except -1:
        """Record what was claimed as one effect, and what is gone as another one."""
        cdef ClaimTerms terms
        if self.claimed.count:
            terms = ClaimTerms(ctx.steady_ms, self.delivery_ms, self.count)
            record_claim(ctx.effects, ctx.db.index, key, group, consumer, &terms, self.claimed)
            ctx.count_change(None, None, self.claimed.count)
            if self.count != b"=":
                ctx.keyspace.redelivered_claimed += self.claimed.count
        else:
            note_seen(ctx, key, group, consumer)
        return drop_gone(ctx, key, group, self.gone)


cdef list claimed_later(Stream stream, Claims claims):
    """Claimed entries as the head and the elements of an array that is encoded as the client reads
    it."""
    cdef Ids claimed = claims.claimed
    cdef size_t i
    cdef bint in_order = True
    for i in range(1, claimed.count):
        in_order = in_order and id_less(claimed.items[i - 1].ms, claimed.items[i - 1].seq,
                                        claimed.items[i].ms, claimed.items[i].seq)
    ids = [(claimed.items[i].ms, claimed.items[i].seq) for i in range(claimed.count)]
    return [ArrayHead(len(ids)), entries_by_id(stream, ids, in_order=in_order)]


cdef bytes encoded_ids(Ids ids):
    """IDs as an array, encoded."""
    cdef Output out = Output()
    cdef size_t i
    out.put_head(c'*', ids.count)
    for i in range(ids.count):
        out.put_id(ids.items[i].ms, ids.items[i].seq, False)
    return out.take()
