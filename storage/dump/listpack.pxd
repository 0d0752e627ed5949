from libc.stdint cimport int64_t


# All else is used from Python only: listpack.pyi has what there is.
cpdef int64_t shifted_ms(int64_t moment_ms, int64_t by_ms) noexcept
cpdef int64_t ahead_ms(int64_t wall_ms, int64_t steady_ms) noexcept
