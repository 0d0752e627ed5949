from libc.stdint cimport uint32_t, uint64_t
cimport cython

from millstream.entry_id cimport EntryId
from millstream.storage.groups.sorted_ids cimport SortedIds


cdef enum:
    # The end of a list.
    NO_ITEM = 0x3fffffff
    # In a chain of keys: the number of an entry that is alone, not of a key.
    ALONE = 0x80000000u


cdef extern from *:
    """
    #include <stdint.h>
    #ifndef MILLSTREAM_KEY_ORDER
    #define MILLSTREAM_KEY_ORDER
    struct OrderedEntry {
        uint64_t ms;
        uint64_t seq;
        union {
            struct {
                uint32_t key;
                uint32_t following;
            };
            uint64_t hash;
        };
        uint32_t key_chain;
        uint32_t chain : 30;
        uint32_t parked : 1;
        uint32_t alone : 1;
    } __attribute__((packed));
    struct OrderKey {
        uint64_t hash;
        uint32_t pending;
        uint32_t first_pending;
        uint32_t first_parked;
        uint32_t last_parked;
        uint32_t free_at;
        uint32_t read;
        uint32_t chain;
    } __attribute__((packed));
    #endif
    """
    # An entry of a key, pending or parked: the number of its key, the next entry of the key in the
    # same state, in ID order, and the next one in its chain. A pending entry that is alone has no key
    # record: it has the hash itself, and is in a chain of keys.
    cdef struct OrderedEntry:
        uint64_t ms
        uint64_t seq
        uint32_t key
        uint32_t following
        uint64_t hash
        uint32_t key_chain
        uint32_t chain
        uint32_t parked
        uint32_t alone
    # A key with entries: the number of the pending ones, and the first and last of its lists. `free_at`:
    # its place among the free keys. `read`: the number of the read that has got its pending entries.
    cdef struct OrderKey:
        uint64_t hash
        uint32_t pending
        uint32_t first_pending
        uint32_t first_parked
        uint32_t last_parked
        uint32_t free_at
        uint32_t read
        uint32_t chain


# Chains of items by a hash: the number of the first item of each. It has one chain for every two items,
# and gets them one by one, so that no insertion takes long.
cdef struct Chains:
    uint32_t* heads
    uint32_t count
    uint32_t capacity


@cython.no_gc
cdef class KeyOrder:
    cdef readonly uint64_t seed
    cdef readonly uint32_t parked_count
    cdef readonly uint32_t pending_count
    # The most entries of a key that one read gets.
    cdef public uint32_t run
    # True if the last delivery of an entry has failed, and it ends only after earlier ones of its key.
    cdef public bint ends_wait
    cdef uint32_t reads
    cdef OrderedEntry* entries
    cdef uint32_t entries_used
    cdef uint32_t entries_capacity
    cdef uint32_t unused_entry
    cdef OrderKey* keys
    cdef uint32_t keys_used
    cdef uint32_t keys_capacity
    cdef uint32_t unused_key
    cdef uint32_t key_count
    cdef Chains entry_chains
    cdef Chains key_chains
    # A heap of the keys that may be free and have parked entries, by the ID of the first of these.
    cdef uint32_t* free_keys
    cdef uint32_t free_count
    # The IDs of the parked entries of all keys.
    cdef SortedIds parked_ids

    cdef uint32_t find_entry(self, EntryId at) noexcept
    cdef uint32_t find_key(self, uint64_t hash) noexcept
    cdef int reserve(self) except -1
    cdef uint32_t add_key(self, uint64_t hash) noexcept
    cdef void split_keys(self) noexcept
    cdef void chain_key(self, uint32_t item, uint64_t hash) noexcept
    cdef void unchain_key(self, uint32_t item) noexcept
    cdef void drop_key(self, uint32_t number) noexcept
    cdef uint32_t make_key(self, uint32_t number) noexcept
    cdef void begin_alone(self, EntryId at, uint64_t hash) noexcept
    cdef uint32_t add_entry(self, EntryId at, uint32_t key) noexcept
    cdef void split_entries(self) noexcept
    cdef void drop_entry(self, uint32_t number) noexcept
    cdef void link(self, uint32_t number, bint parked) noexcept
    cdef void unlink(self, uint32_t number) noexcept
    cdef bint gets_more(self, const OrderKey* key) noexcept
    cdef bint comes_before(self, uint32_t one, uint32_t other) noexcept
    cdef void put_free(self, uint32_t place, uint32_t number) noexcept
    cdef void sift(self, uint32_t number) noexcept
    cdef void leave_heap(self, uint32_t number) noexcept
    cdef void settle(self, uint32_t number) noexcept
    cdef int add(self, EntryId at, uint64_t hash, bint parked) except -1
    cdef bint move(self, EntryId at, bint parked) except -1
    cdef bint remove(self, EntryId at, bint parked) noexcept
    cdef uint64_t hash_of(self, const char* text, Py_ssize_t size) noexcept
    cdef int next_read(self) noexcept
    cdef bint is_free(self, uint64_t hash) noexcept
    cdef bint has_free(self) noexcept
    cdef bint next_parked(self, EntryId* out) noexcept
    cdef bint first_parked(self, EntryId start, EntryId* out) noexcept
    cdef bint has(self, EntryId at, bint parked) noexcept
    cdef int begin(self, EntryId at, uint64_t hash) except -1
    cdef int park(self, EntryId at, uint64_t hash) except -1
    cdef bint take_parked(self, EntryId at) except -1
    cdef bint park_again(self, EntryId at) except -1
    cdef bint end(self, EntryId at) noexcept
    cdef bint forget(self, EntryId at) noexcept
    cdef int forget_parked(self) noexcept
    cdef bint is_alone(self, EntryId at) noexcept
    cdef uint32_t first_of_key(self, EntryId at, EntryId* first) noexcept
    cdef uint32_t next_of_key(self, uint32_t number, EntryId* following) noexcept
    cdef list others(self, EntryId at)
    cdef uint64_t size_bytes(self) noexcept


cdef list key_ids(KeyOrder keys, bint parked)
cdef bytes saved_keys(KeyOrder keys, bint parked)
cdef int load_keys(KeyOrder keys, bytes packed, bint parked) except -1
