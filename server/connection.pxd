from libc.stdint cimport uint64_t

from millstream.server.executor cimport Executor
from millstream.server.outbox cimport Client


cdef class Connection(Client):
    cdef object server
    cdef Executor executor
    cdef readonly object transport
    # The descriptor of its socket; -1 once that is closed or about to be.
    cdef readonly int file_number
    # Whether the transport has been given bytes, and may still have some.
    cdef bint backlog
    cdef readonly uint64_t total_bytes_in
    cdef readonly uint64_t total_bytes_out

    cdef bint caught_up(self) except -1
