# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""What is counted and timed of commands, and which of them were slow.

The clock is read when the kind of command changes: equal hot commands in a row (Row.hot) share the
time between. Others are timed one by one, and every one is when the slow log wants to hear of less
than a millisecond.
"""

from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.server.execution.clock cimport monotonic_ns
from millstream.server.execution.lookup cimport Row
from millstream.server.protocol.outbox cimport Client

cdef enum:
    # Below this threshold in nanoseconds every command is timed individually for the slow log.
    EXACT_BELOW_NS = 1000000
    # More kinds of errors than anybody reads; a client cannot fill the memory with new ones.
    CODES_MAX = 128


cdef class Statistics:
    """`clock` gives milliseconds under a fake clock, None: the machine's. `server` has the slow log
    and the latency monitor."""

    def __init__(self, server, clock):
        self.server = server
        self.clock = clock
        self.errors_by_code = {}
        self.slow_ns = -1

    cdef uint64_t read(self) except? 0:
        """Nanoseconds, for durations."""
        return monotonic_ns() if self.clock is None else <uint64_t>self.clock() * 1000000

    cdef int begin(self, Row row) except -1:
        """From now on the time counts for this row (None: for no row)."""
        cdef uint64_t now = self.read()
        if self.timed is not None:
            self.timed.add_time(now - self.since)
        self.timed = row
        self.since = now
        return 0

    cdef int finish(self, Row row, Client client, Args args, uint64_t now_ms) except -1:
        """A command that is timed individually has ended."""
        cdef uint64_t since = self.since
        cdef uint64_t taken
        self.begin(row)
        taken = self.since - since
        if 0 <= self.slow_ns <= <int64_t>taken and row.logged_when_slow:
            self.server.slowlog.note(now_ms, taken // 1000, args.all(), client)
        if self.latency_ns and taken >= self.latency_ns:
            self.server.latency.note(
                "fast-command" if row.fast else "command", now_ms, taken // 1000000)
        return 0

    cdef int count_error(self, str message) except -1:
        """Count an error reply by its code."""
        code = message.split(" ", 1)[0]
        self.error_replies += 1
        if code in self.errors_by_code or len(self.errors_by_code) < CODES_MAX:
            self.errors_by_code[code] = self.errors_by_code.get(code, 0) + 1
        return 0

    cdef int put_off_call(self, Row row, Client client) noexcept:
        """The call that was just counted blocks: as in Redis, it counts when the wait ends."""
        row.calls -= 1
        self.commands -= 1
        client.total_commands -= 1
        return 0

    cdef int count_ended_call(self, Row row, Client client, bint failed) except -1:
        """Count a call whose wait ended with a reply."""
        row.calls += 1
        row.failed += failed
        self.commands += 1
        client.total_commands += 1
        return 0

    cdef int set_slow(self, int64_t slow_us, uint64_t latency_ms) noexcept:
        self.slow_ns = slow_us * 1000 if slow_us >= 0 else -1
        self.latency_ns = latency_ms * 1000000
        self.exact = 0 <= self.slow_ns < EXACT_BELOW_NS
        return 0

    cdef int reset(self) except -1:
        self.errors_by_code = {}
        self.error_replies = 0
        self.commands = 0
        self.reads = 0
        self.expired_in_time = 0
        return 0
