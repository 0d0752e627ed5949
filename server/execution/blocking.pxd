from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport Wait
from millstream.encoding cimport Output
from millstream.server.execution.lookup cimport Row, Statistics
from millstream.server.protocol.outbox cimport Client, Outbox


cdef class Serving:
    cdef Context context
    cdef Outbox outbox
    cdef Statistics statistics
    cdef object timers
    cdef object resume
    cdef readonly object waiting
    cdef Output side
    cdef public bint timer_stale

    cdef int begin(self, Client client, Row row, Wait wait) except -1
    cdef int serve_ready(self) except -1
    cdef int enter(self, Client client) except -1
    cdef bint unblock_client(self, Client client, str error) except -1
    cdef int unblock(self, object waiter, reply) except -1
    cdef int put_in_full(self, Client client, reply, bint shows_data) except -1
    cdef int end(self, object waiter) except -1
    cdef bint leave(self, Client client) except -1
