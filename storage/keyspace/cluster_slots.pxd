from libc.stdint cimport uint32_t

cdef enum:
    CLUSTER_SLOT_COUNT = 16384


cdef uint32_t cluster_slot(const char* key, Py_ssize_t size) noexcept nogil
