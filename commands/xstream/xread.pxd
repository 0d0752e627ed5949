from libc.stdint cimport uint64_t

from millstream.commands.runtime.arguments cimport Args


# COUNT for each stream, MAXCOUNT and MAXSIZE for all of them together; the largest number if not
# given.
cdef struct ReadLimits:
    uint64_t entries
    uint64_t all_entries
    Py_ssize_t size_bytes


cdef int no_limits(ReadLimits* limits) noexcept
cdef bint take_read_limit(Args args, ReadLimits* limits) except -1
cdef int check_limits(ReadLimits* limits) except -1
