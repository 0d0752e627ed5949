from libc.stdint cimport int64_t, uint8_t, uint64_t


cdef class Reader:
    cdef bytes data
    cdef readonly Py_ssize_t at
    cdef readonly Py_ssize_t end
    cdef readonly int64_t wall_ahead_ms
    cdef object source
    cdef int64_t size_bytes
    cdef uint64_t before  # bytes of the source before `data`
    cdef uint64_t crc  # of the bytes up to `summed`
    cdef Py_ssize_t summed
    cdef Py_ssize_t marked  # -1: nothing

    cdef int sum_up(self, Py_ssize_t end) except -1
    cdef int refill(self, uint64_t wanted) except -1
    cdef const uint8_t* next_bytes(self, uint64_t size) except NULL
    cpdef bytes take(self, uint64_t size)
    cpdef int skip(self, uint64_t size) except -1
    cpdef bint is_at_end(self)
    cpdef uint8_t byte(self) except? 0xFE
    cpdef int64_t signed64(self) except? -2
    cpdef uint64_t length(self) except? 0xFEFEFEFE
    cdef uint8_t peek(self) except? 0xFE
    cpdef bytes string(self, uint64_t most_bytes=*)
    cpdef int skip_string(self) except -1
