from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.claiming cimport Target
from millstream.commands.engine.dead_letters cimport DeadLetterWriter
from millstream.commands.engine.delivery cimport ReplyBudget
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport Encodable
from millstream.commands.runtime.stream_effects cimport Ids, Terms
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.groups.group cimport Group
from millstream.storage.groups.pending cimport PendingAt
from millstream.storage.streams.stream cimport Stream


cdef enum:
    # A read ends after this number of due records without an entry, which take 2 ms.
    GONE_MAX = 5000


cpdef int check_managed(Group group) except -1
cdef int set_deadline(Terms* terms, Group group) noexcept
cdef uint64_t deliver_due(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                          Output out, ReplyBudget* budget) except? 0xffffffffffffffff


cdef class GiveBack:
    cdef Context ctx
    cdef bytes key
    cdef Group group
    cdef bint is_silent
    cdef bint is_fatal
    # -1: that of the rules of the group.
    cdef int64_t delay_ms
    # -1: that of the entry.
    cdef int64_t retry_count
    # The word for the deliveries in effects.
    cdef bytes word
    cdef bytes text
    cdef DeadLetterWriter writer
    # The IDs by delay, one effect each, None without any; the latest ones.
    cdef dict done
    cdef Ids latest
    cdef uint64_t latest_ms

    cdef bytes take_held(self, bytes holder, Ids ids)
    cdef set held_with_keys(self, int64_t number, Ids ids)
    cdef bint was_taken_back(self, EntryId at_id, set taken_back) except -1
    cdef int begin(self, Context ctx, bytes key, Stream stream, Group group,
                   Py_ssize_t ids) except -1
    cdef int64_t after(self, int64_t deliveries) noexcept
    cdef int take(self, EntryId at_id, PendingAt* at, bytes holder) except -1
    cdef int note(self, EntryId at_id, uint64_t delay_ms) except -1
    cdef int record(self) except -1
    cdef int flush(self) except -1


cdef class Codes(Encodable):
    cdef bytes codes


cdef GiveBack give_back_by(bytes mode, int64_t delay_ms, bytes text)
cdef bytes give_back_held(Context ctx, Target target, bytes holder, GiveBack giving, Ids ids)
cdef Codes make_codes(bytes codes)
