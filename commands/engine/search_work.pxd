from libc.stdint cimport int64_t


cdef enum:
    # The cost of the retry of a waiting read.
    RETRY_WORK = 100


cdef class SearchShare:
    # Whether the search continues in later turns.
    cdef bint is_running
    cdef int64_t given

    cdef int set_running(self, bint running) noexcept
    cdef int64_t begin(self) noexcept
    cdef int end(self, int64_t left) noexcept


cdef class SearchTurns:
    cdef object call_soon
    cdef bint is_scheduled

    cdef int renew_soon(self) except -1


cdef bint has_work() noexcept
cdef int renew_work() noexcept
