from libc.stdint cimport int64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.encoding cimport Output
from millstream.server.execution.admission cimport Admission
from millstream.server.execution.blocking cimport Serving
from millstream.server.execution.lookup cimport Row, Statistics, Table
from millstream.server.protocol.outbox cimport Client, Outbox
from millstream.server.protocol.resp cimport Limits


cdef class RequestRunner:
    cdef object server
    cdef Context context
    cdef Admission admission
    cdef Serving serving
    cdef Statistics statistics
    cdef Outbox outbox
    cdef Table table
    cdef Limits limits
    cdef Output out
    cdef object resume
    cdef object shown  # to clients that run MONITOR
    cdef dict monitors
    cdef public object pause
    cdef object backpressure
    cdef int64_t tick_bytes
    cdef Client current
    cdef Row row
    cdef readonly object audit
    # Of an administrator's command that has begun: its words, and its user's name.
    cdef list audited_words
    cdef bytes audited_user
    cdef Py_ssize_t reply_start
    cdef bint running
    cdef bint shown_data  # whether something in the batch's replies may show some
    cdef list pushes
    cdef bint pushes_show_data

    cdef int begin_batch(self, Client client) except -1
    cdef int begin_request(self) noexcept
    cdef int run_postponed(self, Client client) except -1
    cdef int execute(self, Client client, Args args) except -1
    cdef int begin_guarded(self, Client client, Row row, Args args) except -1
    cdef int begin_audit(self, Client client, Args args) except -1
    cdef int end_audit(self, Client client, str error) except -1
    cdef arity_error(self, Client client, Row row)
    cdef int postpone(self, Client client, Args args, clients) except -1
    cdef int run_removal(self, Client client, Row row, Args args) except -1
    cdef int run_row(self, Client client, Row row, Args args) except -1
    cdef int call(self, Client client, Row row, Args args) except -1
    cdef int call_shown(self, Client client, Row row, Args args) except -1
    cdef bint queue_for_exec(self, Client client, Row row, Args args) except -1
    cdef int run_queue(self, Client client, list requests) except -1
    cdef int run_queued(self, Client client, Row row, Args args) except -1
    cdef int finish_reply(self, Client client) except -1
    cdef int flush_pushes(self, Client client) except -1
    cdef int refuse_unknown(self, Client client, Args args) except -1
    cdef int encode_other(self, Client client, reply) except -1
    cdef int call_again(self, Client client, args) except -1
    cdef int reply_error(self, str message) except -1
    cdef int reply_exception(self, error) except -1
    cdef int protocol_error(self, Client client) except -1
