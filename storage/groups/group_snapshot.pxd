from libc.stdint cimport uint64_t

from millstream.storage.groups.group cimport Group


cpdef dict dump_group(Group group)
cpdef Group load_group(dict meta, uint64_t now_ms)
cdef int load_retry_pairs(Group group, list pairs) except -1
cdef int load_pending(
    Group group, const char* packed, Py_ssize_t begin, Py_ssize_t end) except -1
cdef Group copy_group(Group group, uint64_t now_ms)
