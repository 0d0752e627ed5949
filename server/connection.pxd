from libc.stdint cimport uint64_t

from millstream.server.executor cimport Executor
from millstream.server.outbox cimport Client


cdef class Connection(Client):
    cdef object server
    cdef Executor executor
    cdef readonly object transport
    cdef readonly uint64_t total_bytes_in
    cdef readonly uint64_t total_bytes_out
