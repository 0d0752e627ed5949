from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.streams.stream cimport Stream


# Evict until `keep` entries are left (by_length), or up to the first ID that is at least
# `first_kept`. At most `limit` entries are evicted (0: no limit); a node that might exceed the
# limit is not trimmed.
cdef struct Goal:
    bint by_length
    uint64_t keep
    EntryId first_kept
    uint64_t limit


cdef list unheld_ids(Stream stream, const Goal* goal)
