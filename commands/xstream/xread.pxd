from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport BlockedRead, Encodable
from millstream.encoding cimport Output
from millstream.storage.streams.stream cimport Stream


# COUNT for each stream, MAXCOUNT and MAXSIZE for all of them together; the largest number if not
# given.
cdef struct ReadLimits:
    uint64_t entries
    uint64_t all_entries
    Py_ssize_t size_bytes


cdef class StreamsRead(BlockedRead):
    cdef int db_index
    cdef ReadLimits limits
    cdef list after
    # The indexes of the streams that are read from their last entry on, resolved at each attempt.
    cdef list from_last

    cdef list take_streams(self, Context ctx, Args args)
    cdef tuple take_after(self, Args args, Stream stream)
    cdef reply(self, Context ctx, list streams)
    cdef limited(self, Context ctx, list ranges)


cdef int no_limits(ReadLimits* limits) noexcept
cdef bint take_read_limit(Args args, ReadLimits* limits) except -1
cdef int check_limits(ReadLimits* limits) except -1
cdef int put_key(Output out, bytes key, int resp) except -1
