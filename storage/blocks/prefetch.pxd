"""Fetches memory into the cache before it is read."""

cdef extern from *:
    """
    /* gcc takes a function that only fetches ahead for one without effect, and leaves it out. */
    static inline void fetch_line(const void *at) { __builtin_prefetch(at); __asm__ volatile(""); }
    """
    void fetch_line(const void* at) noexcept nogil

cdef enum:
    LINE_BYTES = 64
