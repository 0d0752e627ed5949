from libc.stdint cimport uint32_t, uint64_t

from millstream.entry_id cimport EntryId
from millstream.storage.groups.pending cimport Chunk, Pending, Pendings


# The number of records and heap positions that searches for due entries have examined, in all
# groups. Tests limit it.
cdef struct Work:
    uint64_t count


cdef Work work


cdef class DeliveryOrder:
    cdef uint64_t latest_ms
    cdef EntryId last
    cdef bint numbered
    cdef uint64_t count
    cdef object numbers

    cdef int note(self, uint64_t ms, uint64_t seq, uint64_t at_ms) except -1
    cdef uint64_t number(self, const Pending* record) except? 0xffffffffffffffff


cdef class DueIds:
    cdef EntryId* items
    cdef size_t count
    cdef size_t capacity

    cdef int add(self, uint64_t ms, uint64_t seq) except -1


cdef uint64_t claimable_ms(Pendings* pendings, const Pending* record) noexcept
cdef uint64_t due_ms(Pendings* pendings, const Pending* record, bint with_zero) noexcept
cdef uint64_t expires_ms(Pendings* pendings, const Pending* record) noexcept
cdef uint64_t fails_ms(Pendings* pendings, const Pending* record, bint with_zero) noexcept
cdef uint64_t ends_ms(Pendings* pendings, const Pending* record) noexcept
cdef void set_limit(Pendings* pendings, uint32_t limit) noexcept
cdef void change_timeout(Pendings* pendings, uint64_t before_ms) noexcept
cdef void move_bounds(Pendings* pendings, Chunk* chunk, const Pending* record) noexcept
cdef void chunk_bounds(Pendings* pendings, Chunk* chunk) noexcept
cdef void set_bound(Pendings* pendings, Chunk* chunk, int kind, uint64_t moment) noexcept
cdef void leave_heaps(Pendings* pendings, Chunk* chunk) noexcept
cdef void note_moved(Pendings* pendings, Chunk* chunk) noexcept
cdef uint64_t exact_min(Pendings* pendings, int kind, uint64_t until_ms) noexcept
cdef uint64_t bound_of(Pendings* pendings, int kind) noexcept
cdef bint is_due(Pendings* pendings, uint64_t now_ms, bint with_zero) noexcept
cdef bint has_expired(Pendings* pendings, uint64_t now_ms) noexcept
cdef bint is_idle(Pendings* pendings, uint64_t now_ms, uint64_t min_idle_ms) noexcept
cdef list earliest(Pendings* pendings, int kind, uint64_t until_ms, uint64_t limit,
                   DeliveryOrder order, bint with_waiting)
cdef DueIds find_earliest(Pendings* pendings, int kind, uint64_t until_ms, uint64_t limit,
                          DeliveryOrder order, bint with_waiting)
cdef bint is_before(const Chunk* a, const Chunk* b, int kind) noexcept
