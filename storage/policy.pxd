from libc.stdint cimport uint64_t


cdef class Policy:
    cdef readonly uint64_t max_len
    cdef readonly uint64_t max_age_ms
    cdef readonly uint64_t max_bytes
    cdef readonly bint exact
    cdef uint64_t looked_at_ms  # when its stream is looked at next; NEVER: not noted


cdef class Calendar:
    cdef dict pages
    cdef list moments

    cdef uint64_t note(self, uint64_t moment_ms, int db, bytes key) except? 0
    cdef uint64_t next(self) noexcept
    cdef tuple take(self, uint64_t now_ms)
    cdef int forget(self, uint64_t page_ms, int db, bytes key) except -1
    cdef int forget_database(self, int db) except -1
