from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.commands.access.permission cimport Demand
from millstream.commands.runtime.arguments cimport Args
from millstream.server.protocol.outbox cimport Client


cdef enum:
    BUCKETS = 40


cdef class Row:
    cdef readonly object command
    cdef readonly Demand demand
    cdef object handler
    cdef readonly str name
    cdef bytes upper
    cdef uint64_t front
    cdef uint64_t back
    cdef Py_ssize_t size
    cdef Py_ssize_t arity
    cdef readonly bint writes
    cdef readonly bint tells
    cdef bint open_to_all
    cdef bint while_loading
    cdef bint while_stale
    cdef bint needs_memory
    cdef dict subcommands
    cdef uint64_t calls
    cdef uint64_t nanoseconds
    cdef uint64_t timed_calls
    cdef uint64_t[BUCKETS] buckets
    cdef bint fast
    cdef bint hot
    cdef bytes writes_with
    cdef bint queued
    cdef bint refused_in_multi
    cdef bint when_subscribed
    cdef bint shown_to_monitors
    cdef bint logged_when_slow
    cdef bint shows_data
    cdef bint waits_when_full
    cdef bint protected
    cdef bint audited
    cdef bint guarded  # protected or audited
    cdef Py_ssize_t removing_words

    cdef bint only_removes(self, Args args) noexcept
    cdef void add_time(self, uint64_t nanoseconds) noexcept
    cdef uint64_t rejected
    cdef uint64_t failed
    cdef bint top
    cdef bytes last_word  # of the name, in upper case
    cdef Row container  # None: no subcommand


cdef class Table:
    cdef list rows
    cdef list slots
    cdef uint32_t mask

    cdef Row find(self, Args args, Row likely)


cdef class Statistics:
    cdef object server
    cdef object clock
    cdef Row timed
    cdef uint64_t since
    cdef bint exact
    cdef int64_t slow_ns
    cdef uint64_t latency_ns
    cdef readonly uint64_t commands
    cdef readonly uint64_t error_replies
    cdef readonly dict errors_by_code
    cdef readonly uint64_t reads  # how often bytes were read from a client

    cdef uint64_t read(self) except? 0
    cdef int begin(self, Row row) except -1
    cdef int finish(self, Row row, Client client, Args args, uint64_t now_ms) except -1
    cdef int count_error(self, str message) except -1
    cdef int uncount_call(self, Row row, Client client) noexcept
    cdef int count_ended_call(self, Row row, Client client, bint failed) except -1
    cdef int set_slow(self, int64_t slow_us, uint64_t latency_ms) noexcept
    cdef int reset(self) except -1


cdef str unknown_command(Args args)
