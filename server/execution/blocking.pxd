from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.replies cimport BlockedRead, Wait
from millstream.encoding cimport Output
from millstream.server.execution.lookup cimport Row, Statistics
from millstream.server.protocol.outbox cimport Client, Outbox


cdef class Waiter:
    cdef readonly Client client
    cdef readonly Row row
    cdef readonly BlockedRead read
    cdef object kind
    cdef bint is_timed
    cdef bint over
    cdef object alarm
    # Its places: a database's queues, the key, and the key's queue.
    cdef list places


cdef class GroupQueue:
    cdef object waiters  # an OrderedDict: the first one is found at once after many have left
    cdef dict kinds

    cdef int add(self, Waiter waiter) except -1
    cdef int remove(self, Waiter waiter) except -1
    cdef int serve(self, Serving serving) except -1


cdef class KeyQueue:
    # Both None if unused: a read of a thousand streams makes a thousand of these.
    cdef dict readers
    cdef dict groups

    cdef bint has(self, Waiter waiter) except -1
    cdef int add(self, Waiter waiter) except -1
    cdef int remove(self, Waiter waiter) except -1
    cdef bint is_empty(self) noexcept
    cdef bint must_stay(self) except -1


cdef class WaitQueues:
    cdef list databases
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t timed_count
    cdef public object on_end

    cdef Waiter add(self, Client client, Row row, Wait wait)
    cdef int remove(self, Waiter waiter) except -1
    cdef int serve(self, Serving serving, int db_index, bytes key) except -1


cdef class Serving:
    cdef Context context
    cdef Outbox outbox
    cdef Statistics statistics
    cdef object timers
    cdef object resume
    cdef readonly WaitQueues waiting
    # Waits whose reads search what is there already: each continues in a later turn.
    cdef list searching
    cdef Output side
    cdef public bint timer_stale

    cdef int begin(self, Client client, Row row, Wait wait) except -1
    cdef int serve_ready(self) except -1
    cdef int settle(self) except -1
    cdef bint must_wait(self, Waiter waiter) except -1
    cdef bint is_hidden(self, Waiter waiter) except -1
    cdef bint attempt(self, Waiter waiter) except -1
    cdef int continue_later(self, Waiter waiter) except -1
    cdef int continue_searches(self) except -1
    cdef int enter(self, Client client) except -1
    cdef bint unblock_client(self, Client client, str error) except -1
    cdef int unblock(self, Waiter waiter, reply) except -1
    cdef int put_in_full(self, Client client, reply, bint shows_data) except -1
    cdef int end(self, Waiter waiter) except -1
    cdef bint leave(self, Client client) except -1
    cdef int serve_keys(self, list ready) except -1
