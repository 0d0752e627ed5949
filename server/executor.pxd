from libc.stdint cimport uint64_t

from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context
from millstream.commands.effects cimport Effects
from millstream.encoding cimport Output
from millstream.server.lookup cimport Row, Table
from millstream.server.outbox cimport Client, Outbox
from millstream.server.resp cimport Limits
from millstream.storage.keyspace cimport Keyspace


cdef class Executor:
    cdef readonly object server
    cdef readonly Keyspace keyspace
    cdef readonly Effects effects
    cdef readonly Context context
    cdef readonly Limits limits
    cdef readonly object waiting
    cdef readonly object ticker
    cdef object persistence
    cdef object loop
    cdef object clock
    cdef Output out
    cdef Output side
    cdef public bint password_required
    cdef Row row
    cdef Py_ssize_t reply_start
    cdef Row timed
    cdef uint64_t timed_since
    cdef Table table
    cdef readonly Outbox outbox
    cdef object resumable
    cdef bint running
    cdef bint tick_scheduled
    cdef object timer
    cdef uint64_t timer_ms
    cdef bint timer_stale
    cdef readonly uint64_t commands_processed
    cdef readonly uint64_t error_replies
    cdef readonly dict errors_by_code
    cdef public uint64_t bytes_in

    cdef uint64_t read_clock(self) except? 0
    cdef uint64_t read_stopwatch(self) except? 0
    cdef int receive(self, Client client, bytes data) except -1
    cdef int look_around(self) except -1
    cdef int run_batch(self, Client client) except -1
    cdef int run_requests(self, Client client) except -1
    cdef int execute(self, Client client, Args args) except -1
    cdef int stranger(self, Client client, Args args) except -1
    cdef int put_slow(self, Client client, reply) except -1
    cdef int refuse(self, str message) except -1
    cdef int break_off(self, Client client) except -1
    cdef int serve_ready(self) except -1
    cdef int end_wait(self, object waiter) except -1
    cdef int unblock(self, object waiter, reply) except -1
    cdef int schedule_tick(self) except -1
    cdef int set_timer(self) except -1
    cdef inline int count_time(self, Row row) except -1
