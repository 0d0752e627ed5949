from libc.stdint cimport uint64_t
from libc.string cimport memcpy


cdef struct EntryId:
    uint64_t ms
    uint64_t seq


cdef extern from *:
    """
    static inline int ms_id_less(uint64_t ams, uint64_t aseq, uint64_t bms, uint64_t bseq) {
        return ams < bms || (ams == bms && aseq < bseq);
    }
    """
    bint id_less "ms_id_less"(uint64_t ams, uint64_t aseq, uint64_t bms, uint64_t bseq) noexcept nogil


cdef class Id:
    cdef readonly uint64_t ms
    cdef readonly uint64_t seq
    cdef readonly bint dotted


cdef Id make_id(uint64_t ms, uint64_t seq, bint dotted)
cdef int parse_u64(const char* text, Py_ssize_t size, uint64_t* out) noexcept nogil
cdef int parse_id(const char* text, Py_ssize_t size, bint dot_allowed, uint64_t missing_seq,
                  EntryId* out) noexcept nogil
cdef int format_u64(char* out, uint64_t value) noexcept nogil
cdef int format_id(char* out, uint64_t ms, uint64_t seq, bint dotted) noexcept nogil
