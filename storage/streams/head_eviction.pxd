from libc.stdint cimport uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.log.trimming cimport HeadRun
from millstream.storage.streams.stream cimport Stream

cpdef uint64_t evict_before(Stream stream, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff
cdef uint64_t evict_few(Stream stream, uint64_t count) noexcept
cpdef uint64_t evict_every(Stream stream) except? 0xffffffffffffffff
cdef uint64_t evict_settled(Stream stream, const EntryId* first,
                            const HeadRun* run) except? 0xffffffffffffffff
cdef uint64_t missed_by_trim(Stream stream) noexcept
cdef uint64_t lost_by_trim(Stream stream) noexcept
cpdef uint64_t missed_by(Stream stream, group) noexcept
cpdef int note_pending(Stream stream, uint64_t ms, uint64_t seq) noexcept
cpdef uint64_t lost_by(Stream stream, group) noexcept
cpdef dict counted_groups(Stream stream)
