from libc.stdint cimport int64_t, uint64_t

from millstream.commands.engine.delivery cimport ReplyBudget
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.stream_effects cimport Terms
from millstream.encoding cimport Output
from millstream.storage.groups.group cimport Group
from millstream.storage.streams.stream cimport Stream


cdef uint64_t deliver_picked(Context ctx, bytes key, Stream stream, Group group, const Terms* terms,
                             Output out, ReplyBudget* budget) except? 0xffffffffffffffff
cdef bint has_parked_to_deliver(Group group) noexcept
cdef bint is_search_cut(Group group) noexcept
cdef int64_t picked_most(Group group) noexcept
