from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.streams.stream cimport Stream


# Entries go until `keep` of them stay (by_length), or until an id is at least `first_kept`. At
# most `limit` go, 0 for any number; the node with which that might be exceeded is left alone.
cdef struct Goal:
    bint by_length
    uint64_t keep
    EntryId first_kept
    uint64_t limit


cdef list unheld_ids(Stream stream, const Goal* goal)
