from millstream.server.executor cimport Client, Executor


cdef class Connection(Client):
    cdef object server
    cdef Executor executor
    cdef readonly object transport
    cdef bint reading

    cdef read_again(self)
