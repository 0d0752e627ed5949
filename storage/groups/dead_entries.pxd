from libc.stdint cimport uint64_t

from millstream.storage.groups.pending_list cimport PendingList

cpdef Py_ssize_t dead_count(PendingList pending) except -1
cpdef dict dead_entries(PendingList pending)
cdef tuple dead_facts(PendingList pending, uint64_t ms, uint64_t seq)
cdef list first_dead(PendingList pending, Py_ssize_t limit)
cdef int set_dead(PendingList pending, uint64_t ms, uint64_t seq, tuple facts,
                  bint may_be_copied) except -1
