from libc.stdint cimport uint64_t

# The groups of a stream are None, its only Group, or a dict of several by name. Objects, so that a
# change of Group's declaration recompiles only what uses groups.

cdef uint64_t group_count(groups) noexcept
cdef list all_groups(groups)
cdef dict groups_by_name(groups)
cdef object find_group(groups, bytes name)
cdef object with_group(groups, group)
cdef object without_group(groups, bytes name)
cdef uint64_t count_live_groups(groups, uint64_t now_ms) except? 0xffffffffffffffff
cdef list due_groups(groups, uint64_t now_ms)
cdef bint is_held_by_group(groups, uint64_t ms, uint64_t seq) noexcept
cdef bint has_pending(groups, uint64_t ms, uint64_t seq) noexcept
cdef int forget_gone(groups) except -1
cdef uint64_t groups_size_bytes(groups) except? 0xffffffffffffffff
