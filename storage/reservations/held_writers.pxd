from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.reservations.held_segments cimport Writer


cdef class Writers:
    # By name, least recently used first: an OrderedDict, which finds the first item at once.
    cdef readonly object by_name
    cdef Writer recent  # the writer used last; None: unknown
    cdef EntryId first_reserved  # no ID below it was ever reserved; 0-0: none at all
    cdef bint has_forgotten  # writers, so that one that is not known may have reserved IDs

    cdef Writer use(self, bytes name, uint64_t writers_max)
    cdef bint may_have_reserved(self, bytes name, const EntryId* at) except -1
    cdef uint64_t memory_bytes(self) except? 0
