from libc.stdint cimport uint64_t
cimport cython

from millstream.entry_id cimport EntryId
from millstream.storage.groups.key_order cimport KeyOrder
from millstream.storage.groups.pending_list cimport PendingList


@cython.no_gc
cdef class OrderedPending(PendingList):
    cdef KeyOrder keys


cdef bint is_next(OrderedPending pending, EntryId at) except -1
cdef bint may_claim(OrderedPending pending, EntryId at, uint64_t now_ms) except -1
cdef int park_later(OrderedPending pending, EntryId at) except -1
cdef bint has_later(OrderedPending pending, EntryId at) except -1
cdef PendingList pending_with(PendingList pending, KeyOrder keys)
cdef OrderedPending ordered(PendingList pending)
