from libc.stdint cimport uint32_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.storage.streams.held cimport Held
from millstream.storage.streams.stream cimport Stream


cpdef Held live_held(Context ctx, bytes key, Stream stream)
cdef int release(Context ctx, bytes key, Stream stream, Held held, uint64_t before) except -1
cpdef int give_up(Context ctx, bytes key, Stream stream, list reservations) except -1
cpdef int renew(Context ctx, bytes key, Held held, list reservations, uint32_t lease_ms) except -1
