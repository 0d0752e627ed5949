# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The keys of a group in which entries of one key come one after the other.

A key has pending entries, which readers have or which were given back, and parked ones: the group has
passed them, and they wait for their key. A key is free if none of its entries is pending. Of a free key
with parked entries, the first one comes next, and a read may continue with those after it (`run`).

Keys are distinguished by a keyed hash of 64 bits: two keys with the same hash only wait for each other.
Entries and keys are plain records in two arrays, found through chains. Most keys have one entry, which is
pending. Such an entry is `alone`: it has the hash of its key, which gets a record with the second entry.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy
cimport cython

from millstream.entry_id cimport EntryId, id_less
from millstream.storage.groups.key_order cimport ALONE, NO_ITEM, Chains, OrderedEntry, OrderKey
from millstream.storage.groups.sorted_ids cimport SortedIds

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define ROTATED(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
    #define SIP_ROUND \\
        v0 += v1; v1 = ROTATED(v1, 13) ^ v0; v0 = ROTATED(v0, 32); \\
        v2 += v3; v3 = ROTATED(v3, 16) ^ v2; \\
        v0 += v3; v3 = ROTATED(v3, 21) ^ v0; \\
        v2 += v1; v1 = ROTATED(v1, 17) ^ v2; v2 = ROTATED(v2, 32);
    /* The least power of two that is not below a number above 0. */
    static uint64_t power_of_two(uint32_t least) {
        return least < 2 ? 1 : (uint64_t)1 << (32 - __builtin_clz(least - 1));
    }
    /* SipHash-1-3. The second half of its key is derived from the first one. */
    static uint64_t sip_hash(uint64_t key, const char* text, size_t size) {
        uint64_t other = (key ^ 0x9e3779b97f4a7c15ULL) * 0xbf58476d1ce4e5b9ULL;
        uint64_t v0 = 0x736f6d6570736575ULL ^ key, v1 = 0x646f72616e646f6dULL ^ other;
        uint64_t v2 = 0x6c7967656e657261ULL ^ key, v3 = 0x7465646279746573ULL ^ other;
        uint64_t word;
        size_t at = 0;
        for (; at + 8 <= size; at += 8) {
            memcpy(&word, text + at, 8);
            v3 ^= word; SIP_ROUND v0 ^= word;
        }
        word = (uint64_t)size << 56;
        for (size_t i = 0; at + i < size; i++)
            word |= (uint64_t)(unsigned char)text[at + i] << (8 * i);
        v3 ^= word; SIP_ROUND v0 ^= word;
        v2 ^= 0xff; SIP_ROUND SIP_ROUND SIP_ROUND
        return v0 ^ v1 ^ v2 ^ v3;
    }
    """
    uint64_t power_of_two(uint32_t least) nogil
    uint64_t sip_hash(uint64_t key, const char* text, size_t size) nogil

cdef enum:
    NONE = NO_ITEM
    FIRST_CAPACITY = 8
    ITEMS_PER_CHAIN = 2
    # An entry in a snapshot: its ID and the hash of its key.
    SAVED_BYTES = 24

SAVED_SIZE = SAVED_BYTES


cdef inline uint64_t id_hash(EntryId at) noexcept:
    cdef uint64_t mixed = (at.ms ^ (at.seq * 0x9e3779b97f4a7c15ULL)) * 0xbf58476d1ce4e5b9ULL
    return mixed ^ (mixed >> 29)


cdef inline EntryId id_of(const OrderedEntry* entry) noexcept:
    return EntryId(entry.ms, entry.seq)


cdef inline bint is_before(EntryId one, const OrderedEntry* other) noexcept:
    return id_less(one.ms, one.seq, other.ms, other.seq)


# ---------------------------------------------------------------- chains

cdef inline uint32_t chain_of(const Chains* chains, uint64_t hash) noexcept:
    """The number of the chain of a hash: its low bits, one less where a chain is not split yet."""
    cdef uint64_t mask = power_of_two(chains.count)
    cdef uint64_t at = hash & (mask - 1)
    return <uint32_t>(at if at < chains.count else at & ((mask >> 1) - 1))


cdef int grow_chains(Chains* chains) except -1:
    """Allocate one more chain, without splitting another one."""
    cdef uint32_t* moved
    if chains.count == chains.capacity:
        moved = <uint32_t*>realloc(
            chains.heads, max(2 * <size_t>chains.capacity, <size_t>FIRST_CAPACITY) * sizeof(uint32_t))
        if moved == NULL:
            raise MemoryError("no memory for the keys of a group")
        chains.heads = moved
        chains.capacity = max(2 * chains.capacity, <uint32_t>FIRST_CAPACITY)
    return 0


@cython.no_gc
cdef class KeyOrder:
    """The pending and parked entries of a group by key. An operation that fails for lack of memory has
    changed nothing."""

    def __cinit__(self, uint64_t seed=0, uint32_t run=1):
        self.seed = seed
        self.run = run
        self.unused_entry = self.unused_key = NONE
        self.parked_ids = SortedIds.__new__(SortedIds)

    def __dealloc__(self):
        free(self.entries)
        free(self.keys)
        free(self.free_keys)
        free(self.entry_chains.heads)
        free(self.key_chains.heads)

    cdef uint64_t hash_of(self, const char* text, Py_ssize_t size) noexcept:
        """The hash of a key."""
        return sip_hash(self.seed, text, size)

    # ------------------------------------------------------------ finding

    cdef inline uint32_t find_entry(self, EntryId at) noexcept:
        cdef uint32_t number
        if self.entry_chains.count == 0:
            return NONE
        number = self.entry_chains.heads[chain_of(&self.entry_chains, id_hash(at))]
        while number != NONE and (
                self.entries[number].ms != at.ms or self.entries[number].seq != at.seq):
            number = self.entries[number].chain
        return number

    cdef inline uint32_t find_key(self, uint64_t hash) noexcept:
        """The number of a key, or of the only entry of it plus ALONE."""
        cdef uint32_t item
        if self.key_chains.count == 0:
            return NONE
        item = self.key_chains.heads[chain_of(&self.key_chains, hash)]
        while item != NONE and hash_at(self, item) != hash:
            item = link_of(self, item)[0]
        return item

    cdef bint has(self, EntryId at, bint parked) noexcept:
        """True if an entry is parked, or is pending and has a key."""
        cdef uint32_t number = self.find_entry(at)
        return number != NONE and self.entries[number].parked == parked

    # ------------------------------------------------------------ allocation

    cdef int reserve(self) except -1:
        """Allocate space for one more entry and key, so that adding them cannot fail."""
        cdef OrderedEntry* entries
        cdef OrderKey* keys
        cdef uint32_t* free_keys
        cdef size_t wanted
        if self.unused_entry == NONE and self.entries_used == self.entries_capacity:
            wanted = larger(self.entries_capacity)
            entries = <OrderedEntry*>realloc(self.entries, wanted * sizeof(OrderedEntry))
            if entries == NULL or wanted >= NONE:
                raise MemoryError("no memory for the keys of a group")
            self.entries = entries
            self.entries_capacity = <uint32_t>wanted
        if self.unused_key == NONE and self.keys_used == self.keys_capacity:
            wanted = larger(self.keys_capacity)
            free_keys = <uint32_t*>realloc(self.free_keys, wanted * sizeof(uint32_t))
            if free_keys == NULL:
                raise MemoryError("no memory for the keys of a group")
            self.free_keys = free_keys
            keys = <OrderKey*>realloc(self.keys, wanted * sizeof(OrderKey))
            if keys == NULL:
                raise MemoryError("no memory for the keys of a group")
            self.keys = keys
            self.keys_capacity = <uint32_t>wanted
        grow_chains(&self.entry_chains)
        return grow_chains(&self.key_chains)

    cdef uint32_t add_key(self, uint64_t hash) noexcept:
        cdef uint32_t number = self.unused_key
        cdef OrderKey* key
        if number == NONE:
            number = self.keys_used
            self.keys_used += 1
        else:
            self.unused_key = self.keys[number].chain
        key = &self.keys[number]
        key.hash = hash
        key.pending = 0
        key.first_pending = key.first_parked = key.last_parked = key.free_at = NONE
        key.read = self.reads - 1
        self.chain_key(number, hash)
        return number

    cdef void chain_key(self, uint32_t item, uint64_t hash) noexcept:
        cdef uint32_t* head
        if self.key_chains.count * ITEMS_PER_CHAIN <= self.key_count:
            self.split_keys()
        self.key_count += 1
        head = &self.key_chains.heads[chain_of(&self.key_chains, hash)]
        link_of(self, item)[0] = head[0]
        head[0] = item

    cdef void split_keys(self) noexcept:
        """Add a chain: the keys that belong to it come from one other chain."""
        cdef Chains* chains = &self.key_chains
        cdef uint32_t made = chains.count
        cdef uint32_t item, following
        cdef uint32_t* end
        chains.heads[made] = NONE
        chains.count += 1
        if made == 0:
            return
        end = &chains.heads[parent_of(made)]
        item = end[0]
        while item != NONE:
            following = link_of(self, item)[0]
            if chain_of(chains, hash_at(self, item)) == made:
                end[0] = following
                link_of(self, item)[0] = chains.heads[made]
                chains.heads[made] = item
            else:
                end = link_of(self, item)
            item = following

    cdef void unchain_key(self, uint32_t item) noexcept:
        cdef uint32_t* end = &self.key_chains.heads[
            chain_of(&self.key_chains, hash_at(self, item))]
        while end[0] != item:
            end = link_of(self, end[0])
        end[0] = link_of(self, item)[0]
        self.key_count -= 1

    cdef void drop_key(self, uint32_t number) noexcept:
        self.unchain_key(number)
        self.keys[number].chain = self.unused_key
        self.unused_key = number

    cdef void begin_alone(self, EntryId at, uint64_t hash) noexcept:
        """Add a pending entry with a new key."""
        cdef uint32_t number = self.add_entry(at, NONE)
        self.entries[number].hash = hash
        self.entries[number].parked = 0
        self.entries[number].alone = 1
        self.pending_count += 1
        self.chain_key(number | ALONE, hash)

    cdef uint32_t make_key(self, uint32_t number) noexcept:
        """Make the key of an entry that is alone; return its number."""
        cdef OrderedEntry* entry = &self.entries[number]
        cdef uint32_t key
        self.unchain_key(number | ALONE)
        key = self.add_key(entry.hash)
        entry.alone = 0
        entry.key = key
        entry.following = NONE
        self.keys[key].first_pending = number
        self.keys[key].pending = 1
        return key

    cdef uint32_t add_entry(self, EntryId at, uint32_t key) noexcept:
        cdef uint32_t number = self.unused_entry
        cdef uint32_t chain
        cdef OrderedEntry* entry
        if number == NONE:
            number = self.entries_used
            self.entries_used += 1
        else:
            self.unused_entry = self.entries[number].following
        entry = &self.entries[number]
        entry.ms, entry.seq = at.ms, at.seq
        entry.key = key
        entry.following = NONE
        entry.alone = 0
        if self.entry_chains.count * ITEMS_PER_CHAIN <= self.pending_count + self.parked_count:
            self.split_entries()
        chain = chain_of(&self.entry_chains, id_hash(at))
        entry.chain = self.entry_chains.heads[chain]
        self.entry_chains.heads[chain] = number
        return number

    cdef void split_entries(self) noexcept:
        """`split_keys` for entries, whose `chain` is a bit-field without an address."""
        cdef Chains* chains = &self.entry_chains
        cdef uint32_t made = chains.count
        cdef uint32_t number, following
        cdef uint32_t before = NONE
        cdef uint32_t parent
        chains.heads[made] = NONE
        chains.count += 1
        if made == 0:
            return
        parent = parent_of(made)
        number = chains.heads[parent]
        while number != NONE:
            following = self.entries[number].chain
            if chain_of(chains, id_hash(id_of(&self.entries[number]))) == made:
                if before == NONE:
                    chains.heads[parent] = following
                else:
                    self.entries[before].chain = following
                self.entries[number].chain = chains.heads[made]
                chains.heads[made] = number
            else:
                before = number
            number = following

    cdef void drop_entry(self, uint32_t number) noexcept:
        cdef OrderedEntry* entry = &self.entries[number]
        cdef uint32_t chain = chain_of(&self.entry_chains, id_hash(id_of(entry)))
        cdef uint32_t other = self.entry_chains.heads[chain]
        if other == number:
            self.entry_chains.heads[chain] = entry.chain
        else:
            while self.entries[other].chain != number:
                other = self.entries[other].chain
            self.entries[other].chain = entry.chain
        entry.following = self.unused_entry
        self.unused_entry = number

    # ------------------------------------------------------------ the lists of a key

    cdef void link(self, uint32_t number, bint parked) noexcept:
        """Add an entry to the pending or the parked ones of its key, in ID order."""
        cdef OrderedEntry* entry = &self.entries[number]
        cdef OrderKey* key = &self.keys[entry.key]
        cdef EntryId at = id_of(entry)
        cdef uint32_t before = NONE
        cdef uint32_t other = key.first_parked if parked else key.first_pending
        if parked and key.last_parked != NONE and not is_before(at, &self.entries[key.last_parked]):
            before, other = key.last_parked, NONE
        while other != NONE and not is_before(at, &self.entries[other]):
            before, other = other, self.entries[other].following
        entry.parked = parked
        entry.following = other
        if before != NONE:
            self.entries[before].following = number
        elif parked:
            key.first_parked = number
        else:
            key.first_pending = number
        if not parked:
            key.pending += 1
            self.pending_count += 1
            return
        self.parked_count += 1
        if other == NONE:
            key.last_parked = number

    cdef void unlink(self, uint32_t number) noexcept:
        cdef OrderedEntry* entry = &self.entries[number]
        cdef OrderKey* key = &self.keys[entry.key]
        cdef uint32_t before = NONE
        cdef uint32_t other = key.first_parked if entry.parked else key.first_pending
        while other != number:
            before, other = other, self.entries[other].following
        if before != NONE:
            self.entries[before].following = entry.following
        elif entry.parked:
            key.first_parked = entry.following
        else:
            key.first_pending = entry.following
        if not entry.parked:
            key.pending -= 1
            self.pending_count -= 1
            return
        self.parked_count -= 1
        self.parked_ids.remove(id_of(entry))
        if key.last_parked == number:
            key.last_parked = before

    # ------------------------------------------------------------ free keys

    cdef inline bint gets_more(self, const OrderKey* key) noexcept:
        """True if a read may get another entry of a key."""
        return key.pending == 0 or (key.read == self.reads and key.pending < self.run)

    cdef inline bint comes_before(self, uint32_t one, uint32_t other) noexcept:
        return is_before(id_of(&self.entries[self.keys[one].first_parked]),
                         &self.entries[self.keys[other].first_parked])

    cdef inline void put_free(self, uint32_t place, uint32_t number) noexcept:
        self.free_keys[place] = number
        self.keys[number].free_at = place

    cdef void sift(self, uint32_t number) noexcept:
        """Move a key to its place in the heap."""
        cdef uint32_t place = self.keys[number].free_at
        cdef uint32_t other
        while place and self.comes_before(number, self.free_keys[(place - 1) // 2]):
            self.put_free(place, self.free_keys[(place - 1) // 2])
            place = (place - 1) // 2
        while True:
            other = 2 * place + 1
            if other >= self.free_count:
                break
            if other + 1 < self.free_count and self.comes_before(
                    self.free_keys[other + 1], self.free_keys[other]):
                other += 1
            if not self.comes_before(self.free_keys[other], number):
                break
            self.put_free(place, self.free_keys[other])
            place = other
        self.put_free(place, number)

    cdef void leave_heap(self, uint32_t number) noexcept:
        cdef uint32_t place = self.keys[number].free_at
        cdef uint32_t last
        if place == NONE:
            return
        self.keys[number].free_at = NONE
        self.free_count -= 1
        last = self.free_keys[self.free_count]
        if last != number:
            self.put_free(place, last)
            self.sift(last)

    cdef void settle(self, uint32_t number) noexcept:
        """Put a key among the free ones, or remove it, after a change of its entries."""
        cdef OrderKey* key = &self.keys[number]
        if key.first_parked == NONE or not self.gets_more(key):
            self.leave_heap(number)
            if key.pending == 0 and key.first_parked == NONE:
                self.drop_key(number)
            return
        if key.free_at == NONE:
            key.free_at = self.free_count
            self.free_count += 1
        self.sift(number)

    cdef int next_read(self) noexcept:
        """Begin or end a read: keys whose entries an earlier read has got are not free."""
        self.reads += 1
        return 0

    cdef bint has_free(self) noexcept:
        """True if a parked entry may be delivered."""
        while self.free_count and not self.gets_more(&self.keys[self.free_keys[0]]):
            self.leave_heap(self.free_keys[0])
        return self.free_count > 0

    cdef bint next_parked(self, EntryId* out) noexcept:
        """Get the first of the parked entries that may be delivered; False without one."""
        if not self.has_free():
            return False
        out[0] = id_of(&self.entries[self.keys[self.free_keys[0]].first_parked])
        return True

    cdef bint first_parked(self, EntryId start, EntryId* out) noexcept:
        """Get the first parked entry from `start` on, whether its key is free or not; False without
        one."""
        return self.parked_count > 0 and self.parked_ids.first_from(start, out)

    cdef bint is_free(self, uint64_t hash) noexcept:
        """True if a new entry with this key may be delivered."""
        cdef uint32_t number = self.find_key(hash)
        return number == NONE or number < ALONE and (
            self.keys[number].first_parked == NONE and self.gets_more(&self.keys[number]))

    # ------------------------------------------------------------ changes

    cdef int begin(self, EntryId at, uint64_t hash) except -1:
        """An entry that was not parked becomes pending."""
        self.add(at, hash, False)
        return 0

    cdef int park(self, EntryId at, uint64_t hash) except -1:
        """Park an entry."""
        self.add(at, hash, True)
        return 0

    cdef int add(self, EntryId at, uint64_t hash, bint parked) except -1:
        cdef uint32_t key
        if self.find_entry(at) != NONE:
            raise ValueError(f"entry {at.ms}-{at.seq} has a key already")
        self.reserve()
        if parked:
            self.parked_ids.add(at)
        key = self.find_key(hash)
        if key == NONE and not parked and self.run == 1:
            self.begin_alone(at, hash)
            return 0
        if key == NONE:
            key = self.add_key(hash)
        elif key >= ALONE:
            key = self.make_key(key - ALONE)
        if not parked and self.keys[key].pending == 0:
            self.keys[key].read = self.reads
        self.link(self.add_entry(at, key), parked)
        self.settle(key)
        return 0

    cdef bint take_parked(self, EntryId at) except -1:
        """A parked entry becomes pending; False if it is not parked."""
        return self.move(at, True)

    cdef bint park_again(self, EntryId at) except -1:
        """A pending entry is parked; False if it has no key."""
        return self.move(at, False)

    cdef bint move(self, EntryId at, bint parked) except -1:
        """Move an entry that is parked, or not, to the other list of its key."""
        cdef uint32_t number = self.find_entry(at)
        cdef OrderKey* key
        if number == NONE or self.entries[number].parked != parked:
            return False
        if self.entries[number].alone:
            self.reserve()
        if not parked:
            self.parked_ids.add(at)
        if self.entries[number].alone:
            self.make_key(number)
        key = &self.keys[self.entries[number].key]
        if parked and key.pending == 0:
            key.read = self.reads
        self.unlink(number)
        self.link(number, not parked)
        self.settle(self.entries[number].key)
        return True

    cdef bint end(self, EntryId at) noexcept:
        """A pending entry has ended; False if it has no key."""
        return self.remove(at, False)

    cdef bint forget(self, EntryId at) noexcept:
        """Forget a parked entry; False if it is not parked."""
        return self.remove(at, True)

    cdef bint remove(self, EntryId at, bint parked) noexcept:
        cdef uint32_t number = self.find_entry(at)
        cdef uint32_t key
        if number == NONE or self.entries[number].parked != parked:
            return False
        if self.entries[number].alone:
            self.unchain_key(number | ALONE)
            self.pending_count -= 1
            self.drop_entry(number)
            return True
        key = self.entries[number].key
        self.unlink(number)
        self.drop_entry(number)
        self.settle(key)
        return True

    cdef int forget_parked(self) noexcept:
        """Forget all parked entries."""
        cdef uint32_t chain, number, following
        for chain in range(self.entry_chains.count):
            number = self.entry_chains.heads[chain]
            while number != NONE:
                following = self.entries[number].chain
                if self.entries[number].parked:
                    self.remove(id_of(&self.entries[number]), True)
                number = following
        return 0

    # ------------------------------------------------------------ pending entries of one key

    cdef bint is_alone(self, EntryId at) noexcept:
        """True if no other entry of its key is pending, or if an entry has no key."""
        cdef uint32_t number = self.find_entry(at)
        return number == NONE or self.entries[number].alone or (
            self.keys[self.entries[number].key].pending <= 1)

    cdef uint32_t first_of_key(self, EntryId at, EntryId* first) noexcept:
        """Get the first pending entry with the key of this one, and its number; NO_ITEM if this entry has
        no key."""
        cdef uint32_t number = self.find_entry(at)
        if number != NONE and not self.entries[number].alone:
            number = self.keys[self.entries[number].key].first_pending
        if number != NONE:
            first[0] = id_of(&self.entries[number])
        return number

    cdef uint32_t next_of_key(self, uint32_t number, EntryId* following) noexcept:
        """Get the next pending entry of the same key, and its number; NO_ITEM at the end."""
        number = NONE if self.entries[number].alone else self.entries[number].following
        if number != NONE:
            following[0] = id_of(&self.entries[number])
        return number

    cdef list others(self, EntryId at):
        """The IDs (ms, seq) of the other pending entries of its key, in ID order."""
        cdef uint32_t number = self.find_entry(at)
        cdef uint32_t other
        cdef list found = []
        if number == NONE or self.entries[number].alone:
            return found
        other = self.keys[self.entries[number].key].first_pending
        while other != NONE:
            if other != number:
                found.append((self.entries[other].ms, self.entries[other].seq))
            other = self.entries[other].following
        return found

    cdef uint64_t size_bytes(self) noexcept:
        """The memory that it uses."""
        return (self.entries_capacity * sizeof(OrderedEntry)
                + self.keys_capacity * (sizeof(OrderKey) + sizeof(uint32_t))
                + (self.entry_chains.capacity + self.key_chains.capacity) * sizeof(uint32_t)
                + self.parked_ids.size_bytes())


cdef inline size_t larger(size_t capacity) noexcept:
    return capacity + max(capacity // 4, <size_t>FIRST_CAPACITY)


cdef inline uint32_t parent_of(uint32_t chain) noexcept:
    """The chain from which a new one gets its items: its number without its highest bit."""
    cdef uint32_t bit = 1
    while bit <= chain >> 1:
        bit <<= 1
    return chain - bit


cdef inline uint32_t* link_of(KeyOrder keys, uint32_t item) noexcept:
    """The place of the next item in a chain of keys."""
    return &keys.entries[item - ALONE].key_chain if item >= ALONE else &keys.keys[item].chain


cdef inline uint64_t hash_at(KeyOrder keys, uint32_t item) noexcept:
    return keys.entries[item - ALONE].hash if item >= ALONE else keys.keys[item].hash


# ---------------------------------------------------------------- snapshots

cdef list key_ids(KeyOrder keys, bint parked):
    """The IDs (ms, seq) of the parked or the pending entries, key by key in ID order."""
    cdef bytes packed = saved_keys(keys, parked)
    cdef const char* text = packed
    cdef uint64_t[3] numbers
    cdef list found = []
    cdef Py_ssize_t at
    for at in range(0, len(packed), SAVED_BYTES):
        memcpy(numbers, text + at, SAVED_BYTES)
        found.append((numbers[0], numbers[1]))
    return found


cdef bytes saved_keys(KeyOrder keys, bint parked):
    """The parked or the pending entries: ms, seq and the hash of the key, key by key in ID order."""
    cdef uint32_t count = keys.parked_count if parked else keys.pending_count
    cdef bytes made = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>count * SAVED_BYTES)
    cdef char* to = PyBytes_AS_STRING(made)
    cdef OrderedEntry* entry
    cdef uint64_t[3] numbers
    cdef uint32_t chain, item, number
    for chain in range(keys.key_chains.count):
        item = keys.key_chains.heads[chain]
        while item != NONE:
            number = first_in(keys, item, parked)
            while number != NONE:
                entry = &keys.entries[number]
                numbers = [entry.ms, entry.seq, hash_at(keys, item)]
                memcpy(to, numbers, SAVED_BYTES)
                to += SAVED_BYTES
                number = NONE if entry.alone else entry.following
            item = link_of(keys, item)[0]
    return made


cdef inline uint32_t first_in(KeyOrder keys, uint32_t item, bint parked) noexcept:
    """The number of the first parked or pending entry of a key."""
    if item >= ALONE:
        return NONE if parked else item - ALONE
    return keys.keys[item].first_parked if parked else keys.keys[item].first_pending


cdef int load_keys(KeyOrder keys, bytes packed, bint parked) except -1:
    """Add the entries of `saved_keys`. ValueError if they are malformed."""
    cdef const char* text = packed
    cdef uint64_t[3] numbers
    cdef Py_ssize_t at
    if len(packed) % SAVED_BYTES:
        raise ValueError("the keys of a group end in the middle of one")
    for at in range(0, len(packed), SAVED_BYTES):
        memcpy(numbers, text + at, SAVED_BYTES)
        keys.add(EntryId(numbers[0], numbers[1]), numbers[2], parked)
    return keys.next_read()
