from libc.stdint cimport int64_t, uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport Effects
from millstream.encoding cimport Output
from millstream.server.execution.lookup cimport Row, Statistics, Table
from millstream.server.monitor.histogram cimport Histogram
from millstream.server.protocol.outbox cimport Client, Outbox
from millstream.server.protocol.resp cimport Limits
from millstream.server.execution.blocking cimport Serving
from millstream.storage.streams.keyspace_core cimport KeyspaceCore as Keyspace


cdef class Executor:
    cdef readonly object server
    cdef readonly Keyspace keyspace
    cdef readonly Effects effects
    cdef readonly Context context
    cdef readonly Limits limits
    cdef readonly object ticker
    cdef object persistence
    cdef object loop
    cdef object clock
    cdef object steady_call
    cdef object steady
    cdef Output out
    cdef bint has_checks  # whether some commands may not run for some clients: looked at in `check_access`
    cdef bint _password_required
    cdef bint _loading
    cdef public object read_only  # why nothing may be changed: this server is a replica
    cdef public object lacks_replicas  # why clients may change nothing: too few replicas
    cdef str _stale  # why hardly anything may run: a replica without a link
    cdef public int64_t primary_ahead_ms  # the primary's wall clock minus this server's
    cdef uint64_t begun_before
    cdef bint _has_restricted  # whether a client is connected whose user may not do everything
    cdef object eviction
    cdef uint64_t memory_limit
    cdef bint memory_full
    cdef bint room_scheduled
    cdef bint near_journal_limit
    cdef readonly object backpressure
    cdef readonly bint queue_full  # requests wait for the journal
    cdef int64_t tick_bytes
    cdef int64_t unlooked_bytes  # committed since the queue was looked at
    cdef bint freeing
    cdef bint lacked_room
    cdef Row row
    cdef Py_ssize_t reply_start
    cdef Table table
    cdef Statistics statistics
    cdef readonly Serving serving
    cdef readonly object pause
    cdef readonly Outbox outbox
    cdef object resumable
    cdef bint running
    cdef int batch_left
    cdef uint64_t batch_end_ns
    cdef bint shown_data  # whether something in the batch's replies may show some
    cdef bint tick_scheduled
    cdef uint64_t tick_begun_ns  # 0: no batch has run in this tick
    cdef readonly Histogram tick_times
    cdef readonly Histogram hold_times
    cdef object timer
    cdef uint64_t timer_ms
    cdef readonly object current
    cdef list pushes
    cdef bint pushes_show_data
    cdef readonly dict monitors
    cdef public uint64_t bytes_in

    cdef uint64_t read_clock(self) except? 0
    cdef uint64_t read_steady(self, uint64_t now_ms) except? 0
    cdef int look_at_clocks(self) except -1
    cdef uint64_t next_wall_ms(self) except? 0
    cdef int receive(self, Client client, bytes data) except -1
    cdef int watch_limits(self) except -1
    cdef str lack_of_room(self)
    cdef int watch_room(self, Client client) except -1
    cdef int require_room(self, Row row, Args args) except -1
    cdef int require_room_for_all(self, list requests) except -1
    cdef int run_batch(self, Client client) except -1
    cdef int run_requests(self, Client client) except -1
    cdef int execute(self, Client client, Args args) except -1
    cdef int refuse_unknown(self, Client client, Args args) except -1
    cdef uint64_t time_slice(self) noexcept
    cdef int check_access(self, Client client, Row row, Args args) except -1
    cdef int check_permission(self, Client client, Row row, Args args, bint at_exec) except -1
    cdef wrong_words(self, Client client, Row row)
    cdef int call(self, Client client, Row row, Args args) except -1
    cdef int call_shown(self, Client client, Row row, Args args) except -1
    cdef int run_row(self, Client client, Row row, Args args) except -1
    cdef int run_queue(self, Client client, list requests) except -1
    cdef int run_queued(self, Client client, Row row, Args args) except -1
    cdef int reply_exception(self, error) except -1
    cdef bint queue_for_exec(self, Client client, Row row, Args args) except -1
    cdef int finish_reply(self, Client client) except -1
    cdef int flush_pushes(self, Client client) except -1
    cdef int push_to(self, Client client, bytes data, bint shows_data) except -1
    cdef int end_frame(self) except -1
    cdef int look_at_queue(self) except -1
    cdef int hold_back(self, Client client, Args args) except -1
    cdef int postpone(self, Client client, Args args) except -1
    cdef int show_monitors(self, Client client, Args args) except -1
    cdef int encode_other(self, Client client, reply) except -1
    cdef int call_again(self, Client client, args) except -1
    cdef int put_several(self, Client client, parts) except -1
    cdef int reply_error(self, str message) except -1
    cdef int protocol_error(self, Client client) except -1
    cdef int schedule_tick(self) except -1
    cdef int set_timer(self) except -1
    cdef int set_guard(self) noexcept
    cdef int make_room(self) except -1
    cdef int keep_policies(self) except -1


cdef int64_t effects_most(Args args) noexcept
