from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.streams.stream cimport Stream


# The place at which to trim a stream: `first` is the first ID to keep, unless `all` entries are evicted.
# `blocks` is the number of whole blocks to evict; `more`: there may be others, which were not
# checked.
cdef struct TrimPoint:
    bint some
    bint all
    bint more
    uint32_t blocks
    EntryId first


cdef uint64_t kept_bytes(Stream stream) except? 0xffffffffffffffff
cdef uint64_t age_trim_ms(Stream stream) noexcept
cdef int find_trim_point(Stream stream, uint64_t now_ms, uint32_t blocks_max, TrimPoint* cut) except -1
cdef bint oldest_block(Stream stream, EntryId* last, bint* is_open) noexcept
