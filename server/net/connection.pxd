from libc.stdint cimport uint64_t

from millstream.server.execution.executor cimport Executor
from millstream.server.protocol.outbox cimport Client


cdef class Connection(Client):
    cdef object server
    cdef Executor executor
    cdef readonly object transport
    # The descriptor of its socket; -1 once that is closed or about to be.
    cdef readonly int file_number
    # Whether the transport has been given bytes, and may still have some.
    cdef bint backlog
    # Bytes objects that the transport was not given yet, the first one without `first_sent` bytes;
    # None until there are some.
    cdef object queue
    cdef readonly uint64_t unsent_bytes
    cdef Py_ssize_t first_sent
    cdef bint closing
    cdef readonly uint64_t total_bytes_in
    cdef readonly uint64_t total_bytes_out

    cdef bint caught_up(self) except -1
    cdef int pass_on(self) except -1
    cdef bytes first_piece(self)
    cdef int join_first(self) except -1
    cdef Py_ssize_t try_send(self, bytes data, Py_ssize_t start) except -1
    cdef int give(self, bytes data, Py_ssize_t start, Py_ssize_t size) except -1
    cdef int note_sent(self, Py_ssize_t size) except -1
    cdef int drop_queue(self) except -1
