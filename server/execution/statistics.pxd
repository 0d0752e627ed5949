from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.server.execution.lookup cimport Row
from millstream.server.protocol.outbox cimport Client


cdef class Statistics:
    cdef object server
    cdef object clock
    cdef Row timed
    cdef uint64_t since
    cdef bint exact
    cdef int64_t slow_ns
    cdef uint64_t latency_ns
    cdef uint64_t commands
    cdef uint64_t error_replies
    cdef dict errors_by_code
    cdef uint64_t reads
    cdef uint64_t expired_in_time

    cdef uint64_t read(self) except? 0
    cdef int begin(self, Row row) except -1
    cdef int finish(self, Row row, Client client, Args args, uint64_t now_ms) except -1
    cdef int count_error(self, str message) except -1
    cdef int put_off_call(self, Row row, Client client) noexcept
    cdef int count_ended_call(self, Row row, Client client, bint failed) except -1
    cdef int set_slow(self, int64_t slow_us, uint64_t latency_ms) noexcept
    cdef int reset(self) except -1
