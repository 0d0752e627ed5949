# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The work of searches in one turn of the loop: all searches together do so much, and then wait for
the next turn, however many streams a request names and however many reads wait."""

cimport cython
from libc.stdint cimport int64_t

cdef enum:
    # In units of about ten nanoseconds.
    TURN_WORK = 60000
    # A search does at least so much before another one has its share.
    SHARE_LEAST = 500

# How many searches continue in later turns.
cdef Py_ssize_t running_count = 0
# The work that is left in this turn.
cdef int64_t work_left = TURN_WORK


cdef bint has_work() noexcept:
    """True if searches may do more in this turn."""
    return work_left > 0


cdef int renew_work() noexcept:
    """Begin a turn."""
    global work_left
    work_left = TURN_WORK
    return 0


@cython.final
cdef class SearchShare:
    """The share of a search in the work of a turn: `begin` returns it, 0 if the search has to wait for
    the next turn; `end` takes what is left of it."""

    def __dealloc__(self):
        self.set_running(False)

    cdef int set_running(self, bint running) noexcept:
        global running_count
        if running != self.is_running:
            self.is_running = running
            running_count += 1 if running else -1
        return 0

    cdef int64_t begin(self) noexcept:
        cdef int64_t share = max(<int64_t>(TURN_WORK // (1 + running_count)), <int64_t>SHARE_LEAST)
        self.given = max(min(share, work_left), <int64_t>0)
        return self.given

    cdef int end(self, int64_t left) noexcept:
        global work_left
        work_left -= self.given - left
        return 0


@cython.final
cdef class SearchTurns:
    """Renews the work of searches in each turn of a loop in which they did some. `call_soon` calls a
    function in the next turn."""

    def __init__(self, call_soon):
        self.call_soon = call_soon
        renew_work()

    cdef int renew_soon(self) except -1:
        if work_left < TURN_WORK and not self.is_scheduled:
            self.is_scheduled = True
            self.call_soon(self.renew)
        return 0

    def renew(self) -> None:
        self.is_scheduled = False
        renew_work()
