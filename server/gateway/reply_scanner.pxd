from libc.stdint cimport int64_t


cdef class ReplyScanner:
    cdef int64_t elements  # of the reply that has begun, which have not ended
    cdef int64_t bulk_bytes  # of the bulk string that has begun, with its end of line
    cdef readonly Py_ssize_t complete
    cdef readonly bint refused
    cdef bint finds_refusals

    cdef Py_ssize_t scan_bytes(self, const char* begin, Py_ssize_t size, Py_ssize_t at, Py_ssize_t limit) except -1
    cdef int begin_element(self, const char* at, const char* end) except -1
