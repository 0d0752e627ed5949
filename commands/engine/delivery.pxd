from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.engine.ranges cimport EntryRange
from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Ids, Terms
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.groups.consumers cimport Consumer
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport Pending
from millstream.storage.streams.stream cimport Stream


cdef enum:
    # A longer delivery is answered in slices.
    LONG_DELIVERY = 1000


cdef class Retry:
    cdef uint64_t retry_ms
    cdef uint64_t expire_ms


# The remaining budget of a reply: `entries` in total, up to `limit` of the next stream, and no more
# after the reply has full_size bytes, except the first entry. With age, each entry is followed by
# its idle time and its deliveries. `min_idle_ms`: the reader first claims entries that have been
# idle for that long. `places`: entries that readers may get besides those that they hold.
# `is_cut`: the search for due or idle entries has ended early.
cdef struct ReplyBudget:
    uint64_t entries
    uint64_t limit
    uint64_t made
    uint64_t min_idle_ms
    uint64_t places
    Py_ssize_t full_size
    bint with_age
    bint is_cut


# The state of a delivery of new entries: how they become pending, the first one, their number.
cdef struct Delivery:
    EntryId first
    uint64_t given
    uint64_t now_ms
    uint32_t retry_number
    uint32_t owner
    bint keep
    bint broken
    bint was_overtaken


cdef bint group_has_gap(Stream stream, Group group) noexcept
cdef int begin_budget(ReplyBudget* budget, uint64_t limit) noexcept
cdef int no_retry(Terms* terms, bint keep, uint32_t owner) noexcept
cdef uint64_t deliver_new(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                          Output out, ReplyBudget* budget) except? 0xffffffffffffffff
cdef uint64_t redeliver_due(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                            uint64_t limit, Output out) except? 0xffffffffffffffff
cdef bint is_long_delivery(Stream stream, Group group, uint64_t limit) noexcept
cdef int deliver_long(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                      EntryRange entries) except -1
cdef uint64_t claim_idle(Context ctx, bytes key, Stream stream, Group group, Consumer consumer,
                         Output out, ReplyBudget* budget) except? 0xffffffffffffffff
cdef bint is_broken(Stream stream, Group group) noexcept
cdef int count_read(Stream stream, Group group, EntryId first, uint64_t given,
                    bint broken) except -1
cdef bint is_full(Output out, const ReplyBudget* budget) noexcept
cdef int put_age(Output out, Py_ssize_t at, int64_t idle_ms, int64_t deliveries) except -1
cpdef int drop_gone(Context ctx, bytes key, Group group, list gone) except -1
cdef int64_t one_more(int64_t deliveries) noexcept
cdef int64_t acknowledge(Context ctx, Args args, bint dot_allowed) except -1
