from libc.stdint cimport uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.held cimport Held
from millstream.storage.streams.stream cimport Stream


cpdef Held live_held(Context ctx, bytes key, Stream stream)
cpdef int schedule_leases(Context ctx, bytes key, Held held) except -1
cdef int release(Context ctx, bytes key, Stream stream, Held held, uint64_t before) except -1
cpdef int give_up(Context ctx, bytes key, Stream stream, list ids) except -1
