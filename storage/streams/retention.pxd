from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.blocks.layout cimport View
from millstream.storage.streams.stream cimport RetentionPolicy, Stream


# The place at which to trim a stream: `first` is the first ID to keep, unless `all` entries are evicted.
# `blocks` is the number of whole blocks to evict; `more`: there may be others, which were not
# checked.
cdef struct TrimPoint:
    bint some
    bint all
    bint more
    uint32_t blocks
    EntryId first


# Limits of a policy, as in RetentionPolicy.
cdef struct Limits:
    uint64_t max_len
    uint64_t max_age_ms
    uint64_t max_bytes
    bint exact


cdef inline Limits limits_of(RetentionPolicy policy) noexcept:
    return Limits(policy.max_len, policy.max_age_ms, policy.max_bytes, policy.exact)


cdef inline Limits hard_limits_of(RetentionPolicy policy) noexcept:
    return Limits(policy.hard_len, policy.hard_age_ms, policy.hard_bytes, policy.exact)


cdef inline bint is_limited(const Limits* limits) noexcept:
    return limits.max_len or limits.max_age_ms or limits.max_bytes


cdef uint64_t kept_bytes(Stream stream) except? 0xffffffffffffffff
cdef uint64_t whole_bytes(Stream stream) except? 0xffffffffffffffff
cdef uint64_t age_trim_ms(Stream stream, uint64_t now_ms) noexcept
cdef int find_trim_point(Stream stream, const Limits* limits, uint64_t now_ms, const EntryId* held,
                         uint32_t blocks_max, TrimPoint* cut) except -1
cdef bint is_over(const Limits* limits, const View* view, uint64_t now_ms, uint64_t left,
                  uint64_t total) noexcept
cdef bint oldest_block(Stream stream, EntryId* last, bint* is_open) noexcept
