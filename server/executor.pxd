from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.arguments cimport Args
from millstream.commands.context cimport Context, Session
from millstream.commands.effects cimport Effects
from millstream.encoding cimport Output
from millstream.server.resp cimport Limits, Parser
from millstream.storage.keyspace cimport Keyspace


cdef class Client(Session):
    cdef Parser parser
    cdef list chunks
    cdef readonly uint64_t held_bytes
    cdef readonly object waiter
    cdef readonly object producer
    cdef public bint full
    cdef public bint paused
    cdef readonly bint dirty
    cdef public bint closed

    cpdef int transmit(self, bytes data) except -1
    cpdef int end(self, bint after_reply) except -1
    cdef bint stopped(self) noexcept


cdef class Row:
    cdef readonly object command
    cdef object handler
    cdef readonly str name
    cdef bytes upper
    cdef uint64_t front
    cdef uint64_t back
    cdef Py_ssize_t size
    cdef Py_ssize_t arity
    cdef bint writes
    cdef bint open_to_all
    cdef dict subcommands
    cdef uint64_t calls
    cdef uint64_t nanoseconds
    cdef uint64_t rejected
    cdef uint64_t failed


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
    cdef dict rows
    cdef list slots
    cdef uint32_t mask
    cdef public bint password_required
    cdef Row row
    cdef Py_ssize_t reply_start
    cdef Row timed
    cdef uint64_t timed_since
    cdef list dirty_clients
    cdef list resumable
    cdef bint tick_scheduled
    cdef object held
    cdef object timer
    cdef uint64_t timer_ms
    cdef readonly uint64_t commands_processed
    cdef readonly uint64_t error_replies
    cdef readonly dict errors_by_code
    cdef public uint64_t bytes_in
    cdef public uint64_t bytes_out

    cdef uint64_t read_clock(self) except? 0
    cdef int receive(self, Client client, bytes data) except -1
    cdef int look_around(self) except -1
    cdef int run_batch(self, Client client) except -1
    cdef int run_requests(self, Client client) except -1
    cdef int execute(self, Client client, Args args) except -1
    cdef int put_slow(self, Client client, reply) except -1
    cdef Row find(self, Args args)
    cdef int refuse(self, str message) except -1
    cdef int break_off(self, Client client) except -1
    cdef int serve_ready(self) except -1
    cdef int unblock(self, object waiter, reply) except -1
    cdef int touch(self, Client client, bytes data) except -1
    cdef int schedule_tick(self) except -1
    cdef int send_tick(self) except -1
    cdef int release(self, Client client, bytes data) except -1
    cdef int set_timer(self) except -1
    cdef inline void count_time(self, Row row) noexcept
