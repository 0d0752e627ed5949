cimport cython
from libc.stdint cimport int64_t, uint32_t, uint64_t

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId, id_less
from millstream.storage.blocks.layout cimport Cursor, Entry, View
from millstream.storage.blocks.open_block cimport OpenBlock
from millstream.storage.blocks.reply_entries cimport Selection
from millstream.storage.blocks.skiplist cimport SkipList
from millstream.storage.blocks.skiplist_pages cimport Place, no_place


# A position among the entries; valid while nothing changes the log.
cdef struct Walk:
    Place place
    bint in_tail
    bint valid
    View view
    Cursor cursor


@cython.no_gc  # here, too: otherwise Stream, in another module, would have a collector's header
cdef class EntryLog:
    # Members that every append accesses come first: with very many streams each cache line counts.
    cdef OpenBlock tail
    cdef readonly uint64_t length
    cdef public uint64_t last_ms
    cdef public uint64_t last_seq
    cdef public uint64_t entries_added
    cdef SkipList sealed
    cdef uint64_t head_ms
    cdef uint64_t head_seq
    cdef uint64_t head_gone
    cdef public uint64_t max_evicted_ms
    cdef public uint64_t max_evicted_seq
    cdef public uint64_t max_deleted_ms
    cdef public uint64_t max_deleted_seq
    cdef readonly uint64_t entries_evicted
    cdef readonly uint64_t entries_deleted

    cdef int next_id(self, uint64_t now_ms, EntryId* out) except -1
    cdef int append(self, EntryId entry_id, Slice* items, Py_ssize_t count, uint32_t node_entries,
                    uint32_t node_bytes) except -1
    cdef seal(self)
    cdef bint resume_tail(self, const View* view) except -1
    cdef int discard_sealed(self) except -1
    cdef bint first_entry(self, EntryId* out) noexcept
    cdef bint last_entry(self, EntryId* out) noexcept
    cdef bint has_newer(self, EntryId entry_id) noexcept
    cdef uint64_t rank_of(self, EntryId entry_id) noexcept
    cdef bint nth(self, uint64_t rank, EntryId* out) noexcept
    cdef uint64_t count_between(self, EntryId start, EntryId end) noexcept
    cdef bint find(self, EntryId entry_id, View* view, Entry* out) noexcept
    cdef void walk_start(self, Walk* walk, EntryId start) noexcept
    cdef void walk_enter(self, Walk* walk, EntryId start) noexcept
    cdef void enter_tail(self, Walk* walk) noexcept
    cdef bint walk_next(self, Walk* walk) noexcept
    cdef void walk_block(self, Walk* walk) noexcept
    cdef uint64_t data_memory_bytes(self) noexcept

    cdef inline Place head_place(self) noexcept:
        """The place of the first sealed block; no place without one."""
        return no_place() if self.sealed is None else self.sealed.first()

    cdef inline bint has_tail(self) noexcept:
        """Whether the open block has entries, deleted or not."""
        return self.tail is not None and self.tail.count > 0

    cdef inline bint is_in_tail(self, EntryId entry_id) noexcept:
        """Whether an entry with this ID would be in the open block."""
        return self.has_tail() and not id_less(
            entry_id.ms, entry_id.seq, self.tail.first_ms, self.tail.first_seq)

    cdef inline uint64_t sealed_live(self) noexcept:
        return 0 if self.sealed is None else self.sealed.live

    cdef inline void skip_hidden(self, EntryId* start) noexcept:
        """Raise an ID below the first kept ID to that ID."""
        if id_less(start.ms, start.seq, self.head_ms, self.head_seq):
            start.ms = self.head_ms
            start.seq = self.head_seq
