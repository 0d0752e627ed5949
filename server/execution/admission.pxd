from libc.stdint cimport int64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.commands.runtime.context cimport Context
from millstream.commands.runtime.effects cimport Effects
from millstream.server.execution.lookup cimport Row
from millstream.server.execution.slot_check cimport SlotCheck
from millstream.server.protocol.outbox cimport Client


cdef class Admission:
    cdef object server
    cdef Context context
    cdef Effects effects
    cdef bint has_checks
    cdef SlotCheck slots  # None: this server is no node of a cluster
    cdef bint _password_required
    cdef bint _has_restricted
    cdef bint loading
    cdef str _out_of_memory
    cdef bint near_journal_limit
    cdef bint queue_full
    cdef bint may_remove  # although changes are refused
    cdef readonly str stale
    cdef str read_only  # the error of all changes: this server is a replica
    cdef readonly str lacks_replicas  # the error of clients' changes: too few replicas

    cdef int update(self) noexcept
    cdef int forget_parked(self, Client client) except -1
    cdef int parked_count(self) except -1
    cdef int set_loading(self, bint loading) noexcept
    cdef int set_queue_full(self, bint full) noexcept
    cdef int check_batch(self, Client client) noexcept
    cdef int check_access(self, Client client, Row row, Args args) except -1
    cdef int check_permission(self, Client client, Row row, Args args, bint at_exec) except -1
    cdef bint require_room(self, Row row, Args args) except -1
    cdef int begin_removal(self, int64_t most) except -1
    cdef int end_removal(self) except -1
    cdef int allow_removals(self, str problem) except -1
    cdef int check_write(self, Row row, Args args) except -1
    cdef str refusal_of_role(self, Client client, str problem)
    cdef bint check_transaction(self, Client client, list requests) except -1
    cdef bint require_room_for_all(self, list requests) except -1


cdef int64_t effects_most(Args args) noexcept
