from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from millstream.encoding cimport Output, Slice
from millstream.entry_id cimport EntryId
from millstream.storage.blocks.block cimport Block, OpenBlock
from millstream.storage.blocks.layout cimport Cursor, Entry, IdText, View
from millstream.storage.blocks.skiplist cimport Place, SkipList
from millstream.storage.streams.group cimport Group


cdef enum:
    # What makes an append more than an append (Stream.restrictions).
    RESERVING = 1  # IDs are reserved: new entries are held
    SEALED = 2
    FOLLOWED = 4  # readers were promised that nothing comes up to an ID


cdef struct Walk:
    Place place
    bint in_tail
    bint valid
    View view
    Cursor cursor


cdef list nodes_of(const View* view, uint64_t hidden)


cdef class RetentionPolicy:
    cdef readonly uint64_t max_len
    cdef readonly uint64_t max_age_ms
    cdef readonly uint64_t max_bytes
    cdef readonly bint exact
    cdef public uint64_t next_check_ms  # when its stream is looked at next; NEVER: not noted


cdef class Stream:
    # What every append touches stands together: with very many streams each line of the cache
    # counts.
    cdef OpenBlock tail
    cdef readonly uint64_t length
    cdef public uint64_t last_ms
    cdef public uint64_t last_seq
    cdef public uint64_t entries_added
    cdef public uint32_t used_s
    cdef public RetentionPolicy policy
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
    cdef public uint64_t incarnation
    cdef public uint64_t capture_mark
    # The group of a stream that has one; otherwise `groups_by_name` has them, None for no group.
    cdef Group only_group
    cdef dict groups_by_name
    # Whether a group may have a time to live.
    cdef bint has_ttl
    cdef public uint8_t restrictions
    # A Held (storage/streams/held) once an ID was reserved, else None.
    cdef public object held
    # A Lineage (storage/streams/lineage) if the stream is sealed or has parents, else None.
    cdef public object lineage
    cdef public object idempotence
    cdef public object producers

    cdef int next_id(self, uint64_t now_ms, EntryId* out) except -1
    cdef int append(self, uint64_t ms, uint64_t seq, Slice* items, Py_ssize_t count,
                    uint32_t node_entries, uint32_t node_bytes) except -1
    cdef bint first_entry(self, EntryId* out) noexcept
    cdef bint last_entry(self, EntryId* out) noexcept
    cdef bint has_newer(self, uint64_t ms, uint64_t seq) noexcept
    cdef uint64_t rank_of(self, uint64_t ms, uint64_t seq) noexcept
    cdef bint nth(self, uint64_t rank, EntryId* out) noexcept
    cdef uint64_t count_between(self, uint64_t ms, uint64_t seq, uint64_t end_ms,
                                uint64_t end_seq) noexcept
    cdef int64_t encode_range(self, Output out, uint64_t ms, uint64_t seq, uint64_t end_ms,
                              uint64_t end_seq, uint64_t limit, bint dotted,
                              Py_ssize_t full_size, EntryId* last) except -1
    cdef int64_t encode_reverse(self, Output out, uint64_t ms, uint64_t seq, uint64_t end_ms,
                                uint64_t end_seq, uint64_t limit, bint dotted,
                                Py_ssize_t full_size, EntryId* last) except -1
    cdef void walk_start(self, Walk* walk, uint64_t ms, uint64_t seq) noexcept
    cdef void walk_enter(self, Walk* walk, uint64_t ms, uint64_t seq) noexcept
    cdef bint walk_next(self, Walk* walk) noexcept
    cdef bint find(self, uint64_t ms, uint64_t seq, View* view, Entry* out) noexcept
    cdef uint64_t evict_before(self, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff
    cpdef uint64_t evict_all(self) except? 0xffffffffffffffff
    cdef int discard_sealed(self) except -1
    cpdef object boundary_by_nodes(self, keep, minid, uint64_t limit, bint partly=*)
    cdef uint64_t cut_before(self, uint64_t ms, uint64_t seq) except? 0xffffffffffffffff
    cdef int note_evicted(self, View* view, uint64_t ms, uint64_t seq) noexcept
    cdef uint64_t evict_in(self, View* view, uint64_t ms, uint64_t seq) noexcept
    cdef bint evict_few(self, View* view, uint64_t ms, uint64_t seq) noexcept
    cdef list node_starts(self, Py_ssize_t most)
    cpdef uint64_t evict_ids(self, list ids) except? 0xffffffffffffffff
    cpdef bint is_held(self, uint64_t ms, uint64_t seq) noexcept
    cdef bint has_pending(self, uint64_t ms, uint64_t seq) noexcept
    cpdef int set_ttl(self, group, uint64_t ttl_ms) except -1
    cdef uint64_t live_group_count(self, uint64_t now_ms) except? 0xffffffffffffffff
    cpdef list due_groups(self, uint64_t now_ms)
    cdef bint delete(self, uint64_t ms, uint64_t seq) except -1
    cpdef int set_last_id(self, uint64_t ms, uint64_t seq, uint32_t node_entries,
                         uint32_t node_bytes) except -1
    cdef uint64_t group_count(self) noexcept
    cdef list all_groups(self)
    cdef int add_group(self, Group group) except -1
    cpdef object group(self, bytes name)
    cpdef object make_group(self, bytes name, uint64_t ms, uint64_t seq, uint64_t now_ms)
    cdef int move_group(self, group, uint64_t ms, uint64_t seq,
                        int64_t entries_read) except -1
    cpdef bint drop_group(self, bytes name)
    cdef seal(self)
    cdef inline Place head_place(self) noexcept
    cdef inline bint has_tail(self) noexcept
    cdef inline uint64_t sealed_live(self) noexcept
    cdef void enter_tail(self, Walk* walk) noexcept
    cdef inline void walk_block(self, Walk* walk) noexcept
    cdef int put_back(self, Place place, Block block) except -1
    cdef int evict_in_tail(self, list ids) except -1
    cdef Py_ssize_t evict_in_block(self, Place place, list ids, Py_ssize_t start) except -1
    cdef dict header(self, bint shared, producers, groups)
    cdef int write_end_anew(self, uint32_t node_entries, uint32_t node_bytes) except -1
    cdef bint delete_in(self, Place place, uint64_t ms, uint64_t seq) except -1
