from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.delivery cimport ReplyBudget
from millstream.commands.engine.ranges cimport EntryRange
from millstream.commands.runtime.replies cimport BlockedRead, LongReply
from millstream.commands.xstream.xread cimport ReadLimits
from millstream.encoding cimport ArrayHead, Output
from millstream.storage.streams.consumers cimport Consumer
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.stream cimport Stream


cdef class ConsumerRead(BlockedRead):
    cdef int db_index
    cdef bytes consumer
    cdef ReadLimits limits
    cdef uint64_t claim_idle_ms
    cdef bint keep
    cdef list held
    cdef bint will_retry

    cdef Group group_in(self, Context ctx, bytes key, Stream stream)
    cdef int note_poll(self, Context ctx, bytes key, Group group) except -1
    cdef bint has_no_history(self, Group group) except -1
    cdef empty_history(self, Context ctx, bytes key, Group group)
    cdef found_nothing(self, Context ctx, bytes key, Group group)
    cdef serve(self, Context ctx, list opened, list after, bint first)
    cdef int64_t effects_most(self, list opened, list after) except -1
    cdef finished(self, Context ctx, Output out, const ArrayHead* head, uint64_t answered,
                  list parts)
    cdef bint has_something(self, Context ctx, Stream stream, Group group, after) except -1
    cdef bint put_stream(self, Context ctx, bytes key, Stream stream, Group group, after,
                         Output out, ReplyBudget* budget) except -1
    cdef uint64_t put_new(self, Context ctx, bytes key, Stream stream, Group group,
                          Consumer consumer, Output out, ReplyBudget* budget) except? 0xffffffffffffffff
    cdef bint is_long(self, Stream stream, Group group, ReplyBudget* budget) noexcept
    cdef EntryRange put_long(self, Context ctx, bytes key, Stream stream, Group group, ReplyBudget* budget)
    cdef bint is_long_history(self, Group group, ReplyBudget* budget) except -1
    cdef LongReply put_long_history(self, Context ctx, bytes key, Stream stream, Group group, after,
                                    Output out, ReplyBudget* budget)
    cdef int note_use(self, Context ctx, list opened) except -1
    cdef int hold(self, list groups) except -1
    cdef int count_in(self, Group group, int change) except -1
