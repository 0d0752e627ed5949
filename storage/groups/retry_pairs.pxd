from libc.stdint cimport uint32_t, uint64_t

from millstream.storage.groups.consumers cimport Details
from millstream.storage.groups.pending cimport Pendings

cdef uint32_t number_of(Pendings* pendings, Details details, uint64_t retry_ms,
                        uint64_t expire_ms) except 0
cdef int set_older_timeout(Pendings* pendings, Details details, uint64_t timeout_ms) except -1
cdef bint has_unpaired(Pendings* pendings, Details details) noexcept
cdef list retry_pairs(Pendings* pendings, Details details)
cdef int load_pairs(Pendings* pendings, Details details, list pairs) except -1
cdef int copy_pairs(Pendings* pendings, Details details, Pendings* other,
                    Details other_details) except -1
cdef list checked_pairs(rows, bytes group_name)
