from millstream.server.executor cimport Executor
from millstream.server.outbox cimport Client


cdef class Connection(Client):
    cdef object server
    cdef Executor executor
    cdef readonly object transport
    cdef bint reading

    cdef read_again(self)
