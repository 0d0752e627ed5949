from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport BlockedRead
from millstream.encoding cimport Output
from millstream.entry_id cimport EntryId
from millstream.storage.streams.stream cimport Stream


cdef class FollowRead(BlockedRead):
    cdef int db_index
    cdef uint64_t limit
    cdef bint with_clock
    cdef list after

    cdef int take_streams(self, Context ctx, Args args) except -1
    cdef int follow(self, Context ctx) except -1
    cdef bint has_news(self, Context ctx) except -1
    cdef reply(self, Context ctx)
    cdef int put_row(self, Output head, list parts, Stream stream, EntryId after,
                     uint64_t promised_ms) except -1
