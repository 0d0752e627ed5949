# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
"""The keys of a database by slot; the checksum of a key determines its slot.

SCAN and snapshots go through the slots in order, so no change of other keys moves a key from after
a cursor to before it. With very many keys a slot has few of them: a slot with one key needs nothing
besides its eight bytes.

In a node of a cluster, each of the 16,384 cluster slots (`cluster_slots`) is four neighbouring slots here, so
its keys can be counted and listed.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF, PyObject
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from millstream.storage.keyspace.cluster_slots cimport CLUSTER_SLOT_COUNT, cluster_slot

from millstream.storage.blocks.checksum import crc32

cdef extern from *:
    """
    #define ones_in(word) ((uint32_t)__builtin_popcountll(word))
    #define lowest_one(word) ((uint32_t)__builtin_ctzll(word))
    """
    uint32_t ones_in(uint64_t word) noexcept nogil
    uint32_t lowest_one(uint64_t word) noexcept nogil

cdef enum:
    WORDS = 1024  # of 64 bits: a bit for each slot
    SUMMARY = WORDS // WORD_BITS  # words after these: a bit for each word that is not zero
    PART_BITS = 2
    PARTS = SLOT_COUNT // CLUSTER_SLOT_COUNT  # slots of a cluster slot

SLOTS = SLOT_COUNT


cdef inline void set_bit(uint64_t* words, uint32_t n) noexcept nogil:
    words[n // WORD_BITS] |= <uint64_t>1 << (n % WORD_BITS)


cdef inline uint64_t clear_bit(uint64_t* words, uint32_t n) noexcept nogil:
    """Clear a bit; return the rest of its word."""
    words[n // WORD_BITS] &= ~(<uint64_t>1 << (n % WORD_BITS))
    return words[n // WORD_BITS]


cdef inline uint32_t next_bit(const uint64_t* words, uint32_t count, uint32_t n) noexcept nogil:
    """The first bit from bit n on that is set, in `count` words; their number of bits if none is."""
    cdef uint32_t word = n // WORD_BITS
    cdef uint64_t bits
    if word == count:
        return n
    bits = words[word] >> (n % WORD_BITS) << (n % WORD_BITS)
    while bits == 0:
        word += 1
        if word == count:
            return count * WORD_BITS
        bits = words[word]
    return word * WORD_BITS + lowest_one(bits)


cdef inline Several* several_of(uint64_t slot) noexcept nogil:
    return <Several*>(slot - 1) if slot & 1 else NULL


cdef Several* grown(Several* several, uint32_t capacity) except NULL:
    cdef Several* made = <Several*>realloc(
        several, sizeof(Several) + (capacity - 1) * sizeof(Key))
    if made == NULL:
        raise MemoryError("no memory for a key")
    made.capacity = capacity
    return made


cdef class KeySlots:
    """The keys of one database, each once, by slot. A slot has its keys in the order in which they
    were added, except that the last one takes the place of a removed one. `clustered`: the database
    is that of a node of a cluster."""

    def __init__(self, bint clustered=False):
        self.clustered = clustered

    def __dealloc__(self):
        cdef uint32_t slot = 0
        if self.slots != NULL:
            slot = self.next_used(0)
            while slot < SLOT_COUNT:
                self.empty_slot(slot)
                slot = self.next_used(slot)
        free(self.slots)
        free(self.used)

    def __len__(self) -> int:
        return self.keys

    cdef int make_table(self) except -1:
        if self.used == NULL:
            self.used = <uint64_t*>calloc(WORDS + SUMMARY, sizeof(uint64_t))
        if self.used != NULL and self.slots == NULL:
            self.slots = <uint64_t*>calloc(SLOT_COUNT, sizeof(uint64_t))
        if self.slots == NULL:
            raise MemoryError("no memory for the keys of a database")
        return 0

    cdef uint32_t slot_for(self, bytes key) except? 0xffffffff:
        cdef uint32_t checksum = <uint32_t><uint64_t>crc32(key)
        if not self.clustered:
            return checksum & (SLOT_COUNT - 1)
        return (cluster_slot(PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)) << PART_BITS
                | checksum & (PARTS - 1))

    cdef uint32_t add_key(self, bytes key) except? 0xffffffff:
        """Add a key that is not there; return its slot."""
        cdef uint32_t slot = self.slot_for(key)
        cdef Several* several
        cdef uint64_t old
        if self.slots == NULL:
            self.make_table()
        old = self.slots[slot]
        if old == 0:
            self.slots[slot] = <uint64_t><PyObject*>key
            set_bit(self.used, slot)
            set_bit(self.used + WORDS, slot // WORD_BITS)
            self.used_count += 1
        else:
            several = several_of(old)
            if several == NULL:
                several = grown(NULL, 2)
                several.count = 1
                several.keys[0] = <PyObject*>old
            elif several.count == several.capacity:
                several = grown(several, several.capacity * 2)
            several.keys[several.count] = <PyObject*>key
            several.count += 1
            self.slots[slot] = <uint64_t>several + 1
        Py_INCREF(key)
        self.keys += 1
        return slot

    cdef inline Key* keys_at(self, uint32_t slot, uint32_t* count) noexcept:
        """The keys of a slot, valid until a change."""
        cdef Several* several
        count[0] = 0
        if self.slots == NULL or self.slots[slot] == 0:
            return NULL
        several = several_of(self.slots[slot])
        if several != NULL:
            count[0] = several.count
            return several.keys
        count[0] = 1
        return <Key*>&self.slots[slot]

    cdef uint32_t next_used(self, uint32_t slot) noexcept:
        """The first slot from this one on that has keys; SLOT_COUNT when there is none."""
        cdef uint32_t word = slot // WORD_BITS
        cdef uint64_t bits
        if self.used == NULL or slot >= SLOT_COUNT:
            return SLOT_COUNT
        bits = self.used[word] >> (slot % WORD_BITS) << (slot % WORD_BITS)
        if bits == 0:
            word = next_bit(self.used + WORDS, SUMMARY, word + 1)
            if word == WORDS:
                return SLOT_COUNT
            bits = self.used[word]
        return word * WORD_BITS + lowest_one(bits)

    cdef uint32_t nth_used(self, uint32_t n) noexcept:
        """The slot before which n slots have keys; n is below used_count."""
        cdef uint32_t word = 0
        cdef uint64_t bits
        while n >= ones_in(self.used[word]):
            n -= ones_in(self.used[word])
            word += 1
        bits = self.used[word]
        while n:
            bits &= bits - 1
            n -= 1
        return word * WORD_BITS + lowest_one(bits)

    cdef void empty_slot(self, uint32_t slot) noexcept:
        cdef uint32_t count, i
        cdef Key* keys = self.keys_at(slot, &count)
        cdef Several* several = several_of(self.slots[slot])
        cdef PyObject* single = <PyObject*>self.slots[slot]
        self.slots[slot] = 0
        if clear_bit(self.used, slot) == 0:
            clear_bit(self.used + WORDS, slot // WORD_BITS)
        self.used_count -= 1
        self.keys -= count
        if several == NULL:
            Py_DECREF(<object>single)
            return
        for i in range(count):
            Py_DECREF(<object>keys[i])
        free(several)

    cdef list list_keys(self, uint32_t slot):
        cdef uint32_t count, i
        cdef Key* keys = self.keys_at(slot, &count)
        cdef list found = []
        for i in range(count):
            found.append(<object>keys[i])
        return found

    def add(self, bytes key not None) -> int:
        """Add a key that is not there; return its slot."""
        return self.add_key(key)

    def remove(self, bytes key not None) -> None:
        """Remove a key; KeyError when it is not there."""
        cdef uint32_t slot = self.slot_for(key)
        cdef uint32_t count, i
        cdef Key* keys = self.keys_at(slot, &count)
        cdef Several* several
        cdef PyObject* gone
        for i in range(count):
            if <object>keys[i] == key:
                break
        else:
            raise KeyError(key)
        if count == 1:
            self.empty_slot(slot)
            return
        several = several_of(self.slots[slot])
        gone = several.keys[i]
        several.count -= 1
        several.keys[i] = several.keys[several.count]
        self.keys -= 1
        Py_DECREF(<object>gone)

    def slot_of(self, bytes key not None) -> int:
        """The slot of a key."""
        return self.slot_for(key)

    def count_in(self, uint32_t cluster_slot_number) -> int:
        """The number of keys in a cluster slot."""
        cdef uint64_t total = 0
        cdef uint32_t part, count
        if cluster_slot_number < CLUSTER_SLOT_COUNT:
            for part in range(PARTS):
                self.keys_at(cluster_slot_number << PART_BITS | part, &count)
                total += count
        return total

    def keys_in(self, uint32_t cluster_slot_number, Py_ssize_t most) -> list:
        """The keys of a cluster slot, at most this number."""
        cdef uint32_t part, count, i
        cdef Key* keys
        cdef list found = []
        if cluster_slot_number >= CLUSTER_SLOT_COUNT:
            return found
        for part in range(PARTS):
            keys = self.keys_at(cluster_slot_number << PART_BITS | part, &count)
            for i in range(count):
                if len(found) >= most:
                    return found
                found.append(<object>keys[i])
        return found

    def used_cluster_slots(self) -> list:
        """The cluster slots that have keys, in order."""
        cdef uint32_t slot = self.next_used(0)
        cdef list found = []
        while slot < SLOT_COUNT:
            found.append(slot >> PART_BITS)
            slot = self.next_used(((slot >> PART_BITS) + 1) << PART_BITS)
        return found

    def keys_of(self, uint32_t slot) -> list:
        """The keys of a slot."""
        return self.list_keys(slot) if slot < SLOT_COUNT else []

    def used_from(self, uint32_t slot) -> int:
        """The first slot from this one on that has keys; SLOTS when there is none."""
        return self.next_used(slot)

    def scan(self, uint64_t cursor, Py_ssize_t count) -> tuple[int, list]:
        """About `count` keys of the slots from a cursor on, and the next cursor, 0 at the end."""
        cdef uint32_t slot = self.next_used(<uint32_t>min(cursor, <uint64_t>SLOT_COUNT))
        cdef uint32_t slots = 0
        cdef uint32_t key_count, i
        cdef Key* keys
        cdef list found = []
        while slot < SLOT_COUNT:
            if len(found) >= count:
                return slot, found
            keys = self.keys_at(slot, &key_count)
            for i in range(key_count):
                found.append(<object>keys[i])
            slots += 1
            if slots == self.used_count:
                break  # a small database: the empty slots after these are skipped
            slot = self.next_used(slot + 1)
        return 0, found

    def key_at(self, uint64_t number) -> bytes | None:
        """A key selected by a number, for random choices; None when there is none."""
        cdef uint32_t count
        cdef Key* keys
        if self.keys == 0:
            return None
        keys = self.keys_at(self.nth_used(<uint32_t>(number % self.used_count)), &count)
        return <object>keys[number // self.used_count % count]

    def free_step(self, Py_ssize_t most) -> bool:
        """Remove about `most` keys; False when none is left."""
        cdef uint32_t slot = self.next_used(0)
        while slot < SLOT_COUNT and most > 0:
            most -= 1
            self.empty_slot(slot)
            slot = self.next_used(slot)
        return self.keys > 0
