# cython: language_level=3, wraparound=False, cdivision=True
"""A histogram of durations, from 50 microseconds to 10 seconds, for the metrics.

Each tick adds one duration, so adding takes a few nanoseconds. A histogram has one writer; another
thread may read it.
"""

from libc.stdint cimport uint64_t

BOUNDS_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0,
)

cdef uint64_t[BOUNDS] BOUNDS_NS
for _place, _bound in enumerate(BOUNDS_S):
    BOUNDS_NS[_place] = round(_bound * 1e9)


cdef class Histogram:
    """Counts of durations up to each of BOUNDS_S, and of longer ones; and their sum."""

    cpdef void add(self, uint64_t ns) noexcept:
        """Count a duration in nanoseconds."""
        cdef int place = 0
        while place < BOUNDS and ns > BOUNDS_NS[place]:
            place += 1
        self.counts[place] += 1
        self.sum_ns += ns

    def cumulative(self) -> list[int]:
        """The numbers of durations that were at most as long as each of BOUNDS_S, and of all
        durations."""
        cdef uint64_t total = 0
        cdef int place
        cdef list found = []
        for place in range(BOUNDS + 1):
            total += self.counts[place]
            found.append(total)
        return found

    @property
    def sum_s(self) -> float:
        """The sum of all durations in seconds."""
        return self.sum_ns / 1e9
