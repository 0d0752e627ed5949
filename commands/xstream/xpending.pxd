from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.engine.entries_by_id cimport Chosen, Finder
from millstream.commands.runtime.context cimport Context
from millstream.commands.engine.delivery cimport Ids
from millstream.encoding cimport Output
from millstream.ids cimport EntryId
from millstream.storage.blocks.layout cimport IdText
from millstream.storage.streams.group cimport Consumer, Group, Pending, PendingAt
from millstream.storage.streams.stream cimport Stream


cdef class Claim:
    cdef Context ctx
    cdef bytes key
    cdef Stream stream
    cdef Group group
    cdef Consumer consumer
    cdef uint64_t min_idle_ms
    cdef uint64_t delivery_ms
    cdef int64_t deliveries
    cdef bint force
    cdef bint just_id
    cdef bint with_last_id
    cdef EntryId last_id
    cdef Py_ssize_t ids_end
    cdef Ids claimed
    cdef Finder finder
    # Where the entries of a long reply are noted, to be encoded later.
    cdef Chosen chosen
    cdef list gone
    cdef IdText id_text

    cdef int take_options(self, Context ctx, Args args) except -1
    cdef int begin(self, Context ctx, bytes key, Stream stream, Group group,
                   bytes consumer) except -1
    cdef by_id(self, Args args)
    cdef scan(self, EntryId start, int64_t count)
    cdef bint take_over(self, EntryId found, Pending* record, PendingAt* at,
                        Output out) except -1
    cdef int show(self, EntryId found, Output out) except -1
    cdef int finish(self) except -1


cdef class Release:
    cdef bytes count
    cdef bint force
    cdef list ids

    cdef int take_options(self, Args args) except -1
    cdef int take_mode(self, Args args) except -1
    cdef int64_t apply(self, Context ctx, bytes key, Stream stream, Group group) except -1
