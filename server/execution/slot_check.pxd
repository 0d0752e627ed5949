from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args
from millstream.encoding cimport Slice
from millstream.server.execution.lookup cimport Row
from millstream.server.protocol.outbox cimport Client

cdef enum:
    NO_SLOT = -1
    OWNED_BYTES = 2048  # a bit for each slot


cdef class Places:
    cdef Py_ssize_t at
    cdef Py_ssize_t last
    cdef Py_ssize_t step
    cdef list listed

    cdef int find(self, Row row, Args args) except -1
    cdef int set_list(self, list positions) except -1
    cdef Slice* next(self, Args args) except? NULL


cdef class SlotCheck:
    cdef unsigned char[OWNED_BYTES] owned
    cdef unsigned char[OWNED_BYTES] passed  # the same; none while the cluster is down
    cdef readonly bint is_down
    cdef bint allows_reads  # while it is down
    cdef object node
    cdef Places places
    cdef readonly object parking  # None: no slot is leaving, or this node is no primary
    cdef int slot  # of the request that was checked last
    cdef bint must_park  # the request that was checked last waits in `parking`
    # Refused requests, by the kind of their error.
    cdef readonly uint64_t moved
    cdef readonly uint64_t crossed
    cdef readonly uint64_t unserved

    cdef bint passes(self, int slot) noexcept
    cdef int pass_slots(self) noexcept
    cdef int check(self, Client client, Row row, Args args) except -1
    cdef int check_transaction(self, Client client, Row row) except -1
    cdef int check_each(self, Client client, Row row, Args args) except -1
    cdef int refuse_foreign(self, Client client, Row row, Args args, int slot, bint writes) except -1
    cdef bint serves_down(self, Row row, int slot, bint writes) except -1
    cdef str refusal_of_write(self, Client client)
    cdef str refusal(self, Client client, int slot)
    cdef int refuse_several(self, Row row, int slot) except -1
    cdef int slot_of_all(self, Row row, Args args, int slot) except -2
