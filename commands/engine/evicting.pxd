from libc.stdint cimport uint64_t

from millstream.commands.runtime.context cimport Context
from millstream.storage.groups.group cimport Group
from millstream.storage.streams.stream cimport Stream

cdef enum:
    # The pause between two lines about entries that groups missed.
    MISSED_LOG_EVERY_MS = 60000


cpdef int record_passes(Context ctx, bytes key, Stream stream) except -1
cdef int record_pass(Context ctx, bytes key, Group group) except -1


cdef inline length_boundary(Stream stream, uint64_t keep):
    """The boundary for `evict_to` at which `keep` entries stay."""
    return "all" if keep == 0 else stream.boundary_for_length(keep)


cpdef uint64_t evict_to(Context ctx, bytes key, Stream stream, boundary,
                       bint counts) except? 0xffffffffffffffff
cdef uint64_t evict_to_length(Context ctx, bytes key, Stream stream, uint64_t keep,
                              bint counts) except? 0xffffffffffffffff
