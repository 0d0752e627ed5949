from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport Effects
from millstream.server.execution.admission cimport Admission
from millstream.server.execution.blocking cimport Serving
from millstream.server.execution.clocks cimport Clocks
from millstream.server.execution.lookup cimport Statistics
from millstream.server.execution.request_runner cimport RequestRunner
from millstream.server.monitor.histogram cimport Histogram
from millstream.server.protocol.outbox cimport Client, FrameNumbers, Outbox
from millstream.server.protocol.resp cimport Limits
from millstream.storage.keyspace.keyspace_core cimport KeyspaceCore as Keyspace


cdef class Executor:
    cdef readonly object server
    cdef readonly Keyspace keyspace
    cdef readonly Effects effects
    cdef readonly Context context
    cdef readonly Limits limits
    cdef readonly object timers
    cdef object persistence
    cdef readonly FrameNumbers commits  # server/durability/commits.Commits
    cdef public object refusal  # whose `error` refuses writes, unless it is None
    cdef readonly object loop
    cdef readonly Clocks clocks
    cdef readonly Admission admission
    cdef readonly RequestRunner runner
    cdef readonly object audit
    cdef readonly Serving serving
    cdef readonly Outbox outbox
    cdef readonly Statistics statistics
    cdef readonly object pauses
    cdef readonly object eviction_work
    cdef readonly object due
    cdef readonly dict monitors
    cdef public uint64_t memory_limit
    cdef readonly object backpressure
    cdef int64_t unchecked_bytes  # committed since the queue was checked
    cdef object resumable
    cdef uint64_t begun_before
    cdef int batch_left
    cdef uint64_t noted_before  # the output of this tick before the batch
    cdef uint64_t batch_end_ns
    cdef bint tick_scheduled
    cdef bint in_turn  # of the poller, which ends the tick
    cdef public object after_tick  # called after the replies of each tick, unless it is None
    cdef uint64_t tick_begun_ns  # 0: no batch has run in this tick
    cdef readonly Histogram tick_times
    cdef readonly Histogram hold_times
    cdef public uint64_t bytes_in

    cdef int set_clocks(self) except -1
    cdef int watch_limits(self) except -1
    cdef str lack_of_room(self)
    cdef int receive(self, Client client, const char* data, Py_ssize_t size) except -1
    cdef int run_batch(self, Client client) except -1
    cdef uint64_t time_slice(self) noexcept
    cdef int run_requests(self, Client client) except -1
    cdef int push_to(self, Client client, bytes data, bint shows_data) except -1
    cdef int check_queue(self) except -1
    cdef int end_frame(self) except -1
    cpdef int schedule_tick(self) except -1
    cpdef int end_tick(self) except -1
