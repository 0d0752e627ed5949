from libc.stdint cimport uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.delivery cimport Retry, Terms
from millstream.commands.engine.ranges cimport EntryRange
from millstream.commands.runtime.replies cimport BlockedRead, Encodable
from millstream.encoding cimport ArrayHead, Output
from millstream.entry_id cimport EntryId
from millstream.storage.streams.group cimport Group
from millstream.storage.streams.stream cimport Stream


cdef class PlainRead(BlockedRead):
    cdef bytes key
    cdef int db_index
    cdef EntryId after
    cdef uint64_t limit
    cdef bint with_info

    cdef find_shared(self, Context ctx)
    cdef bint asks_for_the_same(self, PlainRead other) noexcept
    cdef tuple asked_for(self, Context ctx)
    cdef reply(self, Context ctx, Stream stream)


cdef class GroupRead(BlockedRead):
    cdef bytes key
    cdef int db_index
    cdef EntryId after
    cdef bint from_end
    cdef bint existing  # with the ID `>`: the group is not created
    cdef uint64_t limit
    cdef uint64_t ttl_ms
    cdef Retry retry
    cdef bint with_info
    cdef bint waiting
    cdef bint key_was_gone
    cdef uint64_t incarnation
    cdef Group held

    cdef Group ready_group(self, Context ctx, Stream stream)
    cdef no_group(self)
    cdef serve(self, Context ctx, Stream stream, Group group, bint first)
    cdef deliver(self, Context ctx, Stream stream, Group group, bint first, Output out,
                 const ArrayHead* head, uint64_t lead)
    cdef int set_terms(self, Terms* terms, bint first) noexcept
    cdef hold(self, Group group)


cdef class LongDelivery(Encodable):
    cdef bytes lead
    cdef EntryRange entries


cdef LongDelivery make_long(bytes lead, EntryRange entries)
