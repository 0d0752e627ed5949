from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId


cdef class Id:
    cdef readonly uint64_t ms
    cdef readonly uint64_t seq
    cdef readonly bint dotted


cdef Id make_id(uint64_t ms, uint64_t seq, bint dotted)
cdef int parse_u64(const char* text, Py_ssize_t size, uint64_t* out) noexcept nogil
cdef int parse_part(const char* text, Py_ssize_t size, uint64_t* out) noexcept nogil
cdef int parse_id(const char* text, Py_ssize_t size, bint dot_allowed, uint64_t missing_seq,
                  EntryId* out) noexcept nogil
cdef int format_id(char* out, uint64_t ms, uint64_t seq, bint dotted) noexcept nogil
